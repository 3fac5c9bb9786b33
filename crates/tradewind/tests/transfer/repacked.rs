//! Resuming a killed packing: stored bundles are skipped, and the stored parts of an unfinished bundle are reused.
//! Files that changed since are packed again.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use super::{content, tree};
use crate::support::command_runner::CommandRunner;
use crate::support::eventually;
use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const PACK: [&str; 7] =
    ["cp", "--bundle", "--bundle-size=6MiB", "--chunk-size=5MiB", "--quiet", "here", "s3://bucket/x.tar"];
/// Number of files; they fill four bundles of two parts each.
const FILES: u64 = 79;

/// Number of files in the first bundle.
const IN_FIRST: u64 = 20;

/// An operation on a key and the reply to it. The first part of an upload is exempt.
type Script = Option<(&'static str, String, fn(ScriptedResponse) -> Reply)>;

const NO_RESPONSE: fn(ScriptedResponse) -> Reply = |_| Reply::Silence;
/// The operation is executed, but its response is never delivered.
const RESPONSE_LOST: fn(ScriptedResponse) -> Reply = |answer| Reply::Stalled(answer, 0);
const DENIED: fn(ScriptedResponse) -> Reply =
    |_| Reply::Respond(ScriptedResponse::error(403, "AccessDenied", "Access Denied"));

/// A packing that was killed.
struct Killed {
    server: ScriptedServer,
    caller: CommandRunner,
    script: Arc<Mutex<Script>>,
    /// Number of requests before the kill.
    before: usize,
}

fn bundle(number: u32) -> String {
    if number == 1 { "x.tar".to_owned() } else { format!("x-{number:05}.tar") }
}

fn file(number: u64) -> String {
    format!("here/{number:03}")
}

impl Killed {
    /// Kills a packing when exactly the first part of bundle `number` is stored.
    fn new(number: u32) -> Self {
        let script = Arc::new(Mutex::new(Script::None));
        let server = ScriptedServer::start({
            let script = script.clone();
            move |request: &Request, answer: ScriptedResponse| {
                let is_first_part = request.operation == "UploadPart" && request.query["partNumber"] == "1";
                match *script.lock().unwrap() {
                    Some((operation, ref key, reply))
                        if operation == request.operation && *key == request.key && !is_first_part =>
                    {
                        reply(answer)
                    }
                    _ => Reply::Respond(answer),
                }
            }
        });
        let caller = CommandRunner::new(server.address);
        for n in 0..FILES {
            // Files above 512 KiB are not read ahead.
            caller.write(file(n), content(n, if n % 11 == 0 { 600_000 } else { 280_000 }));
        }
        let mut killed = Self { server, caller, script, before: 0 };
        killed.pack_and_kill("UploadPart", number, NO_RESPONSE, || {
            let records =
                journals(&killed.caller).into_iter().map(fs::read_to_string).map(Result::unwrap_or_default);
            records.collect::<String>().matches("{\"Part\":").count() == 1
        });
        killed.before = killed.server.requests().len();
        killed
    }

    /// Runs the packing and kills it when the server withholds a response and `is_as_expected` holds.
    fn pack_and_kill(
        &self,
        operation: &'static str,
        number: u32,
        reply: fn(ScriptedResponse) -> Reply,
        is_as_expected: impl Fn() -> bool,
    ) {
        *self.script.lock().unwrap() = Some((operation, bundle(number), reply));
        let held = self.server.stalled_count();
        let running = self.caller.spawn(&PACK);
        self.server.wait_until_stalled(held + 1);
        eventually("the expected state", is_as_expected);
        running.signal(Signal::KILL);
        running.wait_for_output();
        *self.script.lock().unwrap() = None;
    }

    /// Runs the packing, which fails because of the given reply.
    fn fails(&self, operation: &'static str, number: u32, reply: fn(ScriptedResponse) -> Reply) {
        *self.script.lock().unwrap() = Some((operation, bundle(number), reply));
        let ran = self.caller.run(&PACK);
        assert_eq!(ran.status.code(), Some(1), "{operation} {number}: {ran:?}");
        *self.script.lock().unwrap() = None;
    }

    /// Changes the contents of a file, but not its size and modification time.
    fn change_contents(&self, number: u64) {
        let path = self.caller.path(file(number));
        let was = fs::metadata(&path).unwrap();
        fs::write(&path, content(1000, usize::try_from(was.len()).unwrap())).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(was.modified().unwrap()).unwrap();
    }

    /// Packs again to the end, and checks that the bundles contain every file in its current version and that no journal is left.
    /// Returns the operations by key; repeated part listings count once.
    fn resume(&self) -> BTreeMap<String, Vec<&'static str>> {
        self.caller.run_ok(&PACK);
        let mut operations: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for request in &self.server.requests()[self.before..] {
            let key_operations = operations.entry(request.key.clone()).or_default();
            if request.operation != "ListParts" || !key_operations.contains(&"ListParts") {
                key_operations.push(request.operation);
            }
        }
        assert_eq!(journals(&self.caller), [] as [PathBuf; 0], "no journal is left");
        self.caller.run_ok(&["cp", "--bundle", &format!("s3://{BUCKET}/x.tar"), "there"]);
        assert!(tree(&self.caller.path("there")) == tree(&self.caller.path("here")));
        operations
    }
}

/// The journal files.
fn journals(caller: &CommandRunner) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

const INSPECTED: &[&str] = &["GetObject"];
const RESUMED: &[&str] = &["ListParts", "UploadPart", "CompleteMultipartUpload"];
const RESTARTED: &[&str] = &["CreateMultipartUpload", "UploadPart", "UploadPart", "CompleteMultipartUpload"];

#[test]
fn stored_bundles_and_parts_are_not_uploaded_again() {
    let killed = Killed::new(3);
    let operations = killed.resume();
    assert_eq!(operations["x.tar"], INSPECTED);
    assert_eq!(operations["x-00002.tar"], INSPECTED);
    assert_eq!(operations["x-00003.tar"], [INSPECTED, RESUMED].concat());
    assert_eq!(operations["x-00004.tar"], [INSPECTED, RESTARTED].concat());
    let packed = killed.caller.run_ok(&["ls", "--bundle", "--json", &format!("s3://{BUCKET}/x.tar")]);
    assert_eq!(packed.matches("/x.tar\"").count() as u64, IN_FIRST);
}

#[test]
fn first_bundle_is_resumed() {
    let operations = Killed::new(1).resume();
    assert_eq!(operations["x.tar"], [INSPECTED, RESUMED].concat());
}

#[test]
fn changed_file_repacks_its_bundle_and_all_later_ones() {
    let killed = Killed::new(4);
    killed.change_contents(25);
    let operations = killed.resume();
    assert_eq!(operations["x.tar"], INSPECTED);
    assert_eq!(operations["x-00002.tar"], [INSPECTED, RESTARTED].concat());
    // The old third bundle would be mistaken for the successor of the new second one.
    assert_eq!(operations["x-00003.tar"][..2], ["GetObject", "DeleteObject"]);
    assert_eq!(operations["x-00003.tar"][2..], *RESTARTED);
}

/// The journal records a bundle before it is stored, so an older bundle may still be at its key.
#[test]
fn older_bundle_at_the_key_is_not_mistaken_for_the_new_one() {
    let killed = Killed::new(3);
    killed.change_contents(25);
    killed.pack_and_kill("CompleteMultipartUpload", 2, NO_RESPONSE, || true);
    assert_eq!(killed.resume()["x-00002.tar"].last(), Some(&"CompleteMultipartUpload"));
}

#[test]
fn changed_first_file_repacks_everything() {
    let killed = Killed::new(3);
    killed.caller.write(file(0), "y");
    let operations = killed.resume();
    assert_eq!(operations["x.tar"], [INSPECTED, RESTARTED].concat());
    assert_eq!(operations["x-00002.tar"], RESTARTED);
}

#[test]
fn added_and_removed_files_repack_their_bundle() {
    let killed = Killed::new(3);
    killed.caller.write("here/024-", "came");
    assert_eq!(killed.resume()["x-00002.tar"], [INSPECTED, RESTARTED].concat());
    let killed = Killed::new(3);
    fs::remove_file(killed.caller.path(file(24))).unwrap();
    assert_eq!(killed.resume()["x-00002.tar"], [INSPECTED, RESTARTED].concat());
}

/// The last bundle must not declare a successor; the upload of the former successor is aborted.
#[test]
fn last_bundle_is_repacked_if_no_files_follow() {
    let killed = Killed::new(3);
    for n in IN_FIRST..FILES {
        fs::remove_file(killed.caller.path(file(n))).unwrap();
    }
    let operations = killed.resume();
    assert_eq!(operations["x.tar"], [INSPECTED, RESTARTED].concat());
    assert_eq!(operations["x-00003.tar"], ["AbortMultipartUpload"]);
    let packed = killed.caller.run_ok(&["ls", "--bundle", &format!("s3://{BUCKET}/x.tar")]);
    assert_eq!(packed.lines().count() as u64, IN_FIRST);
}

#[test]
fn other_bundle_size_starts_a_new_set() {
    let killed = Killed::new(3);
    let mut pack = PACK;
    pack[2] = "--bundle-size=12MiB";
    killed.caller.run_ok(&pack);
    killed.caller.run_ok(&["cp", "--bundle", &format!("s3://{BUCKET}/x.tar"), "there"]);
    assert!(tree(&killed.caller.path("there")) == tree(&killed.caller.path("here")));
    let packed = killed.caller.run_ok(&["ls", "--bundle", "--json", &format!("s3://{BUCKET}/x.tar")]);
    assert!(packed.matches("/x.tar\"").count() as u64 > IN_FIRST + 10);
    assert_eq!(journals(&killed.caller), [] as [PathBuf; 0]);
    assert!(killed.server.requests_of("AbortMultipartUpload").iter().any(|request| request.key == bundle(3)));
}

#[test]
fn bundle_with_lost_completion_response_is_found() {
    let killed = Killed::new(2);
    killed.pack_and_kill("CompleteMultipartUpload", 2, RESPONSE_LOST, || true);
    let before = killed.server.requests_of("UploadPart").len();
    let operations = killed.resume();
    // The journal still names the upload, so it is aborted to be safe.
    assert!(operations["x-00002.tar"].ends_with(&["GetObject", "AbortMultipartUpload"]), "{operations:?}");
    assert_eq!(killed.server.requests_of("UploadPart").len() - before, 4, "two bundles of two parts");
}

/// Expired credentials do not discard the journal.
#[test]
fn journal_survives_expired_credentials() {
    let expired: fn(ScriptedResponse) -> Reply = |_| {
        let message = "The provided token has expired.";
        Reply::Respond(ScriptedResponse::error(400, "ExpiredToken", message))
    };
    for (operation, number) in [("GetObject", 1), ("GetObject", 3), ("ListParts", 3)] {
        let killed = Killed::new(3);
        killed.fails(operation, number, expired);
        let operations = killed.resume();
        assert_eq!(operations["x.tar"].last(), Some(&"GetObject"), "{operation} {number}: {operations:?}");
        let sent = operations["x-00003.tar"].iter().filter(|operation| **operation == "UploadPart").count();
        assert_eq!(sent, 1, "{operation} {number}: {operations:?}");
    }
}

#[test]
fn only_bundles_of_the_same_set_are_removed() {
    let killed = Killed::new(4);
    killed.caller.write("others/a", "b");
    killed.caller.run_ok(&["cp", "--bundle", "others", &format!("s3://{BUCKET}/x-00003.tar")]);
    killed.change_contents(25);
    assert!(!killed.resume()["x-00003.tar"].contains(&"DeleteObject"));
}

/// Without permission to remove bundles, the next packing starts over with a new set.
#[test]
fn denied_removal_fails_once_and_then_starts_a_new_set() {
    let killed = Killed::new(4);
    killed.change_contents(25);
    killed.fails("DeleteObject", 3, DENIED);
    let before = killed.server.requests().len();
    killed.resume();
    let sent = |request: &&Request| request.operation == "UploadPart";
    let sent = killed.server.requests()[before..].iter().filter(sent).count();
    assert_eq!(sent, 7, "four bundles of two parts, of which the last one had one");
    assert_eq!(killed.server.requests_of("DeleteObject").len(), 1);
}

#[test]
fn no_journal_is_left_if_no_upload_started() {
    let server = ScriptedServer::start(|_, _| DENIED(ScriptedResponse::default()));
    let caller = CommandRunner::new(server.address);
    caller.write("here/a", "b");
    assert_eq!(caller.run(&PACK).status.code(), Some(1));
    assert_eq!(journals(&caller), [] as [PathBuf; 0]);
}

/// An object that another packing stored at the key is not mistaken for a bundle of this set.
#[test]
fn bundle_replaced_by_another_packing_is_repacked() {
    let killed = Killed::new(3);
    killed.caller.write("others/a", "b");
    killed.caller.run_ok(&["cp", "--bundle", "others", &format!("s3://{BUCKET}/x-00002.tar")]);
    let operations = killed.resume();
    assert_eq!(operations["x-00002.tar"], [&["PutObject"], INSPECTED, RESTARTED].concat());
}
