//! Carries packets between the two ends of a link, each when it is due.

use std::collections::VecDeque;
use std::io;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::device::Device;
use super::link::{Counts, Link};
use super::{MTU, WanOptions};

/// Packets that are read of one end before the other has its turn.
const AT_ONCE: usize = 64;
/// Packets under way at a time, at the most, in each direction: what a sender may have unacknowledged is less.
const MOST_UNDER_WAY: usize = 256 << 10;

/// So much longer than a round trip packets are carried when the command has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Relay {
    near: Device,
    far: Device,
    out: Way,
    back: Way,
    begun: Instant,
    /// Buffers that carried a packet before.
    spare: Vec<Vec<u8>>,
}

/// One direction: what is under way, in the order of arrival.
#[derive(Debug)]
struct Way {
    link: Link,
    under_way: VecDeque<(Duration, Vec<u8>)>,
}

impl Way {
    /// Gives out what is due; answers when the next one is.
    fn deliver(
        &mut self,
        to: &Device,
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<Option<Duration>> {
        while let Some((due, _)) = self.under_way.front() {
            if *due > now {
                return Ok(Some(*due));
            }
            if let Some((_, packet)) = self.under_way.pop_front() {
                to.send(&packet)?;
                spare.push(packet);
            }
        }
        Ok(None)
    }

    /// Takes packets that are there.
    fn take(&mut self, from: &Device, begun: Instant, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let mut packet = spare.pop().unwrap_or_default();
            packet.resize(usize::from(MTU), 0);
            let Some(length) = from.receive(&mut packet)? else {
                spare.push(packet);
                break;
            };
            packet.truncate(length);
            match self.link.offer(begun.elapsed(), length) {
                Some(due) if self.under_way.len() < MOST_UNDER_WAY => self.under_way.push_back((due, packet)),
                _ => spare.push(packet),
            }
        }
        Ok(())
    }
}

impl Relay {
    pub fn new(near: Device, far: Device, options: WanOptions) -> Self {
        let way = |options| Way { link: Link::new(options), under_way: VecDeque::new() };
        let (out, back) = (way(options.out), way(options.back));
        Self { near, far, out, back, begun: Instant::now(), spare: Vec::new() }
    }

    /// Carries packets until the child ends, and what it said last: that it has closed its connections.
    pub fn run(&mut self, child: &Child) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(child.id().cast_signed()) else {
            return Err(io::Error::other("a process without a number"));
        };
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let mut until = None;
        loop {
            let now = self.begun.elapsed();
            if until.is_some_and(|until| now >= until) {
                return Ok(());
            }
            let out = self.out.deliver(&self.far, now, &mut self.spare)?;
            let back = self.back.deliver(&self.near, now, &mut self.spare)?;
            let next = [out, back, until].into_iter().flatten().min();
            let wait = next.map(|due| due.saturating_sub(self.begun.elapsed()));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            let mut descriptors = [
                PollFd::new(&self.near, PollFlags::IN),
                PollFd::new(&self.far, PollFlags::IN),
                PollFd::new(&ended, PollFlags::IN),
            ];
            // Once it has ended it would always say so.
            let awaited = if until.is_none() { &mut descriptors[..] } else { &mut descriptors[..2] };
            match poll(awaited, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if !descriptors[2].revents().is_empty() {
                // There and back once more, and a little for those who answer.
                until =
                    Some(self.begun.elapsed() + self.out.link.delay() + self.back.link.delay() + LAST_WORDS);
            }
            let [near, far] = [0, 1].map(|n: usize| !descriptors[n].revents().is_empty());
            if near {
                self.out.take(&self.near, self.begun, &mut self.spare)?;
            }
            if far {
                self.back.take(&self.far, self.begun, &mut self.spare)?;
            }
        }
    }

    /// What went out, and what came back.
    pub const fn counts(&self) -> (Counts, Counts) {
        (self.out.link.counts(), self.back.link.counts())
    }
}

/// Has the calling thread run as soon as it wants to, whatever else there is to do.
pub(super) fn before_others() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 5 };
    // SAFETY: the parameter lives for the call, which concerns the calling thread only.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
