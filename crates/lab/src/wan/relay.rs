//! Carries packets between the two ends of a link, each when it is due.
//!
//! One thread for both directions: it reads what is there of one end and of the other, gives out what is due, and sleeps only
//! when there was nothing to do, so that the busier the link is the fewer calls a packet costs. For the time that it takes to
//! wake, packets neither come nor leave later.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::device::{Device, Refusals};
use super::link::{Counts, Link, last_words};
use super::namespace::within;
use super::number::{TUN, address, with_free};
use super::wake::Lateness;
use super::{MTU, WanOptions};
use crate::failed::{Failed, failed};

/// Packets that are read of one end before the other has its turn.
const AT_ONCE: usize = 64;
/// Packets under way at a time, at the most, in each direction: what a sender may have unacknowledged is less.
const MOST_UNDER_WAY: usize = 256 << 10;
/// Buffers that are kept for packets to come.
const MOST_SPARE: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Relay {
    near: Device,
    far: Device,
    out: Way,
    back: Way,
    begun: Instant,
    /// Buffers that carried a packet before.
    spare: Vec<Vec<u8>>,
    gauge: Gauge,
}

/// What a relay carried so far, for others to look at while it runs.
#[derive(Debug, Clone)]
pub(super) struct Gauge {
    carried: Arc<Mutex<(Counts, Counts)>>,
    refused: [Arc<Refusals>; 2],
}

impl Gauge {
    fn new(near: &Device, far: &Device) -> Self {
        Self { carried: Arc::default(), refused: [near.refusals(), far.refusals()] }
    }

    /// Out, and back, with what the devices had to refuse.
    pub fn read(&self) -> (Counts, Counts) {
        let (mut out, mut back) = *self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        out.missed += self.refused[0].packets();
        back.missed += self.refused[1].packets();
        (out, back)
    }
}

/// A packet that arrives at a time. Of those that arrive together the first that was sent is the first.
#[derive(Debug)]
struct UnderWay {
    due: Duration,
    number: u64,
    packet: Vec<u8>,
}

impl UnderWay {
    const fn order(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// One direction, and what is under way in it.
#[derive(Debug)]
struct Way {
    link: Link,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    number: u64,
}

impl Way {
    /// Gives out what is due; answers when the next one is.
    fn deliver(
        &mut self,
        to: &Device,
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<Option<Duration>> {
        while let Some(Reverse(first)) = self.under_way.peek() {
            if first.due > now {
                return Ok(Some(first.due));
            }
            if let Some(Reverse(UnderWay { packet, .. })) = self.under_way.pop() {
                if !to.send(&packet)? {
                    self.link.refused(packet.len());
                }
                keep(packet, spare);
            }
        }
        Ok(None)
    }

    /// Loses what is under way, which counts as missed.
    fn lose(&mut self) {
        for Reverse(UnderWay { packet, .. }) in self.under_way.drain() {
            self.link.refused(packet.len());
        }
    }

    /// Takes packets that are there, the first of which came at a time; answers whether there were as many as it takes at once.
    fn take(
        &mut self,
        from: &Device,
        (begun, mut came): (Instant, Duration),
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<bool> {
        for _ in 0..AT_ONCE {
            let mut packet = spare.pop().unwrap_or_default();
            packet.resize(usize::from(MTU), 0);
            let Some(length) = from.receive(&mut packet)? else {
                keep(packet, spare);
                return Ok(false);
            };
            packet.truncate(length);
            if self.under_way.len() >= MOST_UNDER_WAY {
                self.link.miss(1);
                keep(packet, spare);
            } else if let Some(due) = self.link.offer(came, length) {
                self.number += 1;
                self.under_way.push(Reverse(UnderWay { due, number: self.number, packet }));
            } else {
                keep(packet, spare);
            }
            came = begun.elapsed();
        }
        Ok(true)
    }
}

fn keep(packet: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    if spare.len() < MOST_SPARE {
        spare.push(packet);
    }
}

impl Relay {
    /// Makes a link of TUN devices between the thread's namespace and another one; answers the address of the far end.
    pub fn make(options: WanOptions, far_namespace: &File) -> Result<(Self, Ipv4Addr), Failed> {
        let device = |number| {
            let made = Device::create(format!("{TUN}{number}"));
            made.map_err(failed("make a TUN device (/dev/net/tun)"))
        };
        let far_end = |number| {
            let far = device(number)?;
            far.configure(address(number, 1)).map_err(failed("set up the far end of the link"))?;
            Ok((far, number))
        };
        let (far, number) = within(far_namespace, || with_free(far_end))
            .map_err(failed("enter the namespace of the far end"))?
            .map_err(failed("find free addresses for the link"))??;
        let near = device(number)?;
        near.configure(address(number, 2)).map_err(failed("set up the near end of the link"))?;
        near.route_all_through().map_err(failed("set up the road through the link"))?;
        Ok((Self::new(near, far, options), address(number, 1)))
    }

    fn new(near: Device, far: Device, options: WanOptions) -> Self {
        let way =
            |options, seed| Way { link: Link::new(options, seed), under_way: BinaryHeap::new(), number: 0 };
        // Each direction has its own fate.
        let (out, back) = (way(options.out, options.seed), way(options.back, !options.seed));
        let (begun, spare, gauge) = (Instant::now(), Vec::new(), Gauge::new(&near, &far));
        Self { near, far, out, back, begun, spare, gauge }
    }

    /// Carries packets until `ended` can be read. Where it `lingers`, it carries what was said last too: that connections are
    /// closed.
    pub fn run(&mut self, ended: BorrowedFd<'_>, lingers: bool) -> io::Result<()> {
        let (mut until, mut is_busy, mut lateness) = (None, false, Lateness::new());
        loop {
            let now = self.begun.elapsed();
            if until.is_some_and(|until| now >= until) {
                self.break_off();
                return Ok(());
            }
            let out = self.out.deliver(&self.far, now, &mut self.spare)?;
            let back = self.back.deliver(&self.near, now, &mut self.spare)?;
            self.show();
            let next = [out, back, until].into_iter().flatten().min();
            let asleep = self.begun.elapsed();
            let sleep =
                if is_busy { Some(Duration::ZERO) } else { next.map(|due| lateness.sleep(asleep, due)) };
            let timeout = sleep.and_then(|sleep| Timespec::try_from(sleep).ok());
            let mut descriptors = [
                PollFd::new(&self.near, PollFlags::IN),
                PollFd::new(&self.far, PollFlags::IN),
                PollFd::from_borrowed_fd(ended, PollFlags::IN),
            ];
            // Once it has ended it would always say so.
            let awaited = if until.is_none() { &mut descriptors[..] } else { &mut descriptors[..2] };
            let ready = match poll(awaited, timeout.as_ref()) {
                Ok(ready) => Some(ready),
                Err(rustix::io::Errno::INTR) => None,
                Err(e) => return Err(e.into()),
            };
            let woken = self.begun.elapsed();
            let slept = sleep.filter(|sleep| !sleep.is_zero());
            if let (Some(slept), Some(0)) = (slept, ready) {
                lateness.learn(asleep + slept, woken);
            }
            if !descriptors[2].revents().is_empty() {
                if !lingers {
                    self.break_off();
                    return Ok(());
                }
                until = Some(woken + self.last_words(woken));
            }
            let came = if sleep == Some(Duration::ZERO) { woken } else { lateness.happened(asleep, woken) };
            let came = (self.begun, came);
            let [near, far] = [0, 1].map(|n: usize| !descriptors[n].revents().is_empty());
            is_busy = near && self.out.take(&self.near, came, &mut self.spare)?;
            is_busy |= far && self.back.take(&self.far, came, &mut self.spare)?;
        }
    }

    fn last_words(&self, now: Duration) -> Duration {
        let [out, back] = [&self.out.link, &self.back.link];
        last_words(out.waits(now).max(back.waits(now)), [out.longest_delay(), back.longest_delay()])
    }

    /// What is still under way does not arrive: somebody sent to the end. What was carried is shown in any case, for the last time.
    fn break_off(&mut self) {
        self.out.lose();
        self.back.lose();
        *self.gauge.carried.lock().unwrap_or_else(PoisonError::into_inner) = self.carried();
    }

    /// Shows what was carried, unless somebody looks just now: packets do not wait for that.
    fn show(&self) {
        if let Ok(mut carried) = self.gauge.carried.try_lock() {
            *carried = self.carried();
        }
    }

    const fn carried(&self) -> (Counts, Counts) {
        (self.out.link.counts(), self.back.link.counts())
    }

    /// What it carries, to be looked at from elsewhere.
    pub fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }
}
