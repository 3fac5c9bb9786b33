//! One connection that stalls or crawls among others that do not: what it should bring is asked for over another, long
//! before it counts as broken.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{content, scene};
use crate::support::scripted::{Answer, Reply, Request};

/// Chunks of 1 MiB.
const SIZE: usize = 40 << 20;
/// A connection of which nothing is heard counts as broken after 30 s.
const SOON: Duration = Duration::from_secs(12);

type Fault = fn(Answer) -> Reply;

/// What is done to the first request for a range.
const FAULTS: [(&str, Fault); 3] = [
    ("silence", |_| Reply::Silence),
    ("stalled midway", |answer| Reply::Held(answer, 300_000)),
    // It would take over a minute.
    ("crawling", |answer| Reply::Crawling(answer, 1500)),
];

/// The first and the last byte that a request asks for.
fn range(request: &Request) -> (usize, usize) {
    let range = request.header("range").trim_start_matches("bytes=");
    let (first, last) = range.split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}

#[test]
fn a_late_chunk_is_asked_for_over_another_connection() {
    for (name, fault) in FAULTS {
        // In the midst, and the last of all; streams are read in chunks of 2 MiB behind the first.
        for (late, to) in [(21, "x"), (39, "x"), (21, "-")] {
            let late = late << 20;
            let is_first = AtomicBool::new(true);
            let (server, caller) = scene(move |request, answer| {
                if range(request).0 == late && is_first.swap(false, Ordering::Relaxed) {
                    fault(answer)
                } else {
                    Reply::Answer(answer)
                }
            });
            let bytes = content(1, SIZE);
            server.lay("x", bytes.clone());
            let begun = Instant::now();
            let command = ["cp", "--chunk-size", "1MiB", "s3://bucket/x", to, "--json"];
            let ran = caller.run(if to == "-" { &command[..5] } else { &command });
            let took = begun.elapsed();
            assert!(ran.status.success() && ran.err.is_empty(), "{name}: {}", ran.err);
            assert!(took < SOON, "{name} at {late} to {to}: {took:?}");

            let came = if to == "-" { ran.out.clone() } else { fs::read(caller.path("x")).unwrap() };
            assert!(came == bytes, "{name}");
            let asked = server.of("GetObject");
            let of_late = asked.iter().find(|request| range(request).0 == late).unwrap();
            let again: Vec<&Request> =
                asked.iter().filter(|each| range(each).1 == range(of_late).1).collect();
            assert_eq!(again.len(), 2, "{name}: what is missing is asked for once more");
            assert!(again.iter().all(|request| !request.header("if-match").is_empty()));
            if to != "-" {
                let told: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
                assert_eq!((&told["hedged"], &told["bytes"]), (&1.into(), &SIZE.into()), "{told}");
                assert_eq!(asked.len(), 41, "{name}: and nothing else");
            }
        }
    }
}

#[test]
fn a_store_that_is_slow_throughout_gets_no_more_requests() {
    // 64 KiB in 100 ms: from a moment on, all at once.
    let (server, caller) =
        scene(
            |request, answer| {
                if request.number > 12 { Reply::Crawling(answer, 64 << 10) } else { Reply::Answer(answer) }
            },
        );
    let bytes = content(1, SIZE);
    server.lay("x", bytes.clone());
    let told = caller.done(&["cp", "--chunk-size", "1MiB", "--json", "s3://bucket/x", "x"]);
    assert!(fs::read(caller.path("x")).unwrap() == bytes);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["hedged"], server.of("GetObject").len()), (&0.into(), 40), "{told}");
}
