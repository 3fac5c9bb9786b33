use std::collections::BTreeMap;

use super::super::{ResultFile, summaries, to_csv, to_html};
use super::*;
use crate::compare::Verdict;
use crate::posix::access_form::AccessForm;
use crate::posix::amplification::{RatioPoint, fit};
use crate::posix::cache_policy::{
    CachePolicy, Evidence, PolicyFinding, ReadPolicy, RereadPolicy, WritePolicy,
};
use crate::posix::postmark::result::StepFigures;
use crate::posix::result::{
    CacheTreatment, CallLatencies, IdleTraffic, Mount, PosixConditions, Postmark, SkippedForm, WireBytes,
};
use crate::result::{LatencySummary, Rate, ResultLine, SCHEMA};
use crate::size_distribution::SizeDistribution;

fn latency(micros: u64) -> LatencySummary {
    let mut all = crate::record::new_histogram();
    crate::record::record_value(&mut all, micros, 1);
    LatencySummary::from_histogram(&all)
}

fn access(
    scope: AccessScope,
    form: AccessForm,
    size: u64,
    threads: usize,
    round: u32,
    speed: f64,
) -> PosixRecord {
    let rate = |mean| Rate { mean, ci95_half_width: None };
    let wire_bytes = size + (204 << 10);
    let each = || latency(1000);
    PosixRecord::Access(Box::new(AccessResult {
        scope,
        phase: Direction::Write,
        form,
        size,
        call_bytes: size,
        threads,
        round,
        started_ms: 0,
        files: 1,
        bytes: size,
        seconds: 1.0,
        bytes_per_second: rate(speed),
        files_per_second: rate(speed / size as f64),
        sync_seconds: Some(0.1),
        latency: CallLatencies {
            open: each(),
            first_access: each(),
            access: each(),
            fsync: None,
            close: each(),
            file: each(),
        },
        wire: Some(WireBytes {
            sent: wire_bytes,
            received: 0,
            total: wire_bytes,
            total_until_durable: wire_bytes,
        }),
        failures: BTreeMap::new(),
        failure_samples: Vec::new(),
        cpu_seconds: 0.1,
        cpu_threads: BTreeMap::new(),
        machine_cpu_utilization: 0.5,
        generator_share: 0.01,
        partial: false,
        notes: vec!["<seen> & told".to_owned()],
    }))
}

fn postmark() -> PosixRecord {
    let steps = |count: u64, alone_per_second: f64| StepFigures {
        count,
        alone_per_second,
        in_transactions_per_second: 20.0,
        latency_us: latency(700),
    };
    PosixRecord::Postmark(Box::new(Postmark {
        sizes: SizeDistribution::Uniform(512, 100 << 10),
        pool: 500,
        transactions: 400,
        call_bytes: 4096,
        round: 1,
        started_ms: 0,
        seconds: 20.0,
        transaction_seconds: 10.0,
        transactions_per_second: 40.0,
        created: steps(700, 100.0),
        read: steps(200, 0.0),
        appended: steps(200, 0.0),
        deleted: steps(700, 200.0),
        read_bytes: 1000,
        written_bytes: 2000,
        read_bytes_per_second: 50.0,
        written_bytes_per_second: 100.0,
        sync_seconds: Some(0.25),
        failures: BTreeMap::new(),
        failure_samples: Vec::new(),
        cpu_seconds: 0.5,
        machine_cpu_utilization: 0.5,
        partial: false,
        notes: Vec::new(),
    }))
}

fn text(factor: f64) -> String {
    let client =
        r#"{"hostname":"here","cpu_model":"some","cores":2,"memory_bytes":8589934592,"kernel":"6.1"}"#;
    let run = format!(
        r#"{{"line":"run","schema":"{SCHEMA}","version":"0.1.0","started_ms":0,"client":{client},"location":"/mnt/x","store":"nfs4","prefix":"p","seed":1}}"#
    );
    let mut all = vec![PosixRecord::Conditions(Box::new(PosixConditions {
        mount: Mount { fs_type: "nfs4".to_owned(), source: "server:/x".to_owned(), ..Mount::default() },
        timed_calls: "open, writes, close".to_owned(),
        caches: CacheTreatment::Advised,
        caches_reason: Some("it takes root".to_owned()),
        skipped: vec![SkippedForm { form: AccessForm::Direct, reason: "it refuses".to_owned() }],
        interface: Some("eth0".to_owned()),
        idle_bytes_per_second: Some(IdleTraffic { sent: 10.0, received: 20.0 }),
    }))];
    all.push(PosixRecord::Policy(Box::new(CachePolicy {
        form: AccessForm::Default,
        write: Some(PolicyFinding::new(WritePolicy::Buffered, Evidence::Counters)),
        read: Some(PolicyFinding::new(ReadPolicy::ReadAhead, Evidence::Timings)),
        reread: Some(PolicyFinding::new(RereadPolicy::Cached, Evidence::Counters)),
        failed: None,
    })));
    let sizes = [4_u64 << 10, 64 << 10, 1 << 20];
    for round in 1..=4 {
        let noise = 1.0 + f64::from(round) * 0.0005;
        for size in sizes {
            all.push(access(AccessScope::Single, AccessForm::Sync, size, 1, round, factor * noise * 1e6));
            all.push(access(AccessScope::Batch, AccessForm::Sync, size, 1, round, factor * noise * 2e6));
            all.push(access(AccessScope::Batch, AccessForm::Sync, size, 8, round, factor * noise * 9e6));
        }
    }
    let points = sizes.map(|size| RatioPoint { kib: kib(size), ratio: 1.0 + 204.0 / kib(size) });
    all.push(PosixRecord::Amplification(AmplificationCurve {
        scope: AccessScope::Single,
        phase: Direction::Write,
        form: AccessForm::Sync,
        model: "(a + s) / s".to_owned(),
        fit: fit(&points).unwrap(),
        points: 3,
    }));
    all.push(postmark());
    let lines =
        all.into_iter().map(|each| serde_json::to_string(&ResultLine::Posix(Box::new(each))).unwrap());
    let lines: Vec<String> = lines.collect();
    format!("{run}\n{}\n{}\n", lines.join("\n"), r#"{"line":"end","partial":false}"#)
}

#[test]
fn page_describes_the_file_system() {
    let result = ResultFile::parse("first", &text(1.0)).unwrap();
    assert_eq!((result.posix.len(), result.is_partial), (2 + 4 * 9 + 2, false));
    let page = to_html(std::slice::from_ref(&result));
    for expected in [
        "Write throughput of whole files: 9.02 MB/s (sync access, 1MiB files, 8 threads).",
        "adds 204 KiB of overhead on the wire ((a + s) / s).",
        "With default access, a closed file is not yet in the storage",
        "read-ahead (by timings)",
        "Skipped with direct access: it refuses.",
        "write throughput, MB/s: single files, by file size",
        "write throughput, MB/s: many files, by number of threads",
        "sync, 1 + 204 KiB / s",
        "&lt;seen&gt; &amp; told",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(
        !page.contains("Latency distribution")
            && !page.contains("cannot be drawn")
            && !page.contains("<seen>")
    );
}

#[test]
fn two_results_are_compared() {
    let result = |name: &str, factor| ResultFile::parse(name, &text(factor)).unwrap();
    let comparison = |factor| summaries(&[result("a", 1.0), result("b", factor)])[2].1.join("\n");
    assert!(comparison(1.0).starts_with("No significant difference"), "{}", comparison(1.0));
    assert!(
        comparison(1.2).contains("write sync 4KiB x 8: bytes/s 20 % higher, which is better"),
        "{}",
        comparison(1.2)
    );
}

/// The summary of a comparison with a result measured under other conditions.
fn comparison_with(changed: impl Fn(String) -> String) -> Vec<String> {
    let result = |name: &str, text: &str| ResultFile::parse(name, text).unwrap();
    summaries(&[result("a", &text(1.0)), result("b", &changed(text(1.0)))])[2].1.clone()
}

#[test]
fn comparison_reports_different_conditions() {
    let same = comparison_with(|text| text);
    assert!(same.len() == 1 && same[0].starts_with("No significant difference"), "{same:?}");
    for (of, becomes, expected) in [
        (
            "\"caches\":\"advised\"",
            "\"caches\":\"dropped\"",
            "caches before reading: the kernel was advised that the files' pages are not needed before, dropped by the kernel after",
        ),
        ("writes, close", "writes, fsync, close", "writes, fsync, close after"),
        (
            "\"fs_type\":\"nfs4\"",
            "\"fs_type\":\"ext4\"",
            "file system: nfs4 of server:/x at  before, ext4 of",
        ),
        ("server:/x", "server:/y", "nfs4 of server:/y at  after"),
        ("\"options\":\"\"", "\"options\":\"sync\"", "none before, sync after"),
        ("\"kernel\":\"6.1\"", "\"kernel\":\"6.6\"", "kernel: Linux 6.1 before, Linux 6.6 after"),
        ("\"cores\":2", "\"cores\":4", "from here (4 CPUs, some, 8.59 GB) after"),
    ] {
        let words = comparison_with(|text| text.replacen(of, becomes, 1));
        assert_eq!(words.len(), 2, "{becomes}: {words:?}");
        assert!(words[0].contains("not measured under the same conditions"), "{becomes}: {words:?}");
        assert!(words[0].contains(expected) && words[1] == same[0], "{becomes}: {words:?}");
    }
    let memory = comparison_with(|text| text.replacen("8589934592", "8589000000", 1));
    assert_eq!(memory, same, "slightly different memory is the same machine");
    let every = comparison_with(|text| {
        text.replacen("\"advised\"", "\"not_dropped\"", 1).replacen("\"6.1\"", "\"6.6\"", 1)
    });
    assert!(every[0].contains("Linux 6.6 after; caches before reading: the kernel was advised"), "{every:?}");
    assert!(every[0].ends_with("not dropped after."), "{every:?}");
}

/// A result in which the lines selected by `is_meant` are changed.
fn changed(
    text: &str,
    is_meant: impl Fn(&serde_json::Value) -> bool,
    of: &[(&str, serde_json::Value)],
) -> String {
    let line = |line: &str| {
        let mut json: serde_json::Value = serde_json::from_str(line).unwrap();
        if is_meant(&json) {
            for (field, value) in of {
                *json.pointer_mut(field).unwrap() = value.clone();
            }
        }
        json.to_string() + "\n"
    };
    text.lines().map(line).collect()
}

/// A result in which no file could be written in the rounds up to `last` of one measurement.
fn without_files(text: &str, last: u64) -> String {
    let is_meant = |line: &serde_json::Value| {
        let (scope, size) = (line["scope"] == "single", line["size"] == 4096);
        scope && size && line["round"].as_u64().is_some_and(|round| round <= last)
    };
    changed(text, is_meant, &[("/files", 0.into()), ("/bytes_per_second/mean", 0.0.into())])
}

#[test]
fn failed_rounds_prevent_a_comparison() {
    let comparison = |before: &str, after: &str| {
        let result = [ResultFile::parse("a", before).unwrap(), ResultFile::parse("b", after).unwrap()];
        summaries(&result)[2].1.clone()
    };
    let lost = "write sync 4KiB alone";
    let differs = |sentences: &[String]| sentences.iter().any(|line| line.starts_with(&format!("{lost}: ")));
    let whole = comparison(&text(1.0), &text(1.2));
    assert!(differs(&whole), "{whole:?}");
    // The remaining rounds do not represent the failed ones.
    for (before, after) in
        [(without_files(&text(1.0), 1), text(1.2)), (text(1.0), without_files(&text(1.2), 1))]
    {
        let some = comparison(&before, &after);
        assert!(!differs(&some) && some.len() == whole.len() - 1, "{some:?}");
    }
    let none = comparison(&text(1.0), &without_files(&text(1.0), 4));
    assert_eq!(none[0], format!("Measured successfully in only one of the two results: {lost}."));
}

#[test]
fn failed_write_round_also_counts_as_a_failed_read() {
    let access = |phase: Direction, round: u32, files: u64, speed: f64| {
        let PosixRecord::Access(mut access) =
            access(AccessScope::Single, AccessForm::Sync, 4096, 1, round, speed)
        else {
            panic!()
        };
        (access.phase, access.files) = (phase, files);
        PosixRecord::Access(access)
    };
    let verdict = |lost: &[PosixRecord]| {
        let rounds = |speed: f64| {
            (1..=4).map(move |n| access(Direction::Read, n, 1, speed * (1.0 + f64::from(n) * 1e-4)))
        };
        let before: Vec<PosixRecord> = rounds(1e6).chain(lost.iter().cloned()).collect();
        let after: Vec<PosixRecord> = rounds(2e6).collect();
        let compared = crate::posix::compare::compare(&before, &after);
        assert_eq!(compared.len(), 1, "{compared:?}");
        compared[0].verdict
    };
    assert_eq!(verdict(&[]), Verdict::Differs);
    assert_eq!(verdict(&[access(Direction::Write, 5, 0, 0.0)]), Verdict::Unknown);
    assert_eq!(verdict(&[access(Direction::Read, 5, 0, 0.0)]), Verdict::Unknown);
}

#[test]
fn partial_postmark_has_no_rate() {
    let rate = "Postmark with files of 512B-100KiB: 40 transactions/s.";
    let whole = to_html(&[ResultFile::parse("a", &text(1.0)).unwrap()]);
    assert!(whole.contains(rate) && !whole.contains("ended early"), "{whole}");
    let is_postmark = |line: &serde_json::Value| line["record"] == "postmark";
    let early = changed(&text(1.0), is_postmark, &[("/partial", true.into())]);
    let page = to_html(&[ResultFile::parse("a", &early).unwrap()]);
    assert!(!page.contains("transactions/s."), "{page}");
    for expected in ["Postmark with files of 512B-100KiB ended early", "400 transactions (ended early)</th>"]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}

#[test]
fn csv_has_every_figure() {
    let table = to_csv(&[ResultFile::parse("a,b", &text(1.0)).unwrap()]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let (head, rows) = rows.split_first().unwrap();
    let value = |row: &Vec<&str>, column: &str| -> String {
        // The name at the start of a row contains a comma.
        let at = head.iter().position(|each| *each == column).unwrap();
        row[at + row.len() - head.len()].to_owned()
    };
    let of = |what: &str| rows.iter().filter(|row| value(row, "record") == what).collect::<Vec<_>>();
    assert_eq!((of("file").len(), of("policy").len(), of("curve").len()), (36, 1, 1), "{table}");
    assert_eq!((rows.len(), of("postmark").len()), (36 + 1 + 1 + 5, 5), "{table}");
    let file = of("file").into_iter().find(|row| value(row, "load") == "write sync 64KiB x 8").unwrap();
    for (column, expected) in [
        ("sizes", "64KiB"),
        ("concurrency", "8"),
        ("operation", "write"),
        ("latency_p50_us", "1000"),
        ("scope", "batch"),
        ("form", "sync"),
        ("call_bytes", "65536"),
        ("files", "1"),
        ("durable_seconds", "0.1"),
        ("wire_bytes", "274432"),
        ("amplification", "4.1875"),
        ("cpu_us_per_request", "100000"),
        ("writes", ""),
    ] {
        assert_eq!(value(file, column), expected, "{column} of {file:?}");
    }
    for (column, expected) in [
        ("form", "default"),
        ("writes", "buffered"),
        ("reads", "read_ahead"),
        ("rereads", "cached"),
        ("bytes_per_second", ""),
    ] {
        assert_eq!(value(of("policy")[0], column), expected, "{column}");
    }
    let curve = of("curve")[0];
    assert_eq!((&*value(curve, "model"), &*value(curve, "points")), ("(a + s) / s", "3"));
    assert!((value(curve, "constant_kib").parse::<f64>().unwrap() - 204.0).abs() < 1e-6);
    let postmark: Vec<[String; 4]> = of("postmark")
        .into_iter()
        .map(|row| {
            ["operation", "requests_per_second", "alone_per_second", "files"].map(|column| value(row, column))
        })
        .collect();
    assert_eq!(
        postmark,
        [
            ["transaction", "40", "", ""],
            ["create", "20", "100", "700"],
            ["read", "20", "", "200"],
            ["append", "20", "", "200"],
            ["delete", "20", "200", "700"]
        ]
    );
    let transactions = of("postmark")[0];
    assert_eq!((&*value(transactions, "seconds"), &*value(transactions, "durable_seconds")), ("10", "0.25"));
    assert_eq!(value(transactions, "written_bytes_per_second"), "100");
}
