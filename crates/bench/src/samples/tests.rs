use std::sync::mpsc;

use super::*;
use crate::drive::tests::env;
use crate::drive::{BenchEnv, Progress, StopSignal, run_load};
use crate::load::{ArrivalMode, Load, StopCondition};
use crate::object_set::ObjectSet;
use crate::result::Measurement;
use crate::runner::{RunEvent, Runner};
use crate::size_distribution::SizeDistribution;
use crate::test_plan::Step;

/// A file in memory that can be read while it is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sheet(Arc<Mutex<Vec<u8>>>);

impl Write for Sheet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sheet {
    /// The fields of all lines after the header. None may contain a comma.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let rest = text.strip_prefix(writer::HEADER).expect("the first line names the columns");
        assert!(rest.is_empty() || rest.ends_with('\n'), "{rest}");
        rest.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    }
}

/// A file that blocks each write until it receives a message.
struct Stuck(mpsc::Receiver<()>, Sheet);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Once the sender is dropped, all writes pass.
        let _ = self.0.recv();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that is full after the given number of writes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| io::Error::other("no space left"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Numbers;

impl ObjectNames for Numbers {
    fn name(&self, number: u64) -> String {
        format!("key, {number}")
    }
}

const MILLI: Duration = Duration::from_millis(1);

fn request_at(scheduled: u32, ended: u32) -> FinishedRequest {
    let (scheduled, ended) = (scheduled * MILLI, ended * MILLI);
    FinishedRequest { scheduled, started: Some(scheduled + MILLI), ended, response: Ok((ended - MILLI, 7)) }
}

fn about(number: u64) -> RequestSubject {
    RequestSubject { operation: Operation::Get, key: SubjectKey::Object(number), size: Some(9) }
}

const WINDOW: MeasurementWindow =
    MeasurementWindow { begin: Duration::from_millis(1000), end: Duration::from_millis(2000) };

#[tokio::test]
async fn samples_in_the_window_have_times_since_its_start() {
    let sheet = Sheet::default();
    let samples = SampleFile::start(sheet.clone(), 1).unwrap();
    let measurement = samples.next_measurement(3);
    let mut sampler = measurement.sampler(Some(5), Arc::new(Numbers));
    let (early, late) = (request_at(900, 999), request_at(2000, 2100));
    let failed = FinishedRequest { response: Err("Odd, kind".to_owned()), ..request_at(1500, 1600) };
    let never =
        FinishedRequest { started: None, response: Err("NeverStarted".to_owned()), ..request_at(1999, 2500) };
    for finished in [&early, &request_at(900, 1100), &failed, &request_at(1999, 2100), &late] {
        sampler.record(WINDOW, finished, about(1));
    }
    drop(sampler);
    // During the warm-up there is no window yet.
    let none = MeasurementWindow { begin: Duration::MAX, end: Duration::MAX };
    let mut without_worker = measurement.sampler(None, Arc::new(Numbers));
    without_worker.record(none, &request_at(1500, 1600), about(1));
    let unknown = RequestSubject { operation: Operation::List, key: SubjectKey::Unknown, size: None };
    without_worker.record(WINDOW, &never, unknown);
    drop(without_worker);
    let sampled = measurement.conclude().await;
    assert_eq!(sampled, SampleCounts { measurement: 1, written: 4, dropped: 0, lost: 0 });
    assert_eq!(samples.next_measurement(1).number, 2);
    let text = String::from_utf8(sheet.0.lock().clone()).unwrap();
    let expected = [
        "1,3,get,\"key, 1\",7,5,-100000,-99000,99000,100000,ok",
        "1,3,get,\"key, 1\",9,5,500000,501000,,600000,\"Odd, kind\"",
        "1,3,get,\"key, 1\",7,5,999000,1000000,1099000,1100000,ok",
        "1,3,list,,,,999000,,,1500000,NeverStarted",
    ];
    assert_eq!(text, writer::HEADER.to_owned() + &expected.join("\n") + "\n");
    samples.finish().unwrap();
}

#[tokio::test]
async fn slow_file_drops_and_counts_samples() {
    let sheet = Sheet::default();
    let (go, going) = mpsc::channel();
    go.send(()).unwrap();
    let samples = SampleFile::start(Stuck(going, sheet.clone()), 1).unwrap();
    let measurement = samples.next_measurement(1);
    let mut sampler = measurement.sampler(Some(0), Arc::new(Numbers));
    let capacity = ((MAX_QUEUED_BATCHES + 1) * BATCH_SAMPLES) as u64;
    let all = 3 * capacity;
    let started = std::time::Instant::now();
    (0..all).for_each(|number| sampler.record(WINDOW, &request_at(1500, 1600), about(number)));
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "workers do not wait for the file: {:?}",
        started.elapsed()
    );
    drop(sampler);
    drop(go);
    let sampled = measurement.conclude().await;
    // A formatted batch is free again, even while its lines wait for the file.
    assert!(sampled.dropped > 0 && sampled.written >= capacity, "{sampled:?}");
    assert_eq!((sampled.written + sampled.dropped, sampled.lost), (all, 0));
    assert_eq!(
        String::from_utf8(sheet.0.lock().clone()).unwrap().lines().count() as u64,
        sampled.written + 1
    );
    assert!(sampled.notes()[0].contains(&format!("{} of {all} samples were dropped", sampled.dropped)));
    let next = samples.next_measurement(1);
    next.sampler(Some(0), Arc::new(Numbers)).record(WINDOW, &request_at(1500, 1600), about(1));
    assert_eq!(
        next.conclude().await,
        SampleCounts { measurement: 2, written: 1, dropped: 0, lost: 0 },
        "the next measurement is sampled"
    );
    samples.finish().unwrap();
}

#[tokio::test]
async fn full_disk_loses_only_the_samples_after_it() {
    assert!(SampleFile::start(Full(0), 1).is_err(), "before anything is measured");
    let samples = SampleFile::start(Full(2), 1).unwrap();
    let mut measurements = Vec::new();
    for _ in 0..3 {
        let measurement = samples.next_measurement(1);
        let mut sampler = measurement.sampler(Some(0), Arc::new(Numbers));
        (0..100).for_each(|number| sampler.record(WINDOW, &request_at(1500, 1600), about(number)));
        drop(sampler);
        measurements.push(measurement.conclude().await);
    }
    let (written, lost): (Vec<u64>, Vec<u64>) =
        measurements.iter().map(|measurement| (measurement.written, measurement.lost)).unzip();
    assert_eq!((written, lost), (vec![100, 0, 0], vec![0, 100, 100]));
    assert!(
        measurements[0].notes().is_empty()
            && measurements[1].notes()[0].contains("100 of 100 samples are missing")
    );
    assert_eq!(samples.finish().unwrap_err().to_string(), "no space left");
}

fn step(mix: &str, arrival_mode: ArrivalMode) -> Step {
    let stop_condition =
        StopCondition { max_requests: None, duration: Duration::from_millis(300), max_ci_fraction: None };
    let warm_up = Duration::from_millis(100);
    let load = Load {
        mix: mix.parse().unwrap(),
        concurrency: 4,
        arrival_mode,
        stop_condition,
        warm_up,
        seed: 1,
        phase: 0.0,
    };
    Step { load, sizes: SizeDistribution::Fixed(1000), objects: 20, round: 2 }
}

#[tokio::test]
async fn every_counted_request_has_a_line() {
    let (env, sheet) = (env().await, Sheet::default());
    let samples = SampleFile::start(sheet.clone(), 8).unwrap();
    let mut runner = Runner::new(&env, "there/", 2, (2, false)).with_samples(Some(samples));
    let closed = step("get=2,put=1,head=1,list=1", ArrivalMode::Closed);
    let spacing = crate::arrivals::Spacing::Fixed;
    let open = step("get", ArrivalMode::Open { requests_per_second: 300.0, spacing });
    let mut measurements: Vec<Measurement> = Vec::new();
    let stages = [vec![closed.clone()], vec![closed, open]];
    let stop = StopSignal::default();
    let all = runner.run(stages, &stop, |event| {
        if let RunEvent::Measured(measurement) = event {
            measurements.push(measurement.clone());
        }
    });
    assert!(all.await.unwrap());
    runner.finish_samples().unwrap();
    let lines = sheet.lines();
    assert_eq!(measurements.len(), 3);
    for (n, measurement) in measurements.iter().enumerate() {
        let of_measurement: Vec<&Vec<String>> =
            lines.iter().filter(|line| line[0] == (n + 1).to_string()).collect();
        let sampled = measurement.samples.unwrap();
        assert_eq!((sampled.measurement, sampled.dropped, sampled.lost), (n as u64 + 1, 0, 0));
        assert_eq!(sampled.written, of_measurement.len() as u64);
        let end = (measurement.measured_seconds * 1e6) as i64;
        let time = |line: &[String], column: usize| line[column].parse::<i64>().unwrap();
        for (operation, figures) in &measurement.operations {
            let of_kind = of_measurement.iter().filter(|line| line[2] == operation.name());
            let meant = of_kind.clone().filter(|line| (0..end).contains(&time(line, 6))).count();
            let done = of_kind.clone().filter(|line| (0..end).contains(&time(line, 9))).count();
            // Times are truncated to microseconds: a request at either end may appear to lie outside.
            assert!(
                (meant as u64).abs_diff(figures.latency_us.count) <= 8,
                "{operation}: {meant}, {figures:?}"
            );
            assert!((done as u64).abs_diff(figures.operations) <= 8, "{operation}: {done}, {figures:?}");
            for line in of_kind {
                let [scheduled, sent, first, ended] = [6, 7, 8, 9].map(|column| time(line, column));
                assert!(scheduled <= sent && sent <= first && first <= ended, "{line:?}");
                assert!(scheduled < end && ended >= 0, "{line:?}");
                let size = if matches!(operation, Operation::Get | Operation::Put) { "1000" } else { "0" };
                assert_eq!((&*line[1], &*line[4], &*line[10]), ("2", size, "ok"), "{line:?}");
                assert!(line[3].starts_with("there/") && line[5].parse::<usize>().unwrap() < 4, "{line:?}");
            }
        }
    }
}

#[tokio::test]
async fn unanswered_requests_have_a_line() {
    use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, Operation as Call};
    let plan = FaultPlan::none().with_fault(Call::Commit, FaultSchedule::Always, Fault::Hang);
    let env = env().await;
    let env = BenchEnv { store: Faulty::new(env.store.clone(), plan), ..env };
    let sheet = Sheet::default();
    let samples = SampleFile::start(sheet.clone(), 4).unwrap();
    let progress = Arc::new(Progress::with_samples(samples.next_measurement(1)));
    let object_set = Arc::new(ObjectSet::new("run/".to_owned(), SizeDistribution::Fixed(10)));
    let stop = StopSignal::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stopping.trigger();
    });
    let arrival_mode =
        ArrivalMode::Open { requests_per_second: 100.0, spacing: crate::arrivals::Spacing::Fixed };
    let load = Load { warm_up: Duration::ZERO, ..step("put", arrival_mode).load };
    let outcome = run_load(&env, &object_set, &load, &stop, &progress).await.unwrap();
    assert!(outcome.never_started > 0);
    progress.finish_samples().await.unwrap();
    let lines = sheet.lines();
    let outcomes = |what: &str| lines.iter().filter(|line| line[10] == what).count() as u64;
    assert_eq!((outcomes("Unanswered"), outcomes("NeverStarted")), (4, outcome.never_started), "{lines:?}");
    let never = lines.iter().find(|line| line[10] == "NeverStarted").unwrap();
    assert_eq!((&*never[3], &*never[5], &*never[7], &*never[8]), ("", "", "", ""));
}
