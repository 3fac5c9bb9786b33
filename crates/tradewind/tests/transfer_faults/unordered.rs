//! Services that do not list in byte order, or that continue a listing in their own way: nothing is missed,
//! and nothing is removed or replaced that the listing has not shown yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{files, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::listing_habits::ListingHabit;
use crate::support::scripted_server::{Reply, ScriptedResponse, ScriptedServer};

/// Keys whose order by directory is not byte order: `/` sorts after `-` and before `0`.
fn keys() -> Vec<String> {
    (0..9).flat_map(|n| ["/x", "-x", "/y/z", "0"].map(|rest| format!("d{n}{rest}"))).collect()
}

/// A service with the keys, whose pages have seven of them.
fn service(habit: ListingHabit, keys: &[String]) -> (ScriptedServer, CommandRunner) {
    let listed: BTreeMap<String, Vec<u8>> =
        keys.iter().map(|key| (key.clone(), key.clone().into_bytes())).collect();
    let listed = Arc::new(Mutex::new(listed));
    let (server, caller) = scene(move |request, proper| {
        let mut listed = listed.lock().unwrap();
        match request.operation {
            "ListObjectsV2" => return Reply::Respond(habit.page(&listed, request, 7)),
            "PutObject" => drop(listed.insert(request.key.clone(), request.body.clone())),
            "DeleteObject" => drop(listed.remove(&request.key)),
            _ => {}
        }
        Reply::Respond(proper)
    });
    keys.iter().for_each(|key| server.put_object(key, key.clone().into_bytes()));
    (server, caller)
}

/// Files with the names and bytes of the keys.
fn write_files(caller: &CommandRunner, keys: &[String]) {
    keys.iter().for_each(|key| caller.write(format!("there/{key}"), key));
}

fn file_names(keys: &[String]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().map(|key| format!("there/{key}")).collect();
    names.sort();
    names
}

#[test]
fn listings_copies_and_removals_see_every_key() {
    for habit in ListingHabit::ALL {
        let keys = keys();
        let (server, caller) = service(habit, &keys);
        let listed = caller.run_ok(&["ls", "-r", "s3://bucket"]);
        let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
        names.sort_unstable();
        let mut expected = keys.clone();
        expected.sort();
        assert_eq!(names, expected, "{habit:?}");
        for key in &keys {
            let stated = caller.run_ok(&["stat", &format!("s3://bucket/{key}")]);
            assert!(stated.contains(key), "{habit:?}: {stated}");
            assert_eq!(caller.run_ok(&["cat", &format!("s3://bucket/{key}")]), *key, "{habit:?}");
        }
        caller.run_ok(&["cp", "-r", "s3://bucket", "there"]);
        assert_eq!(files(&caller), file_names(&keys), "{habit:?}");
        caller.run_ok(&["rm", "-r", "s3://bucket"]);
        assert!(keys.iter().all(|key| server.object(key).is_none()), "{habit:?}");
    }
}

#[test]
fn sync_from_the_service_removes_only_what_it_does_not_have() {
    for habit in ListingHabit::ALL {
        let keys = keys();
        let (server, caller) = service(habit, &keys);
        write_files(&caller, &keys);
        ["a", "d3/w", "d5-y", "z"].iter().for_each(|name| caller.write(format!("there/{name}"), "mine"));
        caller.run_ok(&["sync", "--size-only", "--delete", "s3://bucket", "there"]);
        assert_eq!(files(&caller), file_names(&keys), "{habit:?}");
        assert!(server.requests_of("GetObject").is_empty(), "{habit:?}: all files are equal");
    }
}

#[test]
fn sync_to_the_service_copies_only_what_differs() {
    for habit in ListingHabit::ALL {
        let keys = keys();
        let (server, caller) = service(habit, &keys);
        let missing = ["d2-x", "d4/x", "d80"];
        let kept: Vec<String> = keys.iter().filter(|key| !missing.contains(&key.as_str())).cloned().collect();
        write_files(&caller, &kept);
        caller.write("there/d5/new", "new");
        caller.write("there/d6-x", "larger than before");
        caller.run_ok(&["sync", "--size-only", "--delete", "there", "s3://bucket"]);
        let mut written: Vec<String> =
            server.requests_of("PutObject").into_iter().map(|request| request.key).collect();
        written.sort();
        assert_eq!(written, ["d5/new", "d6-x"], "{habit:?}");
        let mut removed: Vec<String> =
            server.requests_of("DeleteObject").into_iter().map(|request| request.key).collect();
        removed.sort();
        assert_eq!(removed, missing, "{habit:?}");
    }
}

/// A listing that fails says nothing about what it would have shown.
#[test]
fn sync_removes_nothing_if_an_unordered_listing_fails() {
    // The first page of two keys is in order.
    for (page_keys, good_pages) in [(7, 3), (2, 1)] {
        let keys = keys();
        let listed: BTreeMap<String, Vec<u8>> =
            keys.iter().map(|key| (key.clone(), key.clone().into_bytes())).collect();
        let (_server, caller) = scene(move |request, proper| {
            Reply::Respond(match request.operation {
                "ListObjectsV2" if request.number > good_pages => {
                    ScriptedResponse::error(403, "AccessDenied", "no")
                }
                "ListObjectsV2" => ListingHabit::ByDirectory.page(&listed, request, page_keys),
                _ => proper,
            })
        });
        write_files(&caller, &keys);
        caller.write("there/a", "mine");
        let ran = caller.run(&["sync", "--size-only", "--delete", "s3://bucket", "there"]);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert_eq!(files(&caller).len(), keys.len() + 1, "{ran:?}");
    }
}
