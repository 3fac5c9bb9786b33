use std::collections::BTreeMap;

use super::super::{Kept, page, words};
use super::*;
use crate::posix::amplification::{Point, fit};
use crate::posix::form::Form;
use crate::posix::policy::{Again, By, Policy, Reading, Writing};
use crate::posix::result::{Caches, Conditions, Latencies, Mount, Wire};
use crate::result::{Latency, Line, Rate, SCHEMA};

fn latency(micros: u64) -> Latency {
    let mut all = crate::record::histogram();
    crate::record::record(&mut all, micros, 1);
    Latency::of(&all)
}

fn access(scope: Scope, form: Form, size: u64, threads: usize, repeat: u32, speed: f64) -> Measured {
    let rate = |mean| Rate { mean, within: None };
    let carried = size + (204 << 10);
    let each = || latency(1000);
    Measured::Access(Box::new(Access {
        scope,
        phase: Phase::Write,
        form,
        size,
        unit: size,
        threads,
        repeat,
        began: 0,
        files: 1,
        bytes: size,
        seconds: 1.0,
        bytes_per_second: rate(speed),
        files_per_second: rate(speed / size as f64),
        sync_seconds: Some(0.1),
        latency: Latencies {
            open: each(),
            first: each(),
            access: each(),
            fsync: None,
            close: each(),
            file: each(),
        },
        wire: Some(Wire { sent: carried, received: 0, total: carried, settled: carried }),
        failures: BTreeMap::new(),
        samples: Vec::new(),
        cpu_seconds: 0.1,
        cpu_threads: BTreeMap::new(),
        machine_busy: 0.5,
        own_share: 0.01,
        partial: false,
        notes: vec!["<seen> & told".to_owned()],
    }))
}

fn text(factor: f64) -> String {
    let client = r#"{"name":"here","processor":"some","cores":2,"memory":8589934592,"kernel":"6.1"}"#;
    let run = format!(
        r#"{{"line":"run","schema":"{SCHEMA}","version":"0.1.0","started":0,"client":{client},"place":"/mnt/x","store":"nfs4","prefix":"p","seed":1}}"#
    );
    let mut all = vec![Measured::Conditions(Box::new(Conditions {
        mount: Mount { kind: "nfs4".to_owned(), source: "server:/x".to_owned(), ..Mount::default() },
        counted: "open, writes, close".to_owned(),
        caches: Caches::Advised,
        caches_why: Some("it takes root".to_owned()),
        skipped: vec![(Form::Direct, "it refuses".to_owned())],
        interface: Some("eth0".to_owned()),
        idle: Some((10.0, 20.0)),
    }))];
    all.push(Measured::Policy(Box::new(Policy {
        form: Form::Default,
        write: Some((Writing::Buffered, By::Counters)),
        read: Some((Reading::ReadAhead, By::Timings)),
        again: Some((Again::Cached, By::Counters)),
        failed: None,
    })));
    let sizes = [4_u64 << 10, 64 << 10, 1 << 20];
    for repeat in 1..=4 {
        let noise = 1.0 + f64::from(repeat) * 0.0005;
        for size in sizes {
            all.push(access(Scope::Single, Form::Sync, size, 1, repeat, factor * noise * 1e6));
            all.push(access(Scope::Batch, Form::Sync, size, 1, repeat, factor * noise * 2e6));
            all.push(access(Scope::Batch, Form::Sync, size, 8, repeat, factor * noise * 9e6));
        }
    }
    let points = sizes.map(|size| Point { kib: kib(size), ratio: 1.0 + 204.0 / kib(size) });
    all.push(Measured::Amplification(Amplification {
        scope: Scope::Single,
        phase: Phase::Write,
        form: Form::Sync,
        curve: "(a + s) / s".to_owned(),
        fit: fit(&points).unwrap(),
        points: 3,
    }));
    let lines = all.into_iter().map(|each| serde_json::to_string(&Line::Posix(Box::new(each))).unwrap());
    let lines: Vec<String> = lines.collect();
    format!("{run}\n{}\n{}\n", lines.join("\n"), r#"{"line":"end","partial":false}"#)
}

#[test]
fn a_page_says_what_the_file_system_does() {
    let kept = Kept::parse("first", &text(1.0)).unwrap();
    assert_eq!((kept.posix.len(), kept.is_partial), (2 + 4 * 9 + 1, false));
    let page = page(std::slice::from_ref(&kept));
    for said in [
        "Writing whole files reaches 9.02 MB/s: sync access, files of 1MiB, 8 threads.",
        "the wire carries 204 KiB on top of the files ((a + s) / s).",
        "By default access a file that is closed is not in the storage yet",
        "read-ahead (by timings)",
        "The direct form was left out: it refuses.",
        "write: MB/s of one file by itself, by its size",
        "write: MB/s of many files, by threads",
        "sync, 1 + 204 KiB / s",
        "&lt;seen&gt; &amp; told",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(
        !page.contains("how even it is") && !page.contains("cannot be drawn") && !page.contains("<seen>")
    );
}

#[test]
fn two_are_compared() {
    let kept = |name: &str, factor| Kept::parse(name, &text(factor)).unwrap();
    let said = |factor| words(&[kept("a", 1.0), kept("b", factor)])[2].1.join("\n");
    assert!(said(1.0).starts_with("No difference"), "{}", said(1.0));
    assert!(said(1.2).contains("write sync 4KiB x 8: bytes/s 20 % higher, which is better"), "{}", said(1.2));
}
