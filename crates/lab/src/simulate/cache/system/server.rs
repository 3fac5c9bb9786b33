//! A device or a link of a node, with its queue.

use std::collections::VecDeque;
use std::time::Duration;

use tradewind_model::slices::{DiskSpeed, SliceQueue, Urgency};

use crate::device_model::{Access, DeviceModel, DeviceProfile, DeviceRequest, FlashParams, Medium};

const MEGA: u64 = 1_000_000;
/// The paper's link: 1 Gbit/s, of which GETs of the all-SSD system used 347 MB/s on four nodes.
const LINK_BYTES_PER_SECOND: u64 = 87 * MEGA;
/// The disk, as far as Tradewind's slices depend on it.
pub(super) const DISK: DiskSpeed =
    DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140 * MEGA };
pub(super) const SSD_WRITE_BYTES_PER_SECOND: u64 = 210 * MEGA;

/// The parts of a node that serve requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Ssd,
    Disk,
    LinkIn,
    LinkOut,
}

impl Part {
    pub const ALL: [Self; 4] = [Self::Ssd, Self::Disk, Self::LinkIn, Self::LinkOut];

    fn medium(self) -> Medium {
        match self {
            Self::Ssd => DeviceProfile::ChenSsd.medium(),
            Self::Disk => DeviceProfile::ChenHdd.medium(),
            Self::LinkIn | Self::LinkOut => Medium::Flash(FlashParams {
                units: 1,
                read_latency: Duration::ZERO,
                write_latency: Duration::ZERO,
                latency_jitter: Duration::ZERO,
                read_bytes_per_second: LINK_BYTES_PER_SECOND,
                write_bytes_per_second: LINK_BYTES_PER_SECOND,
            }),
        }
    }

    /// Concurrent requests in service; the others wait in the queue.
    fn depth(self) -> usize {
        if self == Self::Ssd { 4 } else { 1 }
    }
}

/// The order in which requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueOrder {
    Fifo,
    Slices,
}

#[derive(Debug)]
enum Queue<T> {
    Fifo(VecDeque<T>),
    Slices(SliceQueue<T>),
}

/// A request in a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<T> {
    pub request: DeviceRequest,
    pub token: T,
}

/// A request that is now in service.
#[derive(Debug)]
pub(super) struct Started<T> {
    pub token: T,
    pub done_at: Duration,
}

/// A device or link with its queue.
#[derive(Debug)]
pub(super) struct Server<T> {
    model: DeviceModel,
    queue: Queue<Job<T>>,
    depth: usize,
    in_service: usize,
    busy_since: Duration,
    /// Time with a request in service.
    pub busy: Duration,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl<T> Server<T> {
    pub fn new(part: Part, order: QueueOrder, seed: u64) -> Self {
        Self {
            model: DeviceModel::new(part.medium(), seed),
            queue: match order {
                QueueOrder::Fifo => Queue::Fifo(VecDeque::new()),
                QueueOrder::Slices => Queue::Slices(SliceQueue::new()),
            },
            depth: part.depth(),
            in_service: 0,
            busy_since: Duration::ZERO,
            busy: Duration::ZERO,
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    pub fn push(&mut self, urgency: Urgency, job: Job<T>) {
        match &mut self.queue {
            Queue::Fifo(queue) => queue.push_back(job),
            Queue::Slices(queue) => queue.push(urgency, job),
        }
    }

    /// Starts the next request, if the queue has one and it may be served now. Its completion must be reported.
    pub fn start(&mut self, now: Duration) -> Option<Started<T>> {
        if self.in_service >= self.depth {
            return None;
        }
        let job = match &mut self.queue {
            Queue::Fifo(queue) => queue.pop_front(),
            Queue::Slices(queue) => queue.pop(),
        }?;
        if self.in_service == 0 {
            self.busy_since = now;
        }
        self.in_service += 1;
        match job.request.access {
            Access::Read => self.bytes_read += job.request.bytes,
            Access::Write => self.bytes_written += job.request.bytes,
        }
        Some(Started { token: job.token, done_at: self.model.submit(now, job.request) })
    }

    /// A request in service is complete.
    pub fn complete(&mut self, now: Duration) {
        self.in_service -= 1;
        if self.in_service == 0 {
            self.busy += now - self.busy_since;
        }
    }
}
