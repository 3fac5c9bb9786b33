//! Real commands on constrained clients. Bounds are chosen so that load from other processes cannot break them: a
//! command never exceeds its limit, but may get less.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, print how it skips"
)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::client::{Client, ClientOptions, ClientResult, CpuCount};

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).to_vec()
}

fn cpus(text: &str) -> ClientOptions {
    ClientOptions { cpus: Some(CpuCount::parse(text).unwrap()), memory_bytes: None }
}

/// Starts a command; prints the reason and returns `None` if control groups cannot be created.
fn start(options: ClientOptions, script: &str) -> Option<Client> {
    match Client::start(options, &shell(script)) {
        Ok(client) => Some(client),
        Err(e)
            if ["needs root", "needs a writable", "no controller", "contains processes"]
                .iter()
                .any(|why| e.to_string().contains(why)) =>
        {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn run(options: ClientOptions, script: &str) -> Option<ClientResult> {
    start(options, script).map(|client| client.wait().unwrap())
}

/// The groups of a process of this test, and the unlocked ones.
fn groups(process: u32) -> Vec<PathBuf> {
    fn below(directory: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(name) {
                    found.push(entry.path());
                }
                below(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &format!("tradewind-lab-client-{process}-"), &mut found);
    found
}

#[test]
fn fractional_cpu_limit_is_enforced() {
    let started = Instant::now();
    let Some(ended) = run(cpus("0.25"), "timeout 2 sh -c 'while :; do :; done'") else { return };
    let took = started.elapsed().as_secs_f64();
    let share = ended.usage.cpu_time.unwrap().as_secs_f64() / took;
    // A busy machine gives less, never more.
    assert!(share < 0.32, "{share} CPUs: {ended:?}");
    assert!(share > 0.05, "{share} CPUs: {ended:?}");
    assert!(ended.usage.throttled_time.unwrap() > Duration::ZERO, "{ended:?}");
    assert_eq!(ended.status.code(), Some(124));
}

#[test]
fn client_sees_only_its_cpus() {
    let Some(ended) = run(cpus("1"), "test $(nproc) = 1") else { return };
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.usage.throttled_time, Some(Duration::ZERO));
}

#[test]
fn exceeding_memory_limit_is_killed_and_reported() {
    let options = ClientOptions { cpus: None, memory_bytes: Some(32 << 20) };
    // `tail` buffers what it will print. The shell exits with the status of its last command.
    let last_of = |bytes: u64| format!("head -c 200000000 /dev/zero | tail -c {bytes} > /dev/null");
    let Some(ended) = run(options, &last_of(150_000_000)) else { return };
    assert_eq!(ended.status.code(), Some(137), "{ended:?}");
    assert!(ended.usage.oom_kills > 0 && ended.was_oom_killed(), "{ended:?}");
    assert!((16 << 20..=32 << 20).contains(&ended.usage.peak_memory_bytes.unwrap()), "{ended:?}");
    let ended = run(options, &last_of(1_000_000)).unwrap();
    assert!(ended.status.success() && !ended.was_oom_killed(), "{ended:?}");
}

#[test]
fn group_and_leftover_processes_end_with_command() {
    let marker = tempfile();
    let script = format!("sleep 1000 & echo $! > {}", marker.display());
    let Some(ended) = run(cpus("0.5"), &script) else { return };
    assert!(ended.status.success());
    let left = fs::read_to_string(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    assert!(is_gone(left.trim()), "{left} runs");
    let Some(client) = start(cpus("0.5"), "sleep 1000") else { return };
    let process = client.pid();
    assert!(!groups(std::process::id()).is_empty());
    drop(client);
    assert!(is_gone(&process.to_string()), "{process} runs");
}

/// Returns true if a process has ended. A zombie stays in the list.
fn is_gone(process: &str) -> bool {
    let path = format!("/proc/{process}/stat");
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let Ok(stat) = fs::read_to_string(&path) else { return true };
        if stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z')) {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

fn tempfile() -> PathBuf {
    std::env::temp_dir().join(format!("tradewind-lab-client-test-{}", std::process::id()))
}

#[test]
#[ignore = "helper process that another test kills"]
fn hold() {
    let client = Client::start(cpus("0.5"), &shell("sleep 1000")).unwrap();
    println!("holds {}", client.pid());
    let _ = client.wait();
}

#[test]
fn leftovers_of_killed_command_are_removed() {
    if start(cpus("0.5"), "true").map(Client::wait).is_none() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut holder = Command::new(this).args(["hold", "--exact", "--ignored"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while groups(holder.id()).is_empty() {
        assert!(Instant::now() < until, "it made no group");
        thread::sleep(Duration::from_millis(10));
    }
    // One that is held stays.
    run(cpus("0.5"), "true").unwrap();
    assert!(!groups(holder.id()).is_empty());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(!groups(holder.id()).is_empty(), "the groups remain until another client removes them");
    run(cpus("0.5"), "true").unwrap();
    assert_eq!(groups(holder.id()), Vec::<PathBuf>::new());
}

#[test]
fn nonexistent_command_is_an_error() {
    match Client::start(cpus("0.5"), &["/nonexistent/command".into()]) {
        Err(e) if e.to_string().contains("control group") => println!("skipped: {e}"),
        Err(e) => assert!(e.to_string().starts_with("cannot run /nonexistent/command: No such file"), "{e}"),
        Ok(_) => panic!("it runs"),
    }
}
