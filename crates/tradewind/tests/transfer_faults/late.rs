//! Hedged requests: the bytes of a connection that stalls or crawls are requested again over another connection, long
//! before the first counts as broken.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{content, scene};
use crate::support::scripted_server::{Reply, Request, ScriptedResponse};

/// The size of the object, fetched in chunks of 1 MiB.
const SIZE: usize = 40 << 20;
/// Limit for a download with one straggler; a silent connection counts as broken only after 30 s.
const MAX_HEDGED_TIME: Duration = Duration::from_secs(12);

type Fault = fn(ScriptedResponse) -> Reply;

/// The faults of the first request for a range.
const FAULTS: [(&str, Fault); 3] = [
    ("silence", |_| Reply::Silence),
    ("stalled midway", |answer| Reply::Stalled(answer, 300_000)),
    // The chunk would take over a minute.
    ("crawling", |answer| Reply::Trickled(answer, 1500)),
];

/// The first and last byte of a request's range.
fn range(request: &Request) -> (usize, usize) {
    let range = request.header("range").trim_start_matches("bytes=");
    let (first, last) = range.split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}

#[test]
fn straggler_is_hedged_over_another_connection() {
    for (name, fault) in FAULTS {
        // A chunk in the middle, and the last one; streams use chunks of 2 MiB after the first.
        for (late, to) in [(21, "x"), (39, "x"), (21, "-")] {
            let late = late << 20;
            let is_first = AtomicBool::new(true);
            let (server, caller) = scene(move |request, answer| {
                if range(request).0 == late && is_first.swap(false, Ordering::Relaxed) {
                    fault(answer)
                } else {
                    Reply::Respond(answer)
                }
            });
            let bytes = content(1, SIZE);
            server.put_object("x", bytes.clone());
            let started = Instant::now();
            let command = ["cp", "--chunk-size", "1MiB", "s3://bucket/x", to, "--json"];
            let ran = caller.run(if to == "-" { &command[..5] } else { &command });
            let took = started.elapsed();
            assert!(ran.status.success() && ran.err.is_empty(), "{name}: {}", ran.err);
            assert!(took < MAX_HEDGED_TIME, "{name} at {late} to {to}: {took:?}");

            let received = if to == "-" { ran.out.clone() } else { fs::read(caller.path("x")).unwrap() };
            assert!(received == bytes, "{name}");
            let requests = server.requests_of("GetObject");
            let late_request = requests.iter().find(|request| range(request).0 == late).unwrap();
            let hedged: Vec<&Request> =
                requests.iter().filter(|each| range(each).1 == range(late_request).1).collect();
            assert_eq!(hedged.len(), 2, "{name}: the missing bytes are requested once more");
            assert!(hedged.iter().all(|request| !request.header("if-match").is_empty()));
            if to != "-" {
                let summary: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
                assert_eq!((&summary["hedged"], &summary["bytes"]), (&1.into(), &SIZE.into()), "{summary}");
                assert_eq!(requests.len(), 41, "{name}: no other chunk is hedged");
            }
        }
    }
}

#[test]
fn uniformly_slow_store_gets_no_hedges() {
    // From the 13th request on, all responses take 100 ms per 64 KiB.
    let (server, caller) =
        scene(
            |request, answer| {
                if request.number > 12 { Reply::Trickled(answer, 64 << 10) } else { Reply::Respond(answer) }
            },
        );
    let bytes = content(1, SIZE);
    server.put_object("x", bytes.clone());
    let summary = caller.run_ok(&["cp", "--chunk-size", "1MiB", "--json", "s3://bucket/x", "x"]);
    assert!(fs::read(caller.path("x")).unwrap() == bytes);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["hedged"], server.requests_of("GetObject").len()), (&0.into(), 40), "{summary}");
}
