//! A real command on a real link: this test runs itself at the near end. Also named links.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, print how it skips"
)]

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::client::{self, Client, ClientOptions, CpuCount};
use tradewind_lab::wan::named_link::{self, LinkName, LinkState, NamedLink};
use tradewind_lab::wan::{FAR_ADDRESS_ENV, ForwarderKind, LinkOptions, Wan, WanOptions, WanResult};

const PORT: u16 = 7300;
const DELAY: Duration = Duration::from_millis(20);

/// Runs `work` in a private network namespace; prints the reason and returns `None` if that is not possible.
fn alone(work: impl FnOnce() + Send) -> Option<()> {
    let apart = || {
        // SAFETY: it affects only the calling thread, which ends with this work.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: no network namespace: {}", io::Error::last_os_error());
            return None;
        }
        if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
            println!("skipped: no TUN devices: {e}");
            return None;
        }
        work();
        Some(())
    };
    thread::scope(|scope| scope.spawn(apart).join().unwrap())
}

fn this_test_as(name: &str) -> Vec<OsString> {
    let program = env::current_exe().unwrap().into_os_string();
    vec![program, name.into(), "--exact".into(), "--ignored".into(), "--nocapture".into()]
}

fn link(rate: Option<u64>) -> WanOptions {
    let link =
        LinkOptions { delay: DELAY, bits_per_second: rate, queue_bytes: 1 << 20, ..LinkOptions::default() };
    WanOptions { out: link, back: link, seed: 1, via: ForwarderKind::Relay }
}

fn run(rate: Option<u64>, command: &[OsString]) -> WanResult {
    let wan = Wan::start(link(rate), command).unwrap();
    wan.run(|e| println!("packets may be late: {e}")).unwrap()
}

/// The far end, with bytes to serve.
fn serve(listener: TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut request = [0];
    while stream.read(&mut request).unwrap() == 1 {
        let response = if request == *b"M" { vec![7; 1 << 20] } else { vec![7] };
        stream.write_all(&response).unwrap();
    }
}

#[test]
#[ignore = "helper process that other tests run on a link"]
fn ask() {
    let far = env::var(FAR_ADDRESS_ENV).unwrap();
    let mut stream = TcpStream::connect((far.as_str(), PORT)).unwrap();
    stream.set_nodelay(true).unwrap();
    for _ in 0..5 {
        let started = Instant::now();
        stream.write_all(b"1").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let took = started.elapsed();
        assert!(took >= 2 * DELAY, "a round trip took {took:?}");
        assert!(took < 10 * DELAY, "a round trip took {took:?}");
    }
    stream.write_all(b"M").unwrap();
    let mut bytes = vec![0; 1 << 20];
    stream.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn transfer_is_delayed_intact_and_counted() {
    for rate in [None, Some(50_000_000)] {
        alone(|| {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
            let serving = thread::spawn(|| serve(listener));
            let started = Instant::now();
            let ended = run(rate, &this_test_as("ask"));
            assert!(ended.status.success(), "{ended:?}");
            let (out, back) = *ended.counts.as_ref().unwrap();
            assert!(back.bytes > 1 << 20 && back.packets > (1 << 20) / 1500, "{ended:?}");
            assert!(out.packets > 10, "{ended:?}");
            let min_seconds = rate.map_or(0.0, |rate| (back.bytes * 8) as f64 / rate as f64);
            assert!(started.elapsed().as_secs_f64() > min_seconds, "faster than the link: {ended:?}");
            serving.join().unwrap();
        });
    }
}

/// CPUs that a thread of this process may use.
fn allowed_cpus(thread: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

#[test]
fn relay_avoids_client_cpus() {
    if client::available_cpus() < 2 {
        println!("skipped: this machine has one CPU");
        return;
    }
    alone(|| {
        // SAFETY: it asks for a number.
        let relay = unsafe { libc::gettid() };
        let before = allowed_cpus(relay);
        let looking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(500));
            let options = ClientOptions { cpus: Some(CpuCount::from_whole(1)), memory_bytes: None };
            match Client::start(options, &["true".into()]) {
                Ok(client) => assert!(client.wait().unwrap().status.success()),
                Err(e) => {
                    println!("skipped: {e}");
                    return None;
                }
            }
            Some(allowed_cpus(relay))
        });
        assert!(run(None, &["sleep".into(), "2".into()]).status.success());
        let behind = looking.join().unwrap();
        assert_ne!(behind, Some(before));
    });
}

#[test]
#[ignore = "helper process that another test runs on a link"]
fn flood() {
    let line = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    line.connect((env::var(FAR_ADDRESS_ENV).unwrap().as_str(), PORT)).unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        // No socket receives them; the resulting ICMP errors come back.
        let _ = line.send(&[7; 1472]);
    }
}

/// Packets received by the kernel in this thread's namespace.
fn received() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Ip: ")).map(str::split_whitespace);
    let (names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let column = names.take_while(|name| *name != "InReceives").count();
    values.nth(column).unwrap().parse().unwrap()
}

#[test]
fn relay_and_kernel_count_the_same_packets() {
    alone(|| {
        let _taking = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        let before = received();
        // The flooding process outlives the command, so that the link is full when taken down.
        let background = ["sh", "-c", "\"$0\" \"$@\" > /dev/null 2>&1 & sleep 0.2"].map(OsString::from);
        let ended = run(Some(100_000_000), &[&background[..], &this_test_as("flood")].concat());
        let (out, _) = *ended.counts.as_ref().unwrap();
        assert!(ended.status.success() && out.dropped > 0, "{ended:?}");
        assert_eq!(out.packets, received() - before, "{ended:?}");
    });
}

#[test]
#[ignore = "helper process that another test runs on a link"]
fn a_link_within() {
    let around = env::var(FAR_ADDRESS_ENV).unwrap();
    let within = Wan::start(link(None), &["true".into()]).unwrap().far().to_string();
    assert_ne!(around, within, "far ends of a link and of one nested in it");
}

#[test]
fn concurrent_links_have_distinct_addresses() {
    alone(|| {
        let start = || Wan::start(link(None), &["sleep".into(), "100".into()]).unwrap();
        let first = start();
        // Nor does a link nested in the second one, to which the first is unknown.
        assert!(run(None, &this_test_as("a_link_within")).status.success());
        // Concurrently.
        let mut links: Vec<Wan> = thread::scope(|scope| {
            let starting: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|starting| starting.join().unwrap()).collect()
        });
        links.push(first);
        let mut far: Vec<_> = links.iter().map(Wan::far).collect();
        far.sort_unstable();
        far.dedup();
        assert_eq!(far.len(), links.len(), "{far:?}");
    });
}

#[test]
fn link_is_the_only_route() {
    alone(|| {
        let _listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        // No server listens at the address of the link. The command is expected to fail; its output is discarded.
        let quietly = ["sh", "-c", "exec \"$0\" \"$@\" > /dev/null 2>&1"].map(OsString::from);
        let ended = run(None, &[&quietly[..], &this_test_as("ask")].concat());
        assert!(!ended.status.success());
    });
}

#[test]
fn nonexistent_command_is_an_error() {
    alone(|| {
        let error = Wan::start(link(None), &["/nonexistent/command".into()]).unwrap_err().to_string();
        assert!(error.starts_with("cannot run /nonexistent/command: No such file"), "{error}");
    });
}

/// A name that no other run of these tests uses.
fn name(what: &str) -> LinkName {
    LinkName::parse(&format!("tradewind-test-{what}-{}", std::process::id())).unwrap()
}

#[test]
fn named_link_persists_until_down() {
    alone(|| {
        let name = name("stays");
        let Ok(link) = NamedLink::create(&name, link(None)) else {
            println!("skipped: no named network namespaces");
            return;
        };
        let error = NamedLink::create(&name, WanOptions::default()).unwrap_err().to_string();
        assert!(error.contains("it is up already"), "{error}");
        let forwarding = thread::spawn(move || link.run(|_| {}));
        let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        let serving = thread::spawn(|| serve(listener));
        let name_to_enter = name.clone();
        let request = thread::spawn(move || {
            let far = named_link::enter(&name_to_enter).unwrap();
            let mut line = TcpStream::connect((far, PORT)).unwrap();
            let started = Instant::now();
            line.write_all(b"1").unwrap();
            line.read_exact(&mut [0]).unwrap();
            started.elapsed()
        });
        let took = request.join().unwrap();
        assert!(took >= 2 * DELAY && took < 10 * DELAY, "{took:?}");
        serving.join().unwrap();
        let LinkState::Up(report) = named_link::link_state(&name).unwrap() else { panic!("it is not up") };
        assert!(report["out"]["packets"].as_u64().unwrap() >= 3, "{report}");
        assert_eq!(report["out"]["missed"], 0, "{report}");
        assert!(named_link::link_names().unwrap().contains(&name));
        assert!(named_link::down(&name).unwrap());
        forwarding.join().unwrap().unwrap();
        assert!(matches!(named_link::link_state(&name).unwrap(), LinkState::Absent));
        let error = named_link::enter(&name).unwrap_err().to_string();
        assert!(error.contains("there is no link of that name"), "{error}");
    });
}

#[test]
#[ignore = "helper process that another test kills"]
fn stand() {
    let name = LinkName::parse(&env::var("TRADEWIND_TEST_NAME").unwrap()).unwrap();
    let link = NamedLink::create(&name, WanOptions::default()).unwrap();
    println!("up");
    link.run(|_| {}).unwrap();
}

#[test]
fn remains_of_killed_relay_are_detected_and_removed() {
    alone(|| {
        let name = name("killed");
        let stand = |signal: libc::c_int| {
            let mut command = std::process::Command::new(env::current_exe().unwrap());
            command
                .args(["stand", "--exact", "--ignored", "--nocapture"])
                .env("TRADEWIND_TEST_NAME", name.to_string());
            let mut relay = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
            let is_up =
                BufReader::new(relay.stdout.take().unwrap()).lines().any(|line| line.unwrap().contains("up"));
            // SAFETY: it is a child that was not waited for.
            assert_eq!(unsafe { libc::kill(relay.id().cast_signed(), signal) }, 0);
            (relay, is_up)
        };
        let (mut relay, is_up) = stand(libc::SIGKILL);
        relay.wait().unwrap();
        if !is_up {
            println!("skipped: no named network namespaces");
            return;
        }
        assert!(matches!(named_link::link_state(&name).unwrap(), LinkState::Stale));
        assert!(named_link::enter(&name).unwrap_err().to_string().contains("its relay was killed"));
        let namespace = std::path::PathBuf::from(format!("/run/netns/{name}"));
        assert!(namespace.exists());
        assert!(!named_link::down(&name).unwrap(), "it was not up");
        assert!(!namespace.exists());
        // A stopped relay does not respond, and is killed.
        let (mut relay, is_up) = stand(libc::SIGSTOP);
        assert!(is_up && named_link::down(&name).unwrap());
        assert!(!relay.wait().unwrap().success());
        assert!(matches!(named_link::link_state(&name).unwrap(), LinkState::Absent) && !namespace.exists());
    });
}

/// Sends a signal without effect to all responder threads of this process.
fn signal_responders() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeroes are a valid `sigaction`; the handler does nothing, and the tasks belong to this process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.trim() == "responder" {
                let number: libc::pid_t = task.file_name().to_str().unwrap().parse().unwrap();
                libc::syscall(libc::SYS_tgkill, libc::getpid(), number, libc::SIGUSR1);
            }
        }
    }
}

#[test]
fn named_link_stops_after_a_signal() {
    alone(|| {
        let Ok(link) = NamedLink::create(&name("signalled"), link(None)) else {
            println!("skipped: no named network namespaces");
            return;
        };
        let ending = link.stop_handle();
        let forwarding = thread::spawn(move || link.run(|_| {}));
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(10));
            signal_responders();
        }
        thread::sleep(Duration::from_millis(50));
        ending.stop();
        let until = Instant::now() + Duration::from_secs(10);
        while !forwarding.is_finished() {
            assert!(Instant::now() < until, "the link does not stop");
            thread::sleep(Duration::from_millis(10));
        }
        forwarding.join().unwrap().unwrap();
    });
}

#[test]
fn command_ends_with_its_link() {
    alone(|| {
        let wan = Wan::start(link(None), &["sleep".into(), "100".into()]).unwrap();
        let process = wan.pid();
        assert!(std::path::Path::new(&format!("/proc/{process}")).exists());
        drop(wan);
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    });
}
