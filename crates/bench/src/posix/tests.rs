use std::fs;

use tradewind_core::SystemClock;
use tradewind_pattern::Content;

use super::phase::{PhaseOutcome, run_phase};
use super::*;
use crate::drive::StopSignal;
use crate::result::ResultLine;

fn env() -> (tempfile::TempDir, PosixEnv) {
    let parent = tempfile::tempdir().unwrap();
    let directory = Arc::new(RunDirectory::create(parent.path(), "own").unwrap());
    let (content, clock) = (Arc::new(Content::new()), SystemClock::shared());
    (parent, PosixEnv { directory, content, clock, stop: StopSignal::default() })
}

fn task(phase: Direction, form: AccessForm, call_bytes: u64, buffer_bytes: u64) -> PhaseTask {
    PhaseTask {
        phase,
        form,
        call_bytes,
        buffer_bytes,
        fsync: false,
        max_time: Duration::MAX,
        max_file_time: Duration::MAX,
    }
}

fn done(env: &PosixEnv, task: &PhaseTask, files: &[Vec<RunFile>]) -> PhaseOutcome {
    run_phase(env, task, files, &Progress::default()).unwrap()
}

fn files(env: &PosixEnv, threads: usize, count: u64, size: u64) -> Vec<Vec<RunFile>> {
    (0..threads).map(|thread| env.directory.new_files(thread, count, size).unwrap()).collect()
}

#[test]
fn written_files_read_back_for_any_unit_and_buffer() {
    let (_parent, env) = env();
    for (size, unit, buffer) in
        [(1, 1, 1), (10_000, 1000, 3000), (10_000, 4096, 10_000), (4096, 1 << 20, 4096)]
    {
        for form in [AccessForm::Sync, AccessForm::Default] {
            let written = done(&env, &task(Direction::Write, form, unit, buffer), &files(&env, 2, 3, size));
            assert_eq!(
                (written.stats.files, written.stats.bytes),
                (6, 6 * size),
                "{:?}",
                written.stats.failure_samples
            );
            let read = done(&env, &task(Direction::Read, form, unit, buffer), &written.files);
            assert_eq!(
                (read.stats.files, read.stats.bytes),
                (6, 6 * size),
                "{:?}",
                read.stats.failure_samples
            );
            let calls = read.stats.latencies().access.count;
            // A buffer holds only whole calls.
            assert_eq!(calls, 6 * size.div_ceil(unit.min(buffer)), "{size} {unit} {buffer}");
            assert_eq!(fs::metadata(env.directory.file_path(written.files[0][0])).unwrap().len(), size);
        }
    }
}

#[test]
fn read_detects_every_kind_of_damage() {
    let (_parent, env) = env();
    let written =
        done(&env, &task(Direction::Write, AccessForm::Default, 4096, 8192), &files(&env, 1, 5, 20_000));
    let path = |n: usize| env.directory.file_path(written.files[0][n]);
    let mut bytes = fs::read(path(0)).unwrap();
    bytes[19_999] ^= 1;
    fs::write(path(0), bytes).unwrap();
    fs::write(path(1), &fs::read(path(1)).unwrap()[..15_000]).unwrap();
    let longer = [fs::read(path(2)).unwrap(), vec![0]].concat();
    fs::write(path(2), longer).unwrap();
    fs::copy(path(4), path(3)).unwrap();
    let read = done(&env, &task(Direction::Read, AccessForm::Default, 4096, 8192), &written.files);
    assert_eq!(read.stats.failures["WrongBytes"], 4, "{:?}", read.stats.failure_samples);
    assert_eq!(read.stats.files, 1, "the unmodified file");
    for (sample, why) in read.stats.failure_samples.iter().zip([
        "differs from what was written at byte 19999",
        "ends after 15000 bytes, 20000 were written",
        "has a size of 20001 bytes, 20000 were written",
        "differs from what was written at byte",
    ]) {
        assert!(sample.contains(why), "{sample}: {why}");
    }
}

#[test]
fn time_limit_ends_a_batch_after_one_file_per_thread() {
    let (_parent, env) = env();
    let short =
        PhaseTask { max_time: Duration::ZERO, ..task(Direction::Write, AccessForm::Default, 4096, 4096) };
    let written = done(&env, &short, &files(&env, 3, 100, 4096));
    assert_eq!((written.stats.files, written.files.len(), written.is_stopped), (3, 3, false));
    let cut = PhaseTask {
        max_file_time: Duration::ZERO,
        ..task(Direction::Write, AccessForm::Default, 1000, 4096)
    };
    let written = done(&env, &cut, &files(&env, 1, 1, 4096));
    assert_eq!((written.is_truncated, written.files[0][0].size), (true, 1000));
    let read = done(&env, &task(Direction::Read, AccessForm::Default, 1000, 4096), &written.files);
    assert_eq!((read.stats.bytes, read.stats.failures.len()), (1000, 0), "{:?}", read.stats.failure_samples);

    // Short files are completed before they are read; complete files stay as they are.
    let completed = completion::complete_files(&env, written.files, 4096);
    assert_eq!(completed[0][0].size, 4096);
    let read = done(
        &env,
        &task(Direction::Read, AccessForm::Default, 1000, 4096),
        &completion::complete_files(&env, completed, 4096),
    );
    assert_eq!((read.stats.bytes, read.stats.failures.len()), (4096, 0), "{:?}", read.stats.failure_samples);
}

const TIME: Duration = Duration::from_secs(20);

fn unit(units: &[u64]) -> PosixSection {
    PosixSection::Unit { forms: AccessForm::ALL.to_vec(), units: units.to_vec(), time: TIME }
}

fn single(sizes: &[u64]) -> PosixSection {
    PosixSection::Single { forms: AccessForm::ALL.to_vec(), sizes: sizes.to_vec(), time: TIME }
}

fn batch(forms: &[AccessForm], size: u64) -> PosixSection {
    PosixSection::Batch {
        forms: forms.to_vec(),
        sizes: vec![size],
        threads: vec![1, 3],
        time: TIME,
        files: Some(6),
    }
}

fn plan(sections: Vec<PosixSection>) -> PosixPlan {
    PosixPlan {
        sections,
        fsync: true,
        drop_caches: false,
        interface: Some("lo".to_owned()),
        rounds: 1,
        seed: 1,
        keep_files: false,
        cores: 2,
    }
}

#[test]
fn run_measures_all_parts_and_removes_its_files() {
    let (_parent, env) = env();
    let postmark = PosixSection::Postmark(vec![PostmarkWorkload {
        size_range: (512, 9000),
        pool: 20,
        transactions: 40,
    }]);
    let plan = plan(vec![
        unit(&[64 << 10, UNIT_FILE_BYTES]),
        single(&[4096, 65_536]),
        batch(&AccessForm::ALL, 4096),
        postmark,
    ]);
    plan.validate().unwrap();
    let mut lines = Vec::new();
    let whole = plan.run(&env, &mut |event| {
        if let PosixEvent::Measured(measured) = event {
            lines.push(serde_json::to_string(&ResultLine::Posix(Box::new(measured.clone()))).unwrap());
        }
    });
    assert!(whole.unwrap());
    let measured: Vec<PosixRecord> = lines
        .iter()
        .map(|line| match serde_json::from_str(line).unwrap() {
            ResultLine::Posix(measured) => *measured,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(measured.iter().map(PosixRecord::failure_count).sum::<u64>(), 0, "{lines:?}");
    let forms = {
        let PosixRecord::Conditions(conditions) = &measured[0] else { panic!("{}", lines[0]) };
        assert_eq!(conditions.timed_calls, "open, writes, fsync, close");
        assert!(conditions.interface.as_deref() == Some("lo") && conditions.idle_bytes_per_second.is_some());
        3 - conditions.skipped.len()
    };
    let accesses: Vec<&AccessResult> = measured
        .iter()
        .filter_map(|each| if let PosixRecord::Access(access) = each { Some(&**access) } else { None })
        .collect();
    assert_eq!(accesses.len(), 2 * forms * (2 + 2 + 2));
    assert_eq!(plan.max_measurements(), 2 * 3 * (2 + 2 + 2) + 1);
    for access in &accesses {
        let expected = if access.scope == AccessScope::Batch { 6 } else { 1 };
        assert!(access.files == expected && access.bytes == expected * access.size, "{access:?}");
        let is_written = access.phase == Direction::Write;
        assert_eq!((access.latency.fsync.is_some(), access.sync_seconds.is_some()), (is_written, is_written));
        assert!(access.bytes_per_second.mean > 0.0 && access.seconds > 0.0, "{access:?}");
    }
    let postmarks: Vec<_> = measured
        .iter()
        .filter_map(|each| if let PosixRecord::Postmark(postmark) = each { Some(postmark) } else { None })
        .collect();
    assert_eq!(postmarks.len(), 1);
    for postmark in postmarks {
        assert_eq!(postmark.read.count + postmark.appended.count, 40);
        assert_eq!(postmark.created.count, postmark.deleted.count);
        assert!(postmark.written_bytes > 20 * 512 && postmark.transactions_per_second > 0.0, "{postmark:?}");
    }
    assert_eq!(fs::read_dir(env.directory.path()).unwrap().count(), 0);
}

#[test]
fn stopped_run_ends_early_and_returns_false() {
    let (_parent, env) = env();
    let plan = plan(vec![unit(&[UNIT_FILE_BYTES]), batch(&[AccessForm::Default], 4096)]);
    let mut count = 0;
    let whole = plan.run(&env, &mut |event| {
        if let PosixEvent::Measured(PosixRecord::Access(_)) = event {
            count += 1;
            env.stop.trigger();
        }
    });
    assert!(!whole.unwrap());
    assert_eq!(count, 1);
}

#[test]
fn stopped_run_does_not_wait_for_durability() {
    for phase in ["write", "postmark"] {
        let (_parent, env) = env();
        let postmark = PosixSection::Postmark(vec![PostmarkWorkload {
            size_range: (512, 9000),
            pool: 20,
            transactions: 40,
        }]);
        let plan = plan(vec![if phase == "write" { batch(&[AccessForm::Default], 4096) } else { postmark }]);
        let mut results = Vec::new();
        let whole = plan.run(&env, &mut |event| match event {
            PosixEvent::Started { description, .. } if description.starts_with(phase) => env.stop.trigger(),
            PosixEvent::Measured(PosixRecord::Access(access)) => {
                results.push((access.partial, access.sync_seconds))
            }
            PosixEvent::Measured(PosixRecord::Postmark(postmark)) => {
                results.push((postmark.partial, postmark.sync_seconds));
            }
            _ => {}
        });
        assert_eq!((whole.unwrap(), results), (false, vec![(true, None)]), "{phase}");
    }
}

#[test]
fn failed_sync_counts_as_a_failure() {
    let (_parent, env) = env();
    let measure_env = MeasureEnv { posix: &env, counters: None, idle_bytes_per_second: 0.0, cores: 2 };
    let task = task(Direction::Write, AccessForm::Default, 4096, 4096);
    let spec = MeasureSpec {
        scope: AccessScope::Batch,
        task,
        size: 4096,
        round: 1,
        caches: CacheTreatment::NotDropped,
    };
    let workload = PostmarkWorkload { size_range: (512, 9000), pool: 3, transactions: 4 };
    let access = |files: &[Vec<RunFile>]| measure_env.measure(&spec, files, &Progress::default()).unwrap().0;
    let postmark =
        || super::postmark::run_postmark(&env, &workload, false, (1, 1), &Progress::default()).unwrap();
    let (good, also) = (access(&files(&env, 1, 3, 4096)), postmark());
    assert!(good.sync_seconds.is_some() && good.failures.is_empty(), "{good:?}");
    assert!(also.sync_seconds.is_some() && also.failures.is_empty(), "{also:?}");

    // The directory cannot be opened for the sync.
    fs::remove_dir_all(env.directory.path()).unwrap();
    let bad = access(&[vec![]]);
    assert!(bad.failures["NotDurable"] > 0 && bad.sync_seconds.is_none(), "{bad:?}");
    let also = postmark();
    assert!(also.created.count > 3 && also.sync_seconds.is_none() && !also.partial, "{also:?}");
    assert_eq!((also.failures.len(), also.failures["NotDurable"]), (1, 1), "{also:?}");
    assert!(also.failure_samples[0].starts_with("cannot make durable what was written: "), "{also:?}");
    // The stored line parses without the missing field.
    let line = serde_json::to_string(&also).unwrap();
    assert!(serde_json::from_str::<result::Postmark>(&line).unwrap().sync_seconds.is_none(), "{line}");
}

#[test]
fn check_rejects_what_cannot_be_measured() {
    let of = |section: PosixSection| plan(vec![section]);
    let good = of(unit(&[4096]));
    good.validate().unwrap();
    for (bad, reason) in [
        (plan(vec![]), "nothing to measure"),
        (of(batch(&[], 4096)), "nothing to measure"),
        (PosixPlan { rounds: 0, ..good.clone() }, "nothing to measure"),
        (of(unit(&[0])), "invalid unit 0"),
        (of(unit(&[4096, UNIT_FILE_BYTES + 1])), "the size of the file"),
        (of(single(&[0])), "empty files"),
        (plan(vec![unit(&[4096]), batch(&[AccessForm::Sync], 0)]), "empty files"),
        (PosixPlan { interface: Some("no-such".to_owned()), ..good.clone() }, "no interface no-such"),
    ] {
        let error = bad.validate().unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
