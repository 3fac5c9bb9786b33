//! The PUTs of the paper's workload against a journal of 10 % of its bytes over a disk that seeks: closed-loop clients, an SSD
//! and a disk that serve one request after another, and the drain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::*;
use crate::class_policy::DataType;
use crate::workload::{Labels, Population, TypedObject};

const CLIENTS: usize = 50;
const SCALE: f64 = 0.05;
const JOURNAL_PERCENT: u64 = 10;
const MAX_OBJECT_FRACTION: u64 = 8;
const CONCURRENCY: usize = 16;
const DELAY_MICROS: u64 = 2_000_000;

/// A device: the time of a request and of each byte. Requests are served in order of arrival.
#[derive(Clone, Copy)]
struct Device {
    request_micros: u64,
    bytes_per_micro: u64,
    free_at: u64,
}

impl Device {
    fn serve(&mut self, now: u64, bytes: u64) -> u64 {
        self.free_at = self.free_at.max(now) + self.request_micros + bytes / self.bytes_per_micro;
        self.free_at
    }
}

#[derive(Clone, Copy)]
struct Write {
    data_type: DataType,
    bytes: u64,
    label: Option<Class>,
}

/// The decisions to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    DiskOnly,
    SsdOnly,
    /// Admission while there is room, the oldest first.
    Room,
    /// [`WriteAdmission`] and [`DirtyLoad::pace`].
    Ranked,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Acknowledged { client: usize, started: u64, write: usize, is_through: bool },
    WrittenBack { bytes: u64 },
    Drain,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    seconds: f64,
    mean_millis: f64,
    /// The mean of the objects of the class of files.
    files_millis: f64,
}

struct Simulation {
    policy: Policy,
    writes: Vec<Write>,
    limit: u64,
    ssd: Device,
    disk: Device,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    next: usize,
    occupied: u64,
    admission: WriteAdmission,
    /// Dirty objects by size class and arrival.
    queued: BTreeMap<u8, VecDeque<Queued>>,
    draining: usize,
    draining_bytes: u64,
    through: usize,
    latencies: Vec<(DataType, u64)>,
}

#[derive(Clone, Copy)]
struct Queued {
    since: u64,
    bytes: u64,
}

/// Objects of the paper at a scale in a random order, with labels.
fn workload(labels: Labels) -> Vec<Write> {
    let mut random = Random(7);
    let populations = DataType::ALL.map(|data_type| (data_type, Population::new(data_type, SCALE)));
    let mut objects: Vec<TypedObject> = populations
        .iter()
        .flat_map(|(data_type, all)| {
            (0..all.count).map(|number| TypedObject { data_type: *data_type, bytes: all.size(number, 0.5) })
        })
        .collect();
    for last in (1..objects.len()).rev() {
        objects.swap(last, random.below(last + 1));
    }
    let labelled = |object: &TypedObject, random: &mut Random| {
        let other = objects[random.below(objects.len())];
        Write { data_type: object.data_type, bytes: object.bytes, label: labels.class(*object, other) }
    };
    objects.iter().map(|object| labelled(object, &mut random)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

impl Simulation {
    fn run(policy: Policy, writes: Vec<Write>) -> Figures {
        let total: u64 = writes.iter().map(|write| write.bytes).sum();
        let mut simulation = Self {
            policy,
            writes,
            limit: total * JOURNAL_PERCENT / 100,
            ssd: Device { request_micros: 100, bytes_per_micro: 210, free_at: 0 },
            // A write to the log and one of data, with the sync between.
            disk: Device { request_micros: 24_000, bytes_per_micro: 140, free_at: 0 },
            events: BinaryHeap::new(),
            sequence: 0,
            next: 0,
            occupied: 0,
            admission: WriteAdmission::default(),
            queued: BTreeMap::new(),
            draining: 0,
            draining_bytes: 0,
            through: 0,
            latencies: Vec::new(),
        };
        simulation.run_to_end()
    }

    fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn run_to_end(&mut self) -> Figures {
        for client in 0..CLIENTS {
            self.begin(client, 0);
        }
        let mut end = 0;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            match event {
                Event::Acknowledged { client, started, write, is_through } => {
                    let Write { data_type, bytes, .. } = self.writes[write];
                    self.latencies.push((data_type, now - started));
                    if is_through {
                        self.through -= 1;
                    } else {
                        let class = crate::class_policy::class_for_size(bytes).value();
                        self.queued.entry(class).or_default().push_back(Queued { since: now, bytes });
                    }
                    if self.latencies.len() == self.writes.len() {
                        end = now;
                        break;
                    }
                    self.begin(client, now);
                }
                Event::WrittenBack { bytes } => {
                    self.occupied -= bytes;
                    self.draining -= 1;
                    self.draining_bytes -= bytes;
                }
                Event::Drain => {}
            }
            self.drain(now);
        }
        let mean = |only: Option<DataType>| {
            let chosen = self
                .latencies
                .iter()
                .filter(|(of, _)| only.is_none_or(|only| only == *of))
                .map(|(_, time)| *time);
            chosen.clone().sum::<u64>() as f64 / chosen.count().max(1) as f64 / 1e3
        };
        Figures {
            seconds: end as f64 / 1e6,
            mean_millis: mean(None),
            files_millis: mean(Some(DataType::Files)),
        }
    }

    fn begin(&mut self, client: usize, now: u64) {
        let write = self.next;
        let Some(&Write { bytes, label, .. }) = self.writes.get(write) else { return };
        self.next += 1;
        let is_through = match self.policy {
            Policy::DiskOnly => true,
            Policy::SsdOnly => false,
            Policy::Room | Policy::Ranked => !self.admits(bytes, label),
        };
        let ended = if is_through {
            self.through += 1;
            self.disk.serve(now, bytes)
        } else {
            self.occupied += bytes;
            self.ssd.serve(now, bytes)
        };
        self.push(ended, Event::Acknowledged { client, started: now, write, is_through });
    }

    fn admits(&mut self, bytes: u64, label: Option<Class>) -> bool {
        if bytes > self.limit / MAX_OBJECT_FRACTION {
            return false;
        }
        let mut allowed = self.limit;
        if self.policy == Policy::Ranked {
            let classes = Classes { object: label, ..Classes::default() };
            let rank = WriteRank::for_object(&ClassPolicyTable::default(), &classes, bytes);
            self.admission.record(rank);
            allowed = self.admission.allowed_bytes(rank, self.limit);
        }
        self.occupied + bytes <= allowed
    }

    fn drain(&mut self, now: u64) {
        if self.policy == Policy::SsdOnly {
            return;
        }
        loop {
            let bytes_percent = u32::try_from(self.occupied * 100 / self.limit).unwrap();
            let through = if self.policy == Policy::Ranked { self.through } else { 0 };
            let load = DirtyLoad { bytes_percent, writes_through: through, ..DirtyLoad::default() };
            let pace = load.pace(CONCURRENCY, Duration::from_micros(DELAY_MICROS));
            if !pace.may_begin(self.draining, self.draining_bytes) {
                return;
            }
            let order = if self.policy == Policy::Ranked { pace.order } else { DrainOrder::Oldest };
            let Some(taken) = self.take(order, pace.min_age, now) else { return };
            self.draining += 1;
            self.draining_bytes += taken.bytes;
            let ended = self.disk.serve(now, taken.bytes);
            self.push(ended, Event::WrittenBack { bytes: taken.bytes });
        }
    }

    fn take(&mut self, order: DrainOrder, min_age: Duration, now: u64) -> Option<Queued> {
        let micros = |age: Duration| u64::try_from(age.as_micros()).unwrap();
        let first =
            |(class, queue): (&u8, &VecDeque<Queued>)| queue.front().map(|first| (first.since, *class));
        let oldest = self.queued.iter().filter_map(first).min()?;
        let class = match order {
            DrainOrder::LargestUnlessAged { max_age } if oldest.0 + micros(max_age) > now => {
                self.queued.iter().rev().find_map(first)?.1
            }
            _ => oldest.1,
        };
        let due = oldest.0 + micros(min_age);
        if due > now {
            self.push(due, Event::Drain);
            return None;
        }
        self.queued.get_mut(&class)?.pop_front()
    }
}

fn ranked(labels: Labels) -> Figures {
    Simulation::run(Policy::Ranked, workload(labels))
}

#[test]
fn labels_make_puts_of_the_papers_workload_faster() {
    let run = |policy| Simulation::run(policy, workload(Labels::On));
    let (disk, room, ssd) = (run(Policy::DiskOnly), run(Policy::Room), run(Policy::SsdOnly));
    let labelled = ranked(Labels::On);
    assert!(ssd.seconds < labelled.seconds && room.seconds < disk.seconds);
    assert!(labelled.seconds < room.seconds * 0.87 && labelled.mean_millis < room.mean_millis * 0.87);
    assert!(labelled.files_millis < room.files_millis * 0.1, "small files do not wait for the disk");
}

#[test]
fn wrong_or_missing_labels_are_no_slower_than_room_alone() {
    let room = Simulation::run(Policy::Room, workload(Labels::Off));
    for labels in Labels::ALL {
        let figures = ranked(labels);
        assert!(figures.seconds <= room.seconds * 1.02, "{labels:?}: {figures:?} against {room:?}");
    }
    let figures = ranked(Labels::Off);
    assert!(figures.files_millis <= room.files_millis, "{figures:?} against {room:?}");
}
