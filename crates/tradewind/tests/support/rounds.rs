//! Rounds of work and disaster: start, look, work, strike; and at the end a clean stop and a full check of
//! the store. What differs between a killed process and a lost power is only the strike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::model::Model;
use super::random::Random;
use super::s3::S3;
use super::server::{self, Server, Start};
use super::verify::verify;
use super::workload::{self, BUCKETS, Workload};

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    pub rounds: u64,
    pub seed: u64,
    pub workers: u64,
    /// The longest a server lives under work.
    pub longest: Duration,
}

/// What all rounds together wrote.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Bytes of segments at the end.
    pub on_disk: u64,
}

impl Rounds {
    /// As the variables say: `{prefix}_ROUNDS` and `{prefix}_SEED`.
    pub fn from_environment(prefix: &str, rounds: u64) -> Self {
        let read = |name: &str| {
            let value = std::env::var(format!("{prefix}_{name}")).ok()?;
            Some(value.parse().unwrap_or_else(|_| panic!("{prefix}_{name} must be a number")))
        };
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Self {
            rounds: read("ROUNDS").unwrap_or(rounds),
            seed: read("SEED").unwrap_or(u64::from(clock.subsec_nanos())),
            workers: 8,
            longest: Duration::from_millis(1200),
        }
    }

    /// Runs them. `strike` takes the server away, by the randomness given; it sets the flag just before.
    pub fn run(
        self,
        start: &Start,
        mut strike: impl FnMut(&mut Server, &mut Random, &Workload<'_>),
        mut before_start: impl FnMut(u64, &mut Random),
    ) -> Written {
        let began = Instant::now();
        let model = Model::default();
        let credentials = server::root_key();
        let mut random = Random::new(self.seed);
        let mut slowest_start = Duration::ZERO;
        for round in 0..self.rounds {
            before_start(round, &mut random);
            let starting = Instant::now();
            let mut server = start.start().unwrap_or_else(|error| self.fail(round, &[error.to_string()], ""));
            slowest_start = slowest_start.max(starting.elapsed());
            if round == 0 {
                let mut client = S3::new(server.endpoint, credentials.clone());
                for bucket in BUCKETS {
                    let made = client.put(bucket, &[]).expect("the first request is answered");
                    assert_eq!(made.status, 200, "{}", made.text());
                }
            }
            let wrong = verify(server.endpoint, &credentials, &model, random.next());
            if !wrong.is_empty() {
                self.fail(round, &wrong, &server.logged());
            }
            let workload = Workload {
                address: server.endpoint,
                credentials: credentials.clone(),
                model: &model,
                is_struck: AtomicBool::new(false),
                was_full: AtomicBool::new(false),
            };
            let life = random.below(u64::try_from(self.longest.as_millis()).unwrap());
            let work_seed = random.next();
            let wrong = workload::run(&workload, self.workers, work_seed, || {
                std::thread::sleep(Duration::from_millis(life));
                strike(&mut server, &mut random, &workload);
                assert!(workload.is_struck.load(Ordering::SeqCst), "the strike must say so");
            });
            if !wrong.is_empty() {
                self.fail(round, &wrong, &server.logged());
            }
        }
        before_start(self.rounds, &mut random);
        let mut server =
            start.start().unwrap_or_else(|error| self.fail(self.rounds, &[error.to_string()], ""));
        let wrong = verify(server.endpoint, &credentials, &model, random.next());
        if !wrong.is_empty() {
            self.fail(self.rounds, &wrong, &server.logged());
        }
        let status = server.terminate().expect("it ends");
        assert!(status.success(), "a clean stop ends with {status}:\n{}", server.logged());
        let data = start.data.to_str().expect("a plain path");
        let check = server::run(&["store", "check", data]);
        assert!(
            check.status.success(),
            "store check after all ({}): {}{}",
            check.status,
            String::from_utf8_lossy(&check.stdout),
            String::from_utf8_lossy(&check.stderr)
        );
        let stats = server::run(&["store", "stats", data, "--json"]);
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).expect("it is JSON");
        let on_disk = stats["segment_bytes"].as_u64().expect("it is a number");
        let (acknowledged, bytes, in_doubt) = model.counts();
        super::say(&format!(
            "{} rounds of seed {} in {:.1?}: {acknowledged} writes of {} MiB acknowledged, {in_doubt} cut off, \
             {} MiB on disk, slowest start {slowest_start:.0?}",
            self.rounds,
            self.seed,
            began.elapsed(),
            bytes >> 20,
            on_disk >> 20,
        ));
        assert!(acknowledged > self.rounds, "the workload must have worked");
        Written { bytes, on_disk }
    }

    fn fail(&self, round: u64, wrong: &[String], log: &str) -> ! {
        let short = |text: &str, limit: usize| -> String { text.chars().take(limit).collect() };
        let mut tail: Vec<String> = log.lines().rev().take(30).map(|line| short(line, 400)).collect();
        tail.reverse();
        let told: Vec<String> = wrong.iter().take(20).map(|line| short(line, 4000)).collect();
        panic!(
            "round {round} of seed {}: {} things are wrong:\n  {}\nthe server's log ends:\n{}",
            self.seed,
            wrong.len(),
            told.join("\n  "),
            tail.join("\n")
        )
    }
}
