//! A packing that is killed goes on another time: behind the bundles that are stored, and with the parts of the one that it
//! was at. Files that changed meanwhile are packed as they are then.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use super::{content, tree};
use crate::support::caller::Caller;
use crate::support::eventually;
use crate::support::scripted::{Answer, BUCKET, Reply, Request, Scripted};

const PACK: [&str; 7] =
    ["cp", "--bundle", "--bundle-size=6MiB", "--chunk-size=5MiB", "--quiet", "here", "s3://bucket/x.tar"];
/// They fill four bundles, of two parts each.
const FILES: u64 = 79;

/// So many fill the first one.
const IN_FIRST: u64 = 20;

/// What the server does about an operation on a key, but for the first part.
type Script = Option<(&'static str, String, fn(Answer) -> Reply)>;

const SILENCE: fn(Answer) -> Reply = |_| Reply::Silence;
/// It is carried out, and nobody hears of it.
const LOST: fn(Answer) -> Reply = |answer| Reply::Held(answer, 0);
const DENIED: fn(Answer) -> Reply = |_| Reply::Answer(Answer::refusal(403, "AccessDenied", "Access Denied"));

/// A packing that was killed.
struct Killed {
    server: Scripted,
    caller: Caller,
    script: Arc<Mutex<Script>>,
    /// Requests before.
    before: usize,
}

fn bundle(number: u32) -> String {
    if number == 1 { "x.tar".to_owned() } else { format!("x-{number:05}.tar") }
}

fn file(number: u64) -> String {
    format!("here/{number:03}")
}

impl Killed {
    /// When the first part of a bundle was stored, and no other.
    fn at(number: u32) -> Self {
        let script = Arc::new(Mutex::new(Script::None));
        let server = Scripted::start({
            let script = script.clone();
            move |request: &Request, answer: Answer| {
                let is_first_part = request.operation == "UploadPart" && request.query["partNumber"] == "1";
                match *script.lock().unwrap() {
                    Some((operation, ref key, reply))
                        if operation == request.operation && *key == request.key && !is_first_part =>
                    {
                        reply(answer)
                    }
                    _ => Reply::Answer(answer),
                }
            }
        });
        let caller = Caller::new(server.address);
        for n in 0..FILES {
            // Some are read ahead, and some are not.
            caller.write(file(n), content(n, if n % 11 == 0 { 600_000 } else { 280_000 }));
        }
        let mut killed = Self { server, caller, script, before: 0 };
        killed.again("UploadPart", number, SILENCE, || {
            let said =
                journals(&killed.caller).into_iter().map(fs::read_to_string).map(Result::unwrap_or_default);
            said.collect::<String>().matches("{\"Part\":").count() == 1
        });
        killed.before = killed.server.seen().len();
        killed
    }

    /// Packs, and is killed where the server is silent and everything else is as it is expected then.
    fn again(
        &self,
        operation: &'static str,
        number: u32,
        reply: fn(Answer) -> Reply,
        is_as_expected: impl Fn() -> bool,
    ) {
        *self.script.lock().unwrap() = Some((operation, bundle(number), reply));
        let held = self.server.held();
        let running = self.caller.begin(&PACK);
        self.server.wait_until_held(held + 1);
        eventually("it has come so far", is_as_expected);
        running.signal(Signal::KILL);
        running.end();
        *self.script.lock().unwrap() = None;
    }

    /// Packs, which fails where the server answers so.
    fn fails(&self, operation: &'static str, number: u32, reply: fn(Answer) -> Reply) {
        *self.script.lock().unwrap() = Some((operation, bundle(number), reply));
        let ran = self.caller.run(&PACK);
        assert_eq!(ran.status.code(), Some(1), "{operation} {number}: {ran:?}");
        *self.script.lock().unwrap() = None;
    }

    /// Other bytes for a file whose size and time stay what they were.
    fn changes(&self, number: u64) {
        let path = self.caller.path(file(number));
        let was = fs::metadata(&path).unwrap();
        fs::write(&path, content(1000, usize::try_from(was.len()).unwrap())).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(was.modified().unwrap()).unwrap();
    }

    /// Packs again, and finds every file as it is now in the bundles, and nothing left. Answers what was asked for by key; how
    /// often parts are listed does not matter.
    fn goes_on(&self) -> BTreeMap<String, Vec<&'static str>> {
        self.caller.done(&PACK);
        let mut asked: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for request in &self.server.seen()[self.before..] {
            let of_key = asked.entry(request.key.clone()).or_default();
            if request.operation != "ListParts" || !of_key.contains(&"ListParts") {
                of_key.push(request.operation);
            }
        }
        assert_eq!(journals(&self.caller), [] as [PathBuf; 0], "nothing is to be remembered");
        self.caller.done(&["cp", "--bundle", &format!("s3://{BUCKET}/x.tar"), "there"]);
        assert!(tree(&self.caller.path("there")) == tree(&self.caller.path("here")));
        asked
    }
}

/// The files that remember transfers.
fn journals(caller: &Caller) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

const LOOKED_AT: &[&str] = &["GetObject"];
const GONE_ON_WITH: &[&str] = &["ListParts", "UploadPart", "CompleteMultipartUpload"];
const ANEW: &[&str] = &["CreateMultipartUpload", "UploadPart", "UploadPart", "CompleteMultipartUpload"];

#[test]
fn what_is_stored_is_not_sent_again() {
    let killed = Killed::at(3);
    let asked = killed.goes_on();
    assert_eq!(asked["x.tar"], LOOKED_AT);
    assert_eq!(asked["x-00002.tar"], LOOKED_AT);
    assert_eq!(asked["x-00003.tar"], [LOOKED_AT, GONE_ON_WITH].concat());
    assert_eq!(asked["x-00004.tar"], [LOOKED_AT, ANEW].concat());
    let packed = killed.caller.done(&["ls", "--bundle", "--json", &format!("s3://{BUCKET}/x.tar")]);
    assert_eq!(packed.matches("/x.tar\"").count() as u64, IN_FIRST);
}

#[test]
fn the_first_bundle_goes_on_too() {
    let asked = Killed::at(1).goes_on();
    assert_eq!(asked["x.tar"], [LOOKED_AT, GONE_ON_WITH].concat());
}

#[test]
fn what_changed_is_packed_again_and_all_behind_it() {
    let killed = Killed::at(4);
    killed.changes(25);
    let asked = killed.goes_on();
    assert_eq!(asked["x.tar"], LOOKED_AT);
    assert_eq!(asked["x-00002.tar"], [LOOKED_AT, ANEW].concat());
    // It would seem to follow the second one as it is now.
    assert_eq!(asked["x-00003.tar"][..2], ["GetObject", "DeleteObject"]);
    assert_eq!(asked["x-00003.tar"][2..], *ANEW);
}

/// Of a bundle that is about to be stored it is remembered what it holds; what has its name may still be what was there
/// before.
#[test]
fn an_older_bundle_is_not_taken_for_the_newer_one() {
    let killed = Killed::at(3);
    killed.changes(25);
    killed.again("CompleteMultipartUpload", 2, SILENCE, || true);
    assert_eq!(killed.goes_on()["x-00002.tar"].last(), Some(&"CompleteMultipartUpload"));
}

#[test]
fn where_the_first_file_changed_all_is_packed_anew() {
    let killed = Killed::at(3);
    killed.caller.write(file(0), "y");
    let asked = killed.goes_on();
    assert_eq!(asked["x.tar"], [LOOKED_AT, ANEW].concat());
    assert_eq!(asked["x-00002.tar"], ANEW);
}

#[test]
fn files_that_came_or_went_change_their_bundle() {
    let killed = Killed::at(3);
    killed.caller.write("here/024-", "came");
    assert_eq!(killed.goes_on()["x-00002.tar"], [LOOKED_AT, ANEW].concat());
    let killed = Killed::at(3);
    fs::remove_file(killed.caller.path(file(24))).unwrap();
    assert_eq!(killed.goes_on()["x-00002.tar"], [LOOKED_AT, ANEW].concat());
}

/// The last bundle must not say that another one follows; what was begun of that one is freed.
#[test]
fn where_nothing_is_left_the_last_bundle_is_packed_again() {
    let killed = Killed::at(3);
    for n in IN_FIRST..FILES {
        fs::remove_file(killed.caller.path(file(n))).unwrap();
    }
    let asked = killed.goes_on();
    assert_eq!(asked["x.tar"], [LOOKED_AT, ANEW].concat());
    assert_eq!(asked["x-00003.tar"], ["AbortMultipartUpload"]);
    let packed = killed.caller.done(&["ls", "--bundle", &format!("s3://{BUCKET}/x.tar")]);
    assert_eq!(packed.lines().count() as u64, IN_FIRST);
}

#[test]
fn bundles_of_another_size_are_another_set() {
    let killed = Killed::at(3);
    let mut pack = PACK;
    pack[2] = "--bundle-size=12MiB";
    killed.caller.done(&pack);
    killed.caller.done(&["cp", "--bundle", &format!("s3://{BUCKET}/x.tar"), "there"]);
    assert!(tree(&killed.caller.path("there")) == tree(&killed.caller.path("here")));
    let packed = killed.caller.done(&["ls", "--bundle", "--json", &format!("s3://{BUCKET}/x.tar")]);
    assert!(packed.matches("/x.tar\"").count() as u64 > IN_FIRST + 10);
    assert_eq!(journals(&killed.caller), [] as [PathBuf; 0]);
    assert!(killed.server.of("AbortMultipartUpload").iter().any(|request| request.key == bundle(3)));
}

#[test]
fn a_bundle_whose_completion_nobody_heard_of_is_found() {
    let killed = Killed::at(2);
    killed.again("CompleteMultipartUpload", 2, LOST, || true);
    let before = killed.server.of("UploadPart").len();
    let asked = killed.goes_on();
    // What is left to free is asked to be freed.
    assert!(asked["x-00002.tar"].ends_with(&["GetObject", "AbortMultipartUpload"]), "{asked:?}");
    assert_eq!(killed.server.of("UploadPart").len() - before, 4, "two bundles of two parts");
}

/// Keys that ran out are no reason to forget anything.
#[test]
fn what_is_remembered_outlives_keys_that_ran_out() {
    let expired: fn(Answer) -> Reply = |_| {
        let message = "The provided token has expired.";
        Reply::Answer(Answer::refusal(400, "ExpiredToken", message))
    };
    for (operation, number) in [("GetObject", 1), ("GetObject", 3), ("ListParts", 3)] {
        let killed = Killed::at(3);
        killed.fails(operation, number, expired);
        let asked = killed.goes_on();
        assert_eq!(asked["x.tar"].last(), Some(&"GetObject"), "{operation} {number}: {asked:?}");
        let sent = asked["x-00003.tar"].iter().filter(|operation| **operation == "UploadPart").count();
        assert_eq!(sent, 1, "{operation} {number}: {asked:?}");
    }
}

#[test]
fn only_what_is_of_this_set_is_removed() {
    let killed = Killed::at(4);
    killed.caller.write("others/a", "b");
    killed.caller.done(&["cp", "--bundle", "others", &format!("s3://{BUCKET}/x-00003.tar")]);
    killed.changes(25);
    assert!(!killed.goes_on()["x-00003.tar"].contains(&"DeleteObject"));
}

/// Who may not remove bundles packs all of them anew, the time after that.
#[test]
fn who_may_not_remove_bundles_is_told_once() {
    let killed = Killed::at(4);
    killed.changes(25);
    killed.fails("DeleteObject", 3, DENIED);
    let before = killed.server.seen().len();
    killed.goes_on();
    let sent = |request: &&Request| request.operation == "UploadPart";
    let sent = killed.server.seen()[before..].iter().filter(sent).count();
    assert_eq!(sent, 7, "four bundles of two parts, of which the last one had one");
    assert_eq!(killed.server.of("DeleteObject").len(), 1);
}

#[test]
fn nothing_is_remembered_of_what_never_began() {
    let server = Scripted::start(|_, _| DENIED(Answer::default()));
    let caller = Caller::new(server.address);
    caller.write("here/a", "b");
    assert_eq!(caller.run(&PACK).status.code(), Some(1));
    assert_eq!(journals(&caller), [] as [PathBuf; 0]);
}

/// What somebody else stored under the name is not taken for ours.
#[test]
fn a_bundle_that_another_packing_replaced_is_packed_again() {
    let killed = Killed::at(3);
    killed.caller.write("others/a", "b");
    killed.caller.done(&["cp", "--bundle", "others", &format!("s3://{BUCKET}/x-00002.tar")]);
    let asked = killed.goes_on();
    assert_eq!(asked["x-00002.tar"], [&["PutObject"], LOOKED_AT, ANEW].concat());
}
