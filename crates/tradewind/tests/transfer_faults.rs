//! The commands that move data, run as processes against a server that answers wrongly, late or not at all: what may
//! be repeated is, a few times; what may not is not; nothing damaged is ever kept; and what is said tells what to do.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "transfer_faults/bodies.rs"]
mod bodies;
#[path = "transfer_faults/bundles.rs"]
mod bundles;
#[path = "transfer_faults/damage.rs"]
mod damage;
#[path = "transfer_faults/full_disk.rs"]
mod full_disk;
#[path = "transfer_faults/large.rs"]
mod large;
#[path = "transfer_faults/late.rs"]
mod late;
#[path = "transfer_faults/listings.rs"]
mod listings;
#[path = "transfer_faults/refusals.rs"]
mod refusals;
#[path = "transfer_faults/repeats.rs"]
mod repeats;

use support::caller::Caller;
use support::content::content;
use support::scripted::{Answer, Reply, Request, Scripted};

/// A server with a script, and somebody who calls it.
fn scene(script: impl Fn(&Request, Answer) -> Reply + Send + Sync + 'static) -> (Scripted, Caller) {
    let server = Scripted::start(script);
    let caller = Caller::new(server.address);
    (server, caller)
}

/// A server whose first answers to an operation are these, and whose others are right.
fn scene_with(
    operation: &'static str,
    times: usize,
    fault: impl Fn(Answer) -> Reply + Send + Sync + 'static,
) -> (Scripted, Caller) {
    scene(move |request, answer| {
        if request.operation == operation && request.number <= times {
            fault(answer)
        } else {
            Reply::Answer(answer)
        }
    })
}

fn refusal(status: u16, code: &str, message: &str) -> Reply {
    Reply::Answer(Answer::refusal(status, code, message))
}

/// Everything in the caller's directory, by its path there.
fn files(caller: &Caller) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![caller.root().to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                found.push(path.strip_prefix(caller.root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    // What may go on another time is under a name that nobody takes for a file, and remembered.
    let (unfinished, journals) = (".tradewind-part", ".journal");
    let count = |end: &str| found.iter().filter(|name| name.ends_with(end)).count();
    assert_eq!(count(unfinished), count(journals), "{found:?}");
    found.retain(|name| !name.ends_with(unfinished) && !name.ends_with(journals));
    found.sort();
    found
}
