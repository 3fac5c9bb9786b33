//! Services whose clock differs from this machine's: only the `Date` of their responses tells how soon after its upload an
//! object was downloaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::scene;
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::Reply;

fn copied(caller: &CommandRunner) -> u64 {
    let summary = caller.run_ok(&["sync", "--json", "s3://bucket", "there"]);
    serde_json::from_str::<serde_json::Value>(&summary).unwrap()["copied"].as_u64().unwrap()
}

#[test]
fn race_with_an_upload_is_found_by_the_clock_of_the_service() {
    let is_later = Arc::new(AtomicBool::new(false));
    let later = is_later.clone();
    // Objects were written at 03:04:05.
    let (server, caller) = scene(move |_, answer| {
        let second = if later.load(Ordering::Relaxed) { 20 } else { 6 };
        Reply::Respond(answer.with_header("Date", &format!("Fri, 02 Jan 2026 03:04:{second:02} GMT")))
    });
    server.put_object("a", b"1".to_vec());
    assert_eq!(copied(&caller), 1);
    server.put_object("a", b"2".to_vec());
    assert_eq!(copied(&caller), 1, "the object may have been written after it was downloaded");
    assert_eq!(std::fs::read(caller.path("there/a")).unwrap(), b"2");
    is_later.store(true, Ordering::Relaxed);
    assert_eq!(copied(&caller), 0);
}

#[test]
fn downloads_long_after_the_upload_are_not_repeated() {
    let (server, caller) =
        scene(|_, answer| Reply::Respond(answer.with_header("Date", "Fri, 02 Jan 2026 03:05:05 GMT")));
    server.put_object("a", b"1".to_vec());
    assert_eq!((copied(&caller), copied(&caller)), (1, 0));
}
