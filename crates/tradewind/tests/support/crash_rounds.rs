//! CrashTest of a crash test: start the server, verify, run the workload, crash; at the end a clean shutdown and a full
//! check of the store. A killed process and a power loss differ only in the crash.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::model::Model;
use super::random::Random;
use super::s3::{Request, S3};
use super::server::{self, Server, ServerSetup};
use super::verify::verify;
use super::workload::{self, BUCKETS, Workload};

/// The parameters of a crash test.
#[derive(Debug, Clone, Copy)]
pub struct CrashTest {
    pub rounds: u64,
    pub seed: u64,
    pub workers: u64,
    /// The longest time from the start of the workload to the crash.
    pub max_lifetime: Duration,
    /// Later rounds enable and suspend the versioning of the buckets.
    pub has_versions: bool,
}

/// The data written by all rounds.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Bytes of segments at the end.
    pub on_disk: u64,
}

/// Off in the first rounds, then alternately enabled and suspended.
fn set_versioning(client: &mut S3, model: &Model, round: u64) {
    let versioning = match round % 4 {
        _ if round < 2 => return,
        3 => "Suspended",
        _ => "Enabled",
    };
    for bucket in BUCKETS {
        let body =
            format!("<VersioningConfiguration><Status>{versioning}</Status></VersioningConfiguration>");
        let query = vec![("versioning", String::new())];
        let request =
            Request { method: "PUT", path: bucket, query, body: body.as_bytes(), ..Request::default() };
        let response = client.send(request).expect("a request before the crash gets a response");
        assert_eq!(response.status, 200, "{}", response.text());
    }
    model.set_versioning(versioning);
}

impl CrashTest {
    /// The parameters from the environment variables `{prefix}_ROUNDS` and `{prefix}_SEED`, with defaults.
    pub fn from_env(prefix: &str, rounds: u64) -> Self {
        let read = |name: &str| {
            let value = std::env::var(format!("{prefix}_{name}")).ok()?;
            Some(value.parse().unwrap_or_else(|_| panic!("{prefix}_{name} must be a number")))
        };
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Self {
            rounds: read("ROUNDS").unwrap_or(rounds),
            seed: read("SEED").unwrap_or(u64::from(clock.subsec_nanos())),
            workers: 8,
            max_lifetime: Duration::from_millis(1200),
            has_versions: true,
        }
    }

    /// Runs the rounds. `strike` crashes the server and must set `is_crashed` immediately before.
    pub fn run(
        self,
        start: &ServerSetup,
        mut strike: impl FnMut(&mut Server, &mut Random, &Workload<'_>),
        mut before_start: impl FnMut(u64, &mut Random),
    ) -> Written {
        let started = Instant::now();
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
                    let created = client.put(bucket, &[]).expect("the first request must get a response");
                    assert_eq!(created.status, 200, "{}", created.text());
                }
            }
            let errors = verify(server.endpoint, &credentials, &model, random.next());
            if !errors.is_empty() {
                self.fail(round, &errors, &server.logged());
            }
            if self.has_versions {
                set_versioning(&mut S3::new(server.endpoint, credentials.clone()), &model, round);
            }
            let workload = Workload {
                address: server.endpoint,
                credentials: credentials.clone(),
                model: &model,
                is_crashed: AtomicBool::new(false),
                was_full: AtomicBool::new(false),
            };
            let life = random.below(u64::try_from(self.max_lifetime.as_millis()).unwrap());
            let work_seed = random.next();
            let errors = workload::run(&workload, self.workers, work_seed, || {
                std::thread::sleep(Duration::from_millis(life));
                strike(&mut server, &mut random, &workload);
                assert!(workload.is_crashed.load(Ordering::SeqCst), "`strike` must set `is_struck`");
            });
            if !errors.is_empty() {
                self.fail(round, &errors, &server.logged());
            }
        }
        before_start(self.rounds, &mut random);
        let mut server =
            start.start().unwrap_or_else(|error| self.fail(self.rounds, &[error.to_string()], ""));
        let errors = verify(server.endpoint, &credentials, &model, random.next());
        if !errors.is_empty() {
            self.fail(self.rounds, &errors, &server.logged());
        }
        let status = server.terminate().expect("the server must terminate");
        assert!(status.success(), "a clean shutdown ends with {status}:\n{}", server.logged());
        let data = start.data.to_str().expect("a plain path");
        let check = server::run(&["store", "check", data]);
        assert!(
            check.status.success(),
            "store check after all rounds ({}): {}{}",
            check.status,
            String::from_utf8_lossy(&check.stdout),
            String::from_utf8_lossy(&check.stderr)
        );
        let stats = server::run(&["store", "stats", data, "--json"]);
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).expect("JSON");
        let on_disk = stats["segment_bytes"].as_u64().expect("a number");
        let (acknowledged, bytes, in_doubt) = model.counts();
        super::print_uncaptured(&format!(
            "{} rounds of seed {} in {:.1?}: {acknowledged} writes of {} MiB acknowledged, {in_doubt} interrupted, \
             {} MiB on disk, slowest start {slowest_start:.0?}",
            self.rounds,
            self.seed,
            started.elapsed(),
            bytes >> 20,
            on_disk >> 20,
        ));
        assert!(acknowledged > self.rounds, "the workload must make progress");
        Written { bytes, on_disk }
    }

    fn fail(&self, round: u64, errors: &[String], log: &str) -> ! {
        let short = |text: &str, limit: usize| -> String { text.chars().take(limit).collect() };
        let mut tail: Vec<String> = log.lines().rev().take(30).map(|line| short(line, 400)).collect();
        tail.reverse();
        let first: Vec<String> = errors.iter().take(20).map(|line| short(line, 4000)).collect();
        panic!(
            "round {round} of seed {}: {} errors:\n  {}\nlast lines of the server's log:\n{}",
            self.seed,
            errors.len(),
            first.join("\n  "),
            tail.join("\n")
        )
    }
}
