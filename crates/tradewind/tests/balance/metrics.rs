//! The metrics of a balancer.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Cluster;
use super::support::s3::S3;

/// The value of a sample; `None` if there is none.
fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[test]
fn metrics_follow_the_rounds_and_steps() {
    let Some(cluster) = Cluster::start() else { return };
    let mut running = cluster
        .runner
        .spawn_unread(&cluster.arguments("ceph", &["--interval", "0.3", "--metrics", "127.0.0.1:0"]));
    let mut out = BufReader::new(running.take_stdout());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    let address = line.trim().strip_prefix("metrics are served at http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().parse().unwrap();
    let get = |path: &str| S3::anonymous(address).get(path).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let text = loop {
        let text = get("metrics").text();
        if value(&text, "tradewind_balance_steps_total{result=\"kept\"}") == Some(1.0) {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(value(&text, "tradewind_balance_steps_total{result=\"set\"}"), Some(1.0), "{text}");
    assert_eq!(value(&text, "tradewind_balance_steps_total{result=\"undone\"}"), Some(0.0), "{text}");
    for name in ["predicted_gain", "measured_gain"] {
        assert!(value(&text, &format!("tradewind_balance_{name}")).unwrap() > 0.3, "{text}");
    }
    let osd = |name: &str, osd: u32| {
        let name = format!("tradewind_balance_osd_{name}{{osd=\"{osd}\"}}");
        value(&text, &name).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert!(osd("reads_per_second", 0) > 0.0 && osd("latency_seconds", 0) > 0.0);
    assert!(osd("service_bytes_per_second", 0) > 2.0 * osd("service_bytes_per_second", 3));
    assert!(osd("affinity", 3) < osd("affinity", 0));
    let shares: f64 = (0..4).map(|id| osd("share", id)).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{shares}");
    assert!(value(&text, "tradewind_balance_rounds_total").unwrap() >= 4.0, "{text}");
    assert_eq!(value(&text, "tradewind_balance_failed_rounds_total"), Some(0.0), "{text}");
    assert_eq!(value(&text, "tradewind_balance_obstacles"), Some(0.0), "{text}");
    assert_eq!(value(&text, "tradewind_balance_slow_host{host=\"node-b\"}"), Some(1.0), "{text}");
    assert!(value(&text, "tradewind_balance_round_seconds").unwrap() > 0.0, "{text}");
    assert_eq!(get("health/ready").status, 200);

    cluster.runner.write("denied", "osd stat\n");
    while value(&get("metrics").text(), "tradewind_balance_failed_rounds_total") == Some(0.0) {
        assert!(Instant::now() < deadline, "no round failed");
        std::thread::sleep(Duration::from_millis(100));
    }
    let unready = get("health/ready");
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("the last round failed: "), "{}", unready.text());
    running.signal(Signal::INT);
    std::fs::remove_file(cluster.runner.path("denied")).unwrap();
    running.wait_for_output();
    cluster.assert_unchanged();
}

#[test]
fn metrics_address_in_use_is_an_error() {
    let Some(cluster) = Cluster::start() else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = cluster.run("ceph", &["--metrics", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("choose another address with --metrics"), "{}", output.err);
    cluster.assert_unchanged();
}
