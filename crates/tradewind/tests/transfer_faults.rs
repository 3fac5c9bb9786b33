//! End-to-end tests of the transfer commands against a server that responds wrongly, late or not at all. Safe requests
//! are retried a few times and unsafe ones never, damaged data is never stored, and messages say what to do.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "transfer_faults/bodies.rs"]
mod bodies;
#[path = "transfer_faults/bundles.rs"]
mod bundles;
#[path = "transfer_faults/checksum_headers.rs"]
mod checksum_headers;
#[path = "transfer_faults/clocks.rs"]
mod clocks;
#[path = "transfer_faults/damage.rs"]
mod damage;
#[path = "transfer_faults/few_files.rs"]
mod few_files;
#[path = "transfer_faults/few_threads.rs"]
mod few_threads;
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
#[path = "transfer_faults/unordered.rs"]
mod unordered;
#[path = "transfer_faults/versions.rs"]
mod versions;

use support::command_runner::CommandRunner;
use support::content::content;
use support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

/// A scripted server, and a caller for it.
fn scene(
    script: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, CommandRunner) {
    let server = ScriptedServer::start(script);
    let caller = CommandRunner::new(server.address);
    (server, caller)
}

/// A server that replies with `fault` to the first `times` requests of an operation, and correctly to all others.
fn scene_with(
    operation: &'static str,
    times: usize,
    fault: impl Fn(ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, CommandRunner) {
    scene(move |request, answer| {
        if request.operation == operation && request.number <= times {
            fault(answer)
        } else {
            Reply::Respond(answer)
        }
    })
}

fn refusal(status: u16, code: &str, message: &str) -> Reply {
    Reply::Respond(ScriptedResponse::error(status, code, message))
}

/// The relative paths of all files in the caller's directory, except unfinished files and their journals.
fn files(caller: &CommandRunner) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![caller.directory_path().to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.push(path.strip_prefix(caller.directory_path()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    // Every unfinished file must have a journal from which it resumes.
    let (unfinished, journals) = (".tradewind-part", ".journal");
    let count = |end: &str| found.iter().filter(|name| name.ends_with(end)).count();
    assert_eq!(count(unfinished), count(journals), "{found:?}");
    found.retain(|name| !name.ends_with(unfinished) && !name.ends_with(journals));
    found.sort();
    found
}
