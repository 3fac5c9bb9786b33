//! Speed and CPU time of MD5 by number of streams and size of update, compared with the `md-5` crate.
//!
//! Every line is the median of several runs that alternate with those of the other cases. "flooded" hands over all
//! updates at once; "paced" distributes them over the streams in turn at a given rate, like a server. CPU time is that
//! of the hashing threads; the feeding thread is reported separately.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use md5::Digest;
use rustix::time::{ClockId, clock_gettime};
use tradewind_digest::Engine;

const ROUNDS: usize = 7;
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// One run: bytes hashed, elapsed time, CPU time of the whole process and of the feeding thread.
#[derive(Clone, Copy)]
struct Run {
    bytes: usize,
    passed: Duration,
    process: Duration,
    feeder: Duration,
}

/// A case to measure, with its name.
type Case = (String, Box<dyn Fn() -> Run>);

fn main() {
    let streams = [1, 2, 3, 4, 8, 16, 32];
    println!("{:<34} {:>8} {:>14} {:>16}", "", "GB/s", "CPU-s/GB hash", "CPU-s/GB feeder");
    for update in [64 * KIB, 256 * KIB] {
        let flooded: Vec<_> = streams.map(|n| move || flood(n, update)).into();
        let mut cases: Vec<Case> =
            vec![(format!("md-5 crate, {} KiB", update / KIB), Box::new(move || crate_alone(update)))];
        for (count, run) in streams.iter().zip(flooded) {
            cases.push((format!("flooded, {count} x {} KiB", update / KIB), Box::new(run)));
        }
        cases.push((
            format!("flooded, 1 x {} KiB, 100 idle", update / KIB),
            Box::new(move || flood_with_idle_streams(update)),
        ));
        report(&cases);
    }
    for (rate, update) in [(400, 64 * KIB), (1000, 64 * KIB), (1000, 256 * KIB), (2000, 64 * KIB)] {
        let cases: Vec<Case> = streams
            .iter()
            .filter(|count| **count > 1 || rate < 800)
            .map(|&count| -> Case {
                let name = format!("paced {rate} MB/s, {count} x {} KiB", update / KIB);
                (name, Box::new(move || pace(count, update, rate)))
            })
            .collect();
        report(&cases);
    }
}

fn report(cases: &[Case]) {
    let mut runs = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, case), runs) in cases.iter().zip(&mut runs) {
            runs.push(case());
        }
    }
    for ((name, _), runs) in cases.iter().zip(&runs) {
        let speed = median(runs.iter().map(|run| run.bytes as f64 / run.passed.as_secs_f64() / 1e9));
        let hashing = median(
            runs.iter()
                .map(|run| run.process.saturating_sub(run.feeder).as_secs_f64() / run.bytes as f64 * 1e9),
        );
        let feeding = median(runs.iter().map(|run| run.feeder.as_secs_f64() / run.bytes as f64 * 1e9));
        println!("{name:<34} {speed:>8.2} {hashing:>14.3} {feeding:>16.3}");
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures `stats`, which returns the number of bytes hashed.
fn measure(work: impl FnOnce() -> usize) -> Run {
    let (started, process, feeder) =
        (Instant::now(), cpu_time(ClockId::ProcessCPUTime), cpu_time(ClockId::ThreadCPUTime));
    let bytes = work();
    Run {
        bytes,
        passed: started.elapsed(),
        process: cpu_time(ClockId::ProcessCPUTime) - process,
        feeder: cpu_time(ClockId::ThreadCPUTime) - feeder,
    }
}

fn cpu_time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("CPU time is positive")
}

/// Buffers like those of a server, enough of them to exceed the L1 and L2 caches.
fn buffers(update: usize) -> Vec<Bytes> {
    (0..8 * MIB / update).map(|seed| Bytes::from(vec![seed as u8; update])).collect()
}

fn crate_alone(update: usize) -> Run {
    let buffers = buffers(update);
    let hashed = measure(|| {
        let mut plain = md5::Md5::new();
        for buffer in buffers.iter().cycle().take(64 * MIB / update) {
            plain.update(buffer);
        }
        std::hint::black_box(plain.finalize());
        64 * MIB
    });
    Run { process: hashed.feeder, feeder: Duration::ZERO, ..hashed }
}

fn flood(count: usize, update: usize) -> Run {
    let engine = Engine::start(1).expect("a hashing thread starts");
    let buffers = buffers(update);
    let each = 64 * MIB * count.min(4) / count / update;
    measure(|| {
        let mut streams: Vec<_> = (0..count).map(|_| engine.stream()).collect();
        let mut buffer = buffers.iter().cycle();
        for _ in 0..each {
            for stream in &mut streams {
                stream.update(buffer.next().expect("a cycle does not end").clone());
            }
        }
        let finishes: Vec<_> = streams.into_iter().map(|stream| stream.finish()).collect();
        for finish in finishes {
            std::hint::black_box(futures::executor::block_on(finish));
        }
        count * each * update
    })
}

/// One urgent stream among many idle ones, for which it must not be delayed.
fn flood_with_idle_streams(update: usize) -> Run {
    let engine = Engine::start(1).expect("a hashing thread starts");
    let _idle: Vec<_> = (0..100).map(|_| engine.stream()).collect();
    let buffers = buffers(update);
    measure(|| {
        let mut stream = engine.stream();
        for buffer in buffers.iter().cycle().take(64 * MIB / update) {
            stream.update(buffer.clone());
            futures::executor::block_on(stream.drained(4 * update));
        }
        std::hint::black_box(futures::executor::block_on(stream.finish()));
        64 * MIB
    })
}

/// Objects of 1 MiB on `count` streams, fed in turn at `rate` MB/s.
fn pace(count: usize, update: usize, rate: usize) -> Run {
    let engine = Engine::start(1).expect("a hashing thread starts");
    let buffers = buffers(update);
    let total = 192 * MIB / update;
    measure(|| {
        let mut buffer = buffers.iter().cycle();
        let mut streams: Vec<_> = (0..count).map(|number| (engine.stream(), number * MIB / count)).collect();
        let mut finishes = Vec::new();
        let started = Instant::now();
        for number in 0..total {
            let due = Duration::from_secs_f64((number * update) as f64 / rate as f64 / 1e6);
            let early = due.saturating_sub(started.elapsed());
            if early > Duration::from_micros(60) {
                std::thread::sleep(early);
            }
            let (stream, fed) = &mut streams[number % count];
            stream.update(buffer.next().expect("a cycle does not end").clone());
            *fed += update;
            if *fed >= MIB {
                *fed = 0;
                finishes.push(std::mem::replace(stream, engine.stream()).finish());
            }
            if finishes.len() >= 2 * count {
                std::hint::black_box(futures::executor::block_on(finishes.remove(0)));
            }
        }
        for finish in finishes {
            std::hint::black_box(futures::executor::block_on(finish));
        }
        total * update
    })
}
