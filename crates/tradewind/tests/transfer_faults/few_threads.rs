//! Commands whose user may have few threads: they do with fewer, or say what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use super::scene;
use crate::support::scripted_server::Reply;

/// A user without other processes.
const USER: u32 = 54_321;

#[test]
fn few_threads_are_used_or_explained() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run a command as another user");
        return;
    }
    let (server, mut caller) = scene(|_, proper| Reply::Respond(proper));
    for number in 0..20 {
        server.put_object(&format!("from/{number}"), vec![b'x'; 300_000]);
        caller.write(format!("files/{number}"), vec![b'x'; 300_000]);
    }
    let settings = caller.path("settings.toml");
    caller = caller.with_variable("TRADEWIND_CONFIG", settings.to_str().unwrap());
    fs::set_permissions(caller.directory_path(), fs::Permissions::from_mode(0o777)).unwrap();
    chown(caller.path("files"), Some(USER), None).unwrap();
    let mut successes = 0;
    for threads in (1..=12).chain([40]) {
        let path = caller.path(format!("local-{threads}"));
        let settings = format!("[store.disk]\ntype = \"local\"\npath = {path:?}\n");
        caller.write("settings.toml", settings);
        for arguments in [
            &["cp", "-r", "s3://bucket/from", "down"][..],
            &["cp", "-r", "files", "s3://bucket/up"],
            &["cp", "-r", "files", "copy"],
            &["cp", "s3://bucket/from/1", "-"],
            &["cp", "-", "s3://bucket/stdin"],
            &["cp", "--bundle", "files", "s3://bucket/all.tar"],
            &["grep", "x", "s3://bucket/from"],
            &["mb", "disk://bucket"],
            &["cp", "-r", "files", "disk://bucket/"],
            &["serve", "--data", "served", "--listen", "127.0.0.1:0"],
        ] {
            let end_after = if arguments[0] == "serve" { "2" } else { "60" };
            // Only root may set a limit below the number of its own processes, so the user changes after it.
            caller.set_wrapper(&[
                "timeout",
                "--signal=TERM",
                end_after,
                "prlimit",
                &format!("--nproc={threads}"),
                "setpriv",
                &format!("--reuid={USER}"),
                "--clear-groups",
            ]);
            let output = caller.run(arguments);
            let errors = &output.err;
            assert!(!errors.contains("panicked"), "{threads} {arguments:?}: {errors}");
            // A server runs until it is stopped.
            let runs =
                output.status.success() || arguments[0] == "serve" && output.status.code() == Some(124);
            if runs {
                successes += 1;
            } else {
                // `mb` could not create the store.
                let is_explained = errors.contains("thread") || errors.contains("there is no store");
                assert!(is_explained, "{threads} {arguments:?}: {errors}");
            }
            assert!(threads < 40 || runs, "{arguments:?}: {errors}");
        }
    }
    assert!(successes > 50, "{successes}");
}

/// The walks of both trees, and the look-up of a host's address, need the few threads of one pool.
#[test]
fn trees_of_many_files_need_few_threads() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run a command as another user");
        return;
    }
    let (server, mut caller) = scene(|_, proper| Reply::Respond(proper));
    let files = 5100;
    for number in 0..files {
        caller.write(format!("files/{}/{number}", number / 1900), "x");
    }
    let url = format!("http://localhost:{}", caller.endpoint().port());
    caller = caller.with_variable("AWS_ENDPOINT_URL_S3", &url);
    fs::set_permissions(caller.directory_path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (threads, is_s3) in [(5, false), (6, true), (8, false)] {
        let copy = format!("copy-{threads}");
        caller.set_wrapper(&[
            "timeout",
            "--signal=TERM",
            "100",
            "prlimit",
            &format!("--nproc={threads}"),
            "setpriv",
            &format!("--reuid={}", USER + 1),
            "--clear-groups",
        ]);
        let run = |arguments: &[&str]| {
            let output = caller.run(arguments);
            assert!(output.status.success(), "{threads} {arguments:?} {:?}: {}", output.status, output.err);
        };
        run(&["cp", "-r", "files", &copy]);
        run(&["sync", "files", &copy]);
        let copied = fs::read_dir(caller.path(&copy)).unwrap();
        let count =
            copied.map(|directory| fs::read_dir(directory.unwrap().path()).unwrap().count()).sum::<usize>();
        assert_eq!(count, files);
        if is_s3 {
            run(&["sync", "files/2", "s3://bucket/tree"]);
        }
    }
    drop(server);
}
