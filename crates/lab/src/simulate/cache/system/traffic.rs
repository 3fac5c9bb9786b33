//! I/O traffic control (section V.D of the paper): four streams of uploads, one per type, on an SSD and a disk without a
//! cache. The links are not the limit here.
//!
//! Each stream has a number of clients, and each of them one object in flight. A static mapping sends the types from
//! files to some type to the SSD, and the others to the disk. [`Mapping::Adaptive`] is [`TrafficRouter`], which knows
//! sizes and not the mix, with queues that serve files first.

use std::time::Duration;

use fastrand::Rng;
use tradewind_model::class_policy::DataType;
use tradewind_model::slices::{Device, DeviceSpeed, MAX_UNSLICED_BYTES, TrafficRouter, Urgency};

use super::server::{DISK, Job, Part, QueueOrder, SSD_WRITE_BYTES_PER_SECOND, Server};
use crate::device_model::{Access, DeviceRequest};
use crate::simulate::event_loop::EventLoop;

/// Types with a stream: all but disk images.
pub const STREAMS: [DataType; 4] = [DataType::Files, DataType::Pictures, DataType::Music, DataType::Video];
/// Bytes of an object that the SSD writes at once: it has no seeks to save.
const SSD_SLICE_BYTES: u64 = 256 << 10;
/// Bytes that reach the disk at once without slices, as page cache and elevator gather them.
const GATHERED_BYTES: u64 = 1 << 20;
/// Fixed time of a write to the SSD, as far as the router knows.
const SSD_REQUEST_TIME: Duration = Duration::from_micros(50);
/// Space between objects on the disk.
const GAP_BYTES: u64 = 1 << 20;

/// The device of each object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// The first types of [`STREAMS`] go to the SSD, the others to the disk.
    Static {
        /// Number of types on the SSD.
        on_ssd: usize,
    },
    /// All objects go to one device, with slices: a part of what both can do.
    Alone(Device),
    /// [`TrafficRouter`] chooses the device of each object.
    Adaptive,
}

impl Mapping {
    /// All mappings: those of the paper first.
    pub const ALL: [Self; 8] = [
        Self::Static { on_ssd: 0 },
        Self::Static { on_ssd: 1 },
        Self::Static { on_ssd: 2 },
        Self::Static { on_ssd: 3 },
        Self::Static { on_ssd: 4 },
        Self::Alone(Device::Ssd),
        Self::Alone(Device::Disk),
        Self::Adaptive,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Static { on_ssd: 0 } => "none",
            Self::Static { on_ssd: 1 } => "+files",
            Self::Static { on_ssd: 2 } => "+pictures",
            Self::Static { on_ssd: 3 } => "+music",
            Self::Static { .. } => "all",
            Self::Alone(Device::Ssd) => "ssd-alone",
            Self::Alone(Device::Disk) => "disk-alone",
            Self::Adaptive => "adaptive",
        }
    }
}

/// The clients of each stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Its name in reports.
    pub name: &'static str,
    /// Clients in the order of [`STREAMS`].
    pub clients: [usize; STREAMS.len()],
}

/// The mixes of a report. The first one is the paper's.
pub const MIXES: [Mix; 6] = [
    Mix { name: "even", clients: [25, 25, 25, 25] },
    Mix { name: "files", clients: [100, 0, 0, 0] },
    Mix { name: "pictures", clients: [0, 100, 0, 0] },
    Mix { name: "music", clients: [0, 0, 100, 0] },
    Mix { name: "video", clients: [0, 0, 0, 100] },
    Mix { name: "files-and-video", clients: [50, 0, 0, 50] },
];

/// The result of one mapping and mix.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficReport {
    /// The mapping.
    pub mapping: Mapping,
    /// Bytes per second of each stream, in the order of [`STREAMS`].
    pub bytes_per_second: [f64; STREAMS.len()],
    /// Latencies of each stream's uploads in seconds, in ascending order.
    pub latencies: [Vec<f64>; STREAMS.len()],
}

impl TrafficReport {
    /// Bytes per second of all streams.
    #[must_use]
    pub fn total_bytes_per_second(&self) -> f64 {
        self.bytes_per_second.iter().sum()
    }

    /// A quantile of the latencies of the stream with this number, in seconds; `None` without uploads.
    #[must_use]
    pub fn latency(&self, stream: usize, quantile: f64) -> Option<f64> {
        let latencies = &self.latencies[stream];
        let rank = (latencies.len() as f64 * quantile).ceil() as usize;
        latencies.get(rank.max(1) - 1).copied()
    }

    /// Share of the uploads of a stream that took up to a time.
    #[must_use]
    pub fn share_within(&self, stream: usize, seconds: f64) -> f64 {
        let within = self.latencies[stream].partition_point(|latency| *latency <= seconds);
        within as f64 / self.latencies[stream].len().max(1) as f64
    }
}

/// Simulates a mix under a mapping for some simulated time.
#[must_use]
pub fn simulate(mapping: Mapping, mix: &Mix, duration: Duration, seed: u64) -> TrafficReport {
    TrafficRun::new(mapping, mix, seed).finish(duration)
}

/// An upload in progress.
#[derive(Debug, Clone, Copy)]
struct Upload {
    stream: usize,
    device: Device,
    bytes: u64,
    disk_offset: u64,
    written: u64,
    /// Bytes in flight.
    slice: u64,
    started_at: Duration,
}

#[derive(Debug)]
enum Event {
    Done { device: Device, client: usize },
    End,
}

struct TrafficRun {
    mapping: Mapping,
    rng: Rng,
    router: TrafficRouter,
    events: EventLoop<Event>,
    ssd: Server<usize>,
    disk: Server<usize>,
    disk_end: u64,
    uploads: Vec<Upload>,
    bytes: [u64; STREAMS.len()],
    latencies: [Vec<f64>; STREAMS.len()],
}

impl TrafficRun {
    fn new(mapping: Mapping, mix: &Mix, seed: u64) -> Self {
        let order =
            if matches!(mapping, Mapping::Static { .. }) { QueueOrder::Fifo } else { QueueOrder::Slices };
        let ssd =
            DeviceSpeed { request_time: SSD_REQUEST_TIME, bytes_per_second: SSD_WRITE_BYTES_PER_SECOND };
        let disk =
            DeviceSpeed { request_time: DISK.positioning_time, bytes_per_second: DISK.bytes_per_second };
        let streams = mix.clients.iter().enumerate();
        let upload = |stream| Upload {
            stream,
            device: Device::Ssd,
            bytes: 0,
            disk_offset: 0,
            written: 0,
            slice: 0,
            started_at: Duration::ZERO,
        };
        Self {
            mapping,
            rng: Rng::with_seed(seed),
            router: TrafficRouter::new(ssd, disk),
            events: EventLoop::new(),
            ssd: Server::new(Part::Ssd, order, seed),
            disk: Server::new(Part::Disk, order, seed),
            disk_end: 0,
            uploads: streams
                .flat_map(|(stream, clients)| std::iter::repeat_n(upload(stream), *clients))
                .collect(),
            bytes: [0; STREAMS.len()],
            latencies: Default::default(),
        }
    }

    fn finish(mut self, duration: Duration) -> TrafficReport {
        self.events.schedule(duration, Event::End);
        (0..self.uploads.len()).for_each(|client| self.start(client));
        while let Some(Event::Done { device, client }) = self.events.next_event() {
            self.done(device, client);
        }
        self.latencies.iter_mut().for_each(|latencies| latencies.sort_by(f64::total_cmp));
        TrafficReport {
            mapping: self.mapping,
            bytes_per_second: self.bytes.map(|bytes| bytes as f64 / duration.as_secs_f64()),
            latencies: self.latencies,
        }
    }

    /// Starts the next upload of a client.
    fn start(&mut self, client: usize) {
        let stream = self.uploads[client].stream;
        let bytes = STREAMS[stream].size(self.rng.f64());
        let device = match self.mapping {
            Mapping::Static { on_ssd } if stream < on_ssd => Device::Ssd,
            Mapping::Static { .. } => Device::Disk,
            Mapping::Alone(device) => device,
            Mapping::Adaptive => self.router.route(bytes),
        };
        let started_at = self.events.now();
        self.uploads[client] =
            Upload { stream, device, bytes, disk_offset: self.disk_end, written: 0, slice: 0, started_at };
        if device == Device::Disk {
            self.disk_end += bytes + GAP_BYTES;
        }
        self.write(client);
    }

    /// Writes the next slice of a client's upload.
    fn write(&mut self, client: usize) {
        let upload = self.uploads[client];
        let slice = match (self.mapping, upload.device) {
            (Mapping::Static { .. }, _) => GATHERED_BYTES,
            (_, Device::Ssd) => SSD_SLICE_BYTES,
            (_, Device::Disk) => DISK.slice_bytes(),
        };
        let bytes = slice.min(upload.bytes - upload.written);
        self.uploads[client].slice = bytes;
        let offset = upload.disk_offset + upload.written;
        let request = DeviceRequest { access: Access::Write, offset, bytes };
        // The class of files has the highest priority. No client waits for the first byte of another upload.
        let is_first = STREAMS[upload.stream] == DataType::Files && upload.bytes <= MAX_UNSLICED_BYTES;
        let urgency = if is_first { Urgency::First } else { Urgency::Stream(client as u32) };
        self.server(upload.device).push(urgency, Job { request, token: client });
        self.start_jobs(upload.device);
    }

    fn done(&mut self, device: Device, client: usize) {
        let now = self.events.now();
        self.server(device).complete(now);
        self.start_jobs(device);
        let upload = &mut self.uploads[client];
        upload.written += upload.slice;
        let upload = *upload;
        self.bytes[upload.stream] += upload.slice;
        if upload.written < upload.bytes {
            return self.write(client);
        }
        self.latencies[upload.stream].push((now - upload.started_at).as_secs_f64());
        self.router.complete(device, upload.bytes);
        self.start(client);
    }

    fn start_jobs(&mut self, device: Device) {
        let now = self.events.now();
        while let Some(started) = self.server(device).start(now) {
            let client = started.token;
            self.events.schedule(started.done_at, Event::Done { device, client });
        }
    }

    fn server(&mut self, device: Device) -> &mut Server<usize> {
        match device {
            Device::Ssd => &mut self.ssd,
            Device::Disk => &mut self.disk,
        }
    }
}
