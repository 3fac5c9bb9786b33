//! Forwards packets between the two ends of a link at their due times.
//!
//! A single thread serves both directions: it reads from both ends, delivers what is due, and sleeps only when idle,
//! so that the system calls per packet decrease with load. Wake-up latency is compensated: it delays neither arrivals
//! nor departures.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Link, LinkCounts, drain_time};
use super::link_number::{TUN_PREFIX, link_address, with_free_number};
use super::namespace::in_namespace;
use super::tun_device::{DeviceDrops, TunDevice};
use super::wakeup::WakeupLatency;
use super::{MTU, WanOptions};
use crate::error::{LabError, cannot};

/// Packets read from one end before the other is served.
const READ_BATCH_PACKETS: usize = 64;
/// Maximum packets in flight per direction; more than a sender's unacknowledged packets.
const MAX_IN_FLIGHT_PACKETS: usize = 256 << 10;
/// Maximum buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Relay {
    near: TunDevice,
    far: TunDevice,
    out: Direction,
    back: Direction,
    started: Instant,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    counter: RelayCounter,
}

/// A readable handle on the relay's counters.
#[derive(Debug, Clone)]
pub(super) struct RelayCounter {
    counts: Arc<Mutex<(LinkCounts, LinkCounts)>>,
    device_drops: [Arc<DeviceDrops>; 2],
}

impl RelayCounter {
    fn new(near: &TunDevice, far: &TunDevice) -> Self {
        Self { counts: Arc::default(), device_drops: [near.drops(), far.drops()] }
    }

    /// The counters out and back, including packets dropped by the devices.
    pub fn read(&self) -> (LinkCounts, LinkCounts) {
        let (mut out, mut back) = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        out.missed += self.device_drops[0].packets();
        back.missed += self.device_drops[1].packets();
        (out, back)
    }
}

/// A packet in flight, ordered by arrival time and then by the order of sending.
#[derive(Debug)]
struct InFlightPacket {
    due: Duration,
    number: u64,
    packet: Vec<u8>,
}

impl InFlightPacket {
    const fn order(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for InFlightPacket {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for InFlightPacket {}

impl PartialOrd for InFlightPacket {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlightPacket {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// One direction and its packets in flight.
#[derive(Debug)]
struct Direction {
    link: Link,
    in_flight: BinaryHeap<Reverse<InFlightPacket>>,
    number: u64,
}

impl Direction {
    /// Delivers what is due; returns the time of the next delivery.
    fn deliver(
        &mut self,
        to: &TunDevice,
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<Option<Duration>> {
        while let Some(Reverse(first)) = self.in_flight.peek() {
            if first.due > now {
                return Ok(Some(first.due));
            }
            if let Some(Reverse(InFlightPacket { packet, .. })) = self.in_flight.pop() {
                if !to.send(&packet)? {
                    self.link.count_undelivered(packet.len());
                }
                recycle(packet, spare);
            }
        }
        Ok(None)
    }

    /// Drops all packets in flight and counts them as missed.
    fn drop_in_flight(&mut self) {
        for Reverse(InFlightPacket { packet, .. }) in self.in_flight.drain() {
            self.link.count_undelivered(packet.len());
        }
    }

    /// Reads available packets, of which the first arrived at `came`. Returns true if it stopped at the batch limit.
    fn take(
        &mut self,
        from: &TunDevice,
        (started, mut came): (Instant, Duration),
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<bool> {
        for _ in 0..READ_BATCH_PACKETS {
            let mut packet = spare.pop().unwrap_or_default();
            packet.resize(usize::from(MTU), 0);
            let Some(length) = from.receive(&mut packet)? else {
                recycle(packet, spare);
                return Ok(false);
            };
            packet.truncate(length);
            if self.in_flight.len() >= MAX_IN_FLIGHT_PACKETS {
                self.link.count_missed(1);
                recycle(packet, spare);
            } else if let Some(due) = self.link.offer(came, length) {
                self.number += 1;
                self.in_flight.push(Reverse(InFlightPacket { due, number: self.number, packet }));
            } else {
                recycle(packet, spare);
            }
            came = started.elapsed();
        }
        Ok(true)
    }
}

fn recycle(packet: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    if spare.len() < MAX_SPARE_BUFFERS {
        spare.push(packet);
    }
}

impl Relay {
    /// Creates a link of TUN devices between the thread's namespace and another one; returns the address of the far
    /// end.
    pub fn create(options: WanOptions, far_namespace: &File) -> Result<(Self, Ipv4Addr), LabError> {
        let device = |number| {
            let made = TunDevice::create(format!("{TUN_PREFIX}{number}"));
            made.map_err(cannot("create a TUN device (/dev/net/tun)"))
        };
        let far_end = |number| {
            let far = device(number)?;
            far.configure(link_address(number, 1)).map_err(cannot("set up the far end of the link"))?;
            Ok((far, number))
        };
        let (far, number) = in_namespace(far_namespace, || with_free_number(far_end))
            .map_err(cannot("enter the namespace of the far end"))?
            .map_err(cannot("find free addresses for the link"))??;
        let near = device(number)?;
        near.configure(link_address(number, 2)).map_err(cannot("set up the near end of the link"))?;
        near.route_all_through().map_err(cannot("set up the route through the link"))?;
        Ok((Self::new(near, far, options), link_address(number, 1)))
    }

    fn new(near: TunDevice, far: TunDevice, options: WanOptions) -> Self {
        let direction = |options, seed| Direction {
            link: Link::new(options, seed),
            in_flight: BinaryHeap::new(),
            number: 0,
        };
        // Independent losses and jitter per direction.
        let (out, back) = (direction(options.out, options.seed), direction(options.back, !options.seed));
        let (started, spare, counter) = (Instant::now(), Vec::new(), RelayCounter::new(&near, &far));
        Self { near, far, out, back, started, spare, counter }
    }

    /// Forwards packets until `ended` is readable. If `lingers` is set, it then also delivers the last packets, such
    /// as connection teardown.
    pub fn run(&mut self, ended: BorrowedFd<'_>, lingers: bool) -> io::Result<()> {
        let (mut until, mut is_busy, mut lateness) = (None, false, WakeupLatency::new());
        loop {
            let now = self.started.elapsed();
            if until.is_some_and(|until| now >= until) {
                self.abort();
                return Ok(());
            }
            let out = self.out.deliver(&self.far, now, &mut self.spare)?;
            let back = self.back.deliver(&self.near, now, &mut self.spare)?;
            self.publish_counts();
            let next = [out, back, until].into_iter().flatten().min();
            let asleep = self.started.elapsed();
            let sleep = if is_busy {
                Some(Duration::ZERO)
            } else {
                next.map(|due| lateness.sleep_duration(asleep, due))
            };
            let timeout = sleep.and_then(|sleep| Timespec::try_from(sleep).ok());
            let mut descriptors = [
                PollFd::new(&self.near, PollFlags::IN),
                PollFd::new(&self.far, PollFlags::IN),
                PollFd::from_borrowed_fd(ended, PollFlags::IN),
            ];
            // `ended` stays readable; polling it again would spin.
            let awaited = if until.is_none() { &mut descriptors[..] } else { &mut descriptors[..2] };
            let ready = match poll(awaited, timeout.as_ref()) {
                Ok(ready) => Some(ready),
                Err(rustix::io::Errno::INTR) => None,
                Err(e) => return Err(e.into()),
            };
            let woken = self.started.elapsed();
            let slept = sleep.filter(|sleep| !sleep.is_zero());
            if let (Some(slept), Some(0)) = (slept, ready) {
                lateness.record(asleep + slept, woken);
            }
            if !descriptors[2].revents().is_empty() {
                if !lingers {
                    self.abort();
                    return Ok(());
                }
                until = Some(woken + self.drain_time(woken));
            }
            let came = if sleep == Some(Duration::ZERO) { woken } else { lateness.event_time(asleep, woken) };
            let came = (self.started, came);
            let [near, far] = [0, 1].map(|n: usize| !descriptors[n].revents().is_empty());
            is_busy = near && self.out.take(&self.near, came, &mut self.spare)?;
            is_busy |= far && self.back.take(&self.far, came, &mut self.spare)?;
        }
    }

    fn drain_time(&self, now: Duration) -> Duration {
        let [out, back] = [&self.out.link, &self.back.link];
        drain_time(out.queue_delay(now).max(back.queue_delay(now)), [out.max_delay(), back.max_delay()])
    }

    /// Stops forwarding: packets still in flight count as missed. Publishes the final counters even if a reader holds
    /// the lock.
    fn abort(&mut self) {
        self.out.drop_in_flight();
        self.back.drop_in_flight();
        *self.counter.counts.lock().unwrap_or_else(PoisonError::into_inner) = self.counts();
    }

    /// Publishes the counters, unless a reader holds the lock: packets do not wait for it.
    fn publish_counts(&self) {
        if let Ok(mut published) = self.counter.counts.try_lock() {
            *published = self.counts();
        }
    }

    const fn counts(&self) -> (LinkCounts, LinkCounts) {
        (self.out.link.counts(), self.back.link.counts())
    }

    /// A handle on its counters.
    pub fn counter(&self) -> RelayCounter {
        self.counter.clone()
    }
}
