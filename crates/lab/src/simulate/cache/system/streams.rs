//! Large streams and small misses on one disk: what slices leave of its sequential rate, and how long a miss waits.

use std::time::Duration;

use fastrand::Rng;
use tradewind_model::slices::Urgency;

use super::server::{DISK, Job, Part, QueueOrder, Server};
use crate::device_model::{Access, DeviceRequest};
use crate::simulate::event_loop::EventLoop;

/// Bytes of a small miss.
const MISS_BYTES: u64 = 64 << 10;
/// Distance between streams on the disk.
const STREAM_SPACING_BYTES: u64 = 50_000_000_000;

/// The result of [`simulate`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamsReport {
    /// Bytes per second of all streams, relative to the disk's sequential rate.
    pub sequential_share: f64,
    /// Time for which a slice holds the disk.
    pub slice_seconds: f64,
    /// The longest time that a small miss waited for its turn.
    pub max_miss_wait_seconds: f64,
    /// Small misses.
    pub misses: u64,
}

/// Reads `streams` large objects at once for some simulated time, with a small miss after each `miss_interval`.
#[must_use]
pub fn simulate(streams: usize, miss_interval: Duration, duration: Duration, seed: u64) -> StreamsReport {
    let mut run = StreamsRun {
        events: EventLoop::new(),
        disk: Server::new(Part::Disk, QueueOrder::Slices, seed),
        positions: (0..streams as u64).map(|stream| stream * STREAM_SPACING_BYTES).collect(),
        bytes: 0,
        misses: 0,
        max_wait: Duration::ZERO,
        rng: Rng::with_seed(seed),
    };
    run.events.schedule(duration, Event::End);
    run.events.schedule(miss_interval, Event::Miss);
    (0..streams).for_each(|stream| run.read_slice(stream));
    loop {
        match run.events.next_event() {
            Some(Event::Done(reader)) => run.done(reader),
            Some(Event::Miss) => {
                run.miss();
                run.events.schedule(run.events.now() + miss_interval, Event::Miss);
            }
            Some(Event::End) | None => break,
        }
    }
    StreamsReport {
        sequential_share: run.bytes as f64 / duration.as_secs_f64() / DISK.bytes_per_second as f64,
        slice_seconds: DISK.slice_time().as_secs_f64(),
        max_miss_wait_seconds: run.max_wait.as_secs_f64(),
        misses: run.misses,
    }
}

#[derive(Debug, Clone, Copy)]
enum Reader {
    Stream(usize),
    Miss { since: Duration },
}

#[derive(Debug)]
enum Event {
    Done(Reader),
    Miss,
    End,
}

struct StreamsRun {
    events: EventLoop<Event>,
    disk: Server<Reader>,
    positions: Vec<u64>,
    bytes: u64,
    misses: u64,
    max_wait: Duration,
    rng: Rng,
}

impl StreamsRun {
    fn read_slice(&mut self, stream: usize) {
        let request =
            DeviceRequest { access: Access::Read, offset: self.positions[stream], bytes: DISK.slice_bytes() };
        self.positions[stream] += request.bytes;
        self.push(Urgency::Stream(stream as u32), Job { request, token: Reader::Stream(stream) });
    }

    fn miss(&mut self) {
        let offset = self.rng.u64(..STREAM_SPACING_BYTES) / MISS_BYTES * MISS_BYTES;
        let request = DeviceRequest { access: Access::Read, offset, bytes: MISS_BYTES };
        self.misses += 1;
        self.push(Urgency::First, Job { request, token: Reader::Miss { since: self.events.now() } });
    }

    fn push(&mut self, urgency: Urgency, job: Job<Reader>) {
        self.disk.push(urgency, job);
        self.start();
    }

    fn start(&mut self) {
        let now = self.events.now();
        while let Some(started) = self.disk.start(now) {
            if let Reader::Miss { since } = started.token {
                self.max_wait = self.max_wait.max(now - since);
            }
            self.events.schedule(started.done_at, Event::Done(started.token));
        }
    }

    fn done(&mut self, reader: Reader) {
        self.disk.complete(self.events.now());
        if let Reader::Stream(stream) = reader {
            self.bytes += DISK.slice_bytes();
            self.read_slice(stream);
        } else {
            self.start();
        }
    }
}
