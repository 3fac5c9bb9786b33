//! The benchmark commands as processes: results, cleanup, wrong responses of the store, signals, and rejected requests.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::{Read as _, Write as _};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::command_runner::{CommandOutput, CommandRunner};
use support::disk::Disk;
use support::scripted_server::{Reply, ScriptedResponse, ScriptedServer};
use support::slow_relay;
use support::test_store::TestStore;

/// The arguments of `tradewind bench object` with the flags in `line`.
fn flags(line: &str) -> Vec<&str> {
    ["bench", "object"].into_iter().chain(line.split_whitespace()).collect()
}

/// The lines of a result with the given kind.
fn lines(text: &str, kind: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == kind).collect()
}

fn failures(measurement: &Json) -> u64 {
    let kinds = measurement["operations"].as_object().unwrap().values();
    kinds
        .flat_map(|figures| figures["failures"].as_object().unwrap().values())
        .map(|n| n.as_u64().unwrap())
        .sum()
}

#[test]
fn measuring_a_store_leaves_it_unchanged() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("mine", b"not to be touched");
    caller.run_ok(&["cp", "mine", "s3://bucket/there/tradewind-bench/mine"]);
    let table = caller.run_ok(&flags(
        "s3://bucket/there --mix put --mix get --mix get=2,head=1,list=1,delete=1,put=1 --size \
         1KiB,1KiB-100KiB --concurrency 1,4 --count 40 --repeat 2 -o result.jsonl",
    ));
    // One row per operation: two rounds of put, get and the mix of five, with two sizes and two levels of concurrency.
    let rows = table.lines().filter(|row| row.contains("KiB")).count();
    assert_eq!(rows, 2 * 2 * 2 * (1 + 1 + 5), "{table}");
    // Only the total of a mix has a confidence interval.
    assert_eq!(table.lines().filter(|row| row.contains("all of these")).count(), 2 * 2 * 2, "{table}");
    assert!(!table.lines().any(|row| row.contains(" of get=2,") && row.contains("+-")), "{table}");
    assert_eq!(caller.keys("s3://bucket"), ["there/tradewind-bench/mine"]);
    let saved = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let measurements = lines(&saved, "measurement");
    assert_eq!(measurements.len(), 2 * 2 * 2 * 3);
    assert!(measurements.iter().all(|measurement| failures(measurement) == 0), "{saved}");
    assert_eq!(lines(&saved, "end")[0]["partial"], false);
    assert_eq!(lines(&saved, "run")[0]["location"], "s3://bucket/there");
    let page = caller.run_ok(&["report", "result.jsonl", "result.jsonl", "-o", "-"]);
    assert!(page.contains("No significant difference."), "{page}");
    let ran = caller.run(&["report", "result.jsonl", "-o", "result.jsonl"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(caller.path("result.jsonl")).unwrap(), saved);
    let words = caller.run_ok(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(
        words.contains("Write throughput: ") && words.contains("charts and tables: page.html"),
        "{words}"
    );
    assert!(caller.path("page.html").exists());
    let figures = caller.run_ok(&["report", "result.jsonl", "--csv", "-", "-o", "both.html"]);
    assert!(figures.starts_with("result,load,") && caller.path("both.html").exists(), "{figures}");
    let ran = caller.run(&["report", "result.jsonl", "--csv", "-", "-o", "-"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
}

#[test]
fn an_open_loop_sends_requests_at_the_given_rate() {
    let scene = TestStore::new();
    let output = scene.runner.run_ok(&flags(
        "s3://bucket --mix get --size 1KiB --objects 50 --rate 200 --concurrency 32 --time 2s \
         --json --no-out",
    ));
    let measurement = &lines(&output, "measurement")[0];
    let request_count = measurement["operations"]["get"]["latency_us"]["count"].as_u64().unwrap();
    assert!((300..500).contains(&request_count), "{request_count}");
    assert_eq!(
        (measurement["requests_per_second"].as_f64(), measurement["spacing"].as_str()),
        (Some(200.0), Some("poisson"))
    );
}

#[test]
fn an_unreachable_rate_makes_the_measurement_void() {
    let scene = TestStore::new();
    let line = "s3://bucket --mix put --size 1B --rate 1000000 --concurrency 4 --time 30s --warm-up 0s -o result.jsonl";
    let ran = scene.runner.run(&flags(line));
    let output = String::from_utf8(ran.out).unwrap();
    assert!(ran.status.code() == Some(1) && output.contains("note: this is void: "), "{output}");
    let saved = std::fs::read_to_string(scene.runner.path("result.jsonl")).unwrap();
    let measurement = &lines(&saved, "measurement")[0];
    assert!(
        measurement["end_reason"] == "overrun" && measurement["measured_seconds"].as_f64() < Some(25.0),
        "{saved}"
    );
    assert!(measurement["never_started"].as_u64() > Some(1_000_000) && failures(measurement) == 0, "{saved}");
    assert_eq!(scene.runner.keys("s3://bucket"), [""; 0]);
    let page = scene.runner.run_ok(&["report", "result.jsonl", "-o", "-"]);
    assert!(page.contains("1 of 1 measurements are void"), "{page}");
}

#[test]
fn an_interrupted_run_saves_results_and_removes_objects() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let scene = TestStore::new();
        let running = scene.runner.spawn(&flags(
            "s3://bucket --mix put --size 1KiB --concurrency 2 --time 30s --warm-up 0s -o \
         result.jsonl",
        ));
        support::eventually("objects are made", || !scene.runner.keys("s3://bucket").is_empty());
        std::thread::sleep(Duration::from_millis(100));
        running.signal(signal);
        if signal == Signal::HUP {
            // A closed terminal sends SIGHUP twice.
            std::thread::sleep(Duration::from_millis(50));
            running.signal(signal);
        }
        let CommandOutput { status, err, .. } = running.wait_for_output();
        assert_eq!(status.code(), Some(expected), "{err}");
        let saved = std::fs::read_to_string(scene.runner.path("result.jsonl")).unwrap();
        let measurement = &lines(&saved, "measurement")[0];
        assert!(
            measurement["end_reason"] == "stopped"
                && measurement["operations"]["put"]["operations"].as_u64().unwrap() > 0,
            "{saved}"
        );
        assert_eq!(lines(&saved, "end")[0]["partial"], true);
        assert_eq!(scene.runner.keys("s3://bucket"), [""; 0]);
        let page = scene.runner.run_ok(&["report", "result.jsonl", "-o", "-"]);
        assert!(page.contains("The run was stopped before all measurements were done."), "{page}");
    }
}

#[test]
fn loads_are_measured_alone_and_concurrently() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let line = "bench mix s3://bucket --size 1KiB --concurrency 2 --objects 20 --time 300ms --warm-up 0s -o mix.jsonl";
    caller.run_ok(&line.split_whitespace().collect::<Vec<_>>());
    let saved = std::fs::read_to_string(caller.path("mix.jsonl")).unwrap();
    let measurements = lines(&saved, "measurement");
    // Two loads alone; each concurrently with itself, and both with each other: two measurements each.
    assert_eq!(measurements.len(), 2 + 3 * 2, "{saved}");
    let concurrent_loads = |measurement: &Json| measurement["concurrent_with"].as_array().map_or(0, Vec::len);
    assert_eq!(measurements.iter().map(concurrent_loads).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1, 1, 1]);
    assert!(measurements.iter().all(|measurement| failures(measurement) == 0), "{saved}");
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    let page = caller.run_ok(&["report", "mix.jsonl", "-o", "-"]);
    assert!(page.contains("throughput relative to running alone, in %"), "{page}");
    let ran = caller.run(&["bench", "mix", "s3://bucket", "--count", "5", "--no-out"]);
    assert!(ran.status.code() == Some(2) && ran.err.contains("end together"), "{}", ran.err);
}

#[test]
fn a_workload_is_read_from_files_with_new_connections() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let text = "about = \"x\"\n[[load]]\nmix = [\"put\", \"get\"]\nsize = \"3KiB\"\nconcurrency = 2\ncount = 30\nobjects = 20\n";
    caller.write("mine.toml", text.as_bytes());
    std::fs::create_dir(caller.path("files")).unwrap();
    caller.run_ok(&flags("s3://bucket --workload mine.toml --files files --new-connections -o result.jsonl"));
    let saved = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let measurements = lines(&saved, "measurement");
    assert_eq!(measurements.len(), 2);
    for measurement in &measurements {
        let network = |field: &str| measurement["network"][field].as_u64().unwrap();
        assert_eq!(
            (failures(measurement), network("connections")),
            (0, 30),
            "each request has a connection: {measurement}"
        );
        assert!(network("bytes_sent") + network("bytes_received") > 30 * 3072, "{measurement}");
    }
    assert!(lines(&saved, "end")[0]["servers"][0].as_str().unwrap().starts_with("127.0.0.1:"), "{saved}");
    assert_eq!(std::fs::read_dir(caller.path("files")).unwrap().count(), 0, "files are removed");
    let table = caller.run_ok(&["report", "result.jsonl", "--csv", "-"]);
    assert!(table.lines().count() == 3 && table.contains("result,put 3KiB x 2,put,3KiB,2"), "{table}");
    caller.write("bad.toml", b"about = \"x\"\n[[load]]\nsise = \"1KiB\"\n");
    let ran = caller.run(&flags("s3://bucket --workload bad.toml --no-out"));
    assert!(ran.status.code() == Some(2) && ran.err.contains("did you mean \"size\"?"), "{}", ran.err);
    assert!(caller.run_ok(&["bench", "workloads"]).contains("Table III"));
}

/// The fields of raw samples, none of which contains a comma.
fn samples(caller: &CommandRunner, name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(caller.path(name)).unwrap();
    let (head, lines) = text.split_once('\n').unwrap();
    let columns =
        "measurement,round,operation,key,size,worker,scheduled_us,sent_us,first_byte_us,end_us,outcome";
    assert_eq!(head, columns);
    lines.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn samples_contain_every_request() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let measured =
        "s3://bucket --mix put --mix get --size 3KiB --concurrency 2 --count 100 --objects 20 --repeat 2";
    let line = format!("{measured} --samples each.csv -o result.jsonl");
    caller.run_ok(&flags(&line));
    let saved = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let (measurements, each) = (lines(&saved, "measurement"), samples(caller, "each.csv"));
    assert_eq!((measurements.len(), each.len()), (4, 400));
    for (n, measurement) in measurements.iter().enumerate() {
        let number = n + 1;
        let sampled = serde_json::json!({ "measurement": number, "written": 100, "dropped": 0, "lost": 0 });
        assert_eq!(measurement["samples"], sampled);
        let of_measurement = each.iter().filter(|line| line[0] == number.to_string());
        let (repeat, operation) = (measurement["round"].to_string(), if n % 2 == 0 { "put" } else { "get" });
        let is_right = |line: &Vec<String>| {
            line[1] == repeat && line[2] == operation && line[4] == "3072" && line[10] == "ok"
        };
        assert_eq!(of_measurement.filter(|line| is_right(line)).count(), 100, "{measurement}");
    }
    // Existing files are not overwritten, and no measurement starts.
    let before = std::fs::read(caller.path("each.csv")).unwrap();
    let refused = |line: &str, why: &str| {
        let ran = caller.run(&flags(line));
        assert!(ran.status.code() == Some(1) && ran.err.contains(why), "{line}: {}", ran.err);
    };
    refused(&format!("{measured} --samples each.csv -o other.jsonl"), "cannot create each.csv: File exists");
    refused(
        &format!("{measured} --samples not/there.csv -o other.jsonl"),
        "cannot create not/there.csv: No such",
    );
    refused(
        &format!("{measured} --samples other.csv -o result.jsonl"),
        "cannot create result.jsonl: File exists",
    );
    assert_eq!(std::fs::read(caller.path("each.csv")).unwrap(), before);
    assert!(!caller.path("other.jsonl").exists() && !caller.path("other.csv").exists());
    assert!(!saved.contains("\"caches\""), "{saved}");
}

#[test]
fn a_full_disk_loses_only_samples() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let Some(_disk) = Disk::tmpfs(caller, 1) else { return };
    let full = caller.run(&["bench", "object", "s3://bucket", "--samples", "disk/none/each.csv", "--no-out"]);
    assert_eq!(full.status.code(), Some(1), "{}", full.err);
    caller.write("disk/other", vec![1; (1 << 20) - (32 << 10)]);
    let ran = caller.run(&flags(
        "s3://bucket --mix put --size 1KiB --concurrency 4 --count 1500 --samples disk/each.csv -o result.jsonl",
    ));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let complaint = "cannot write disk/each.csv: samples are missing: No space left";
    assert!(ran.err.contains(complaint), "{}", ran.err);
    let saved = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let measurement = &lines(&saved, "measurement")[0];
    assert_eq!(
        (&measurement["operations"]["put"]["operations"], failures(measurement)),
        (&1500.into(), 0),
        "{measurement}"
    );
    let missing = measurement["samples"]["lost"].as_u64().unwrap();
    let note = format!("{missing} of 1500 samples are missing");
    assert!(missing > 0 && measurement["notes"].to_string().contains(&note), "{measurement}");
    assert!(String::from_utf8(ran.out).unwrap().contains(&note), "it is on the terminal too");
    assert_eq!(lines(&saved, "end")[0]["partial"], false);
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    // If not even the first line fits, nothing is measured.
    std::fs::remove_file(caller.path("disk/each.csv")).unwrap();
    caller.write("disk/more", "");
    let mut more = std::fs::File::options().append(true).open(caller.path("disk/more")).unwrap();
    while std::io::Write::write(&mut more, &[1; 1 << 10]).is_ok() {}
    let ran = caller.run(&flags("s3://bucket --samples disk/each.csv -o second.jsonl"));
    let complaint = "cannot write samples to disk/each.csv: No space left";
    assert!(ran.status.code() == Some(1) && ran.err.contains(complaint), "{}", ran.err);
    assert!(!caller.path("disk/each.csv").exists() && !caller.path("second.jsonl").exists());
}

#[test]
fn caches_are_dropped_or_an_error_is_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let line = "s3://bucket --mix get --size 1KiB --concurrency 1 --count 20 --repeat 2";
    let ran = caller.run(&flags(&format!("{line} --drop-caches -o dropped.jsonl")));
    let may_be = std::fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").is_ok();
    if !may_be {
        let why = "--drop-caches is not possible: cannot write /proc/sys/vm/drop_caches: ";
        assert!(ran.status.code() == Some(1) && ran.err.contains(why), "{}", ran.err);
        assert!(!caller.path("dropped.jsonl").exists());
        return;
    }
    assert!(ran.status.success(), "{}", ran.err);
    let saved = std::fs::read_to_string(caller.path("dropped.jsonl")).unwrap();
    let measurements = lines(&saved, "measurement");
    assert!(
        measurements.len() == 2 && measurements.iter().all(|measurement| measurement["caches"] == "dropped"),
        "{saved}"
    );
    caller.run_ok(&flags(&format!("{line} -o left.jsonl")));
    let words = caller.run_ok(&["report", "left.jsonl", "dropped.jsonl", "-o", "page.html"]);
    assert!(
        words.contains("caches before each measurement: not dropped before, dropped by the kernel after"),
        "{words}"
    );
}

#[test]
fn upload_throughput_is_not_above_the_links_rate() {
    const LINK_BYTES_PER_SECOND: f64 = 16e6;
    let store = TestStore::new();
    let relay = slow_relay::start(store.runner.endpoint(), LINK_BYTES_PER_SECOND);
    let caller = CommandRunner::new(relay);
    // The requests take longer than the window, and the socket buffers take half of each at once.
    let output = caller.run_ok(&flags(
        "s3://bucket --mix put --size 8MiB --concurrency 8 --time 1500ms --warm-up 0s --json --no-out",
    ));
    let measurement = &lines(&output, "measurement")[0];
    let rate = measurement["bytes_per_second"]["mean"].as_f64().unwrap() / LINK_BYTES_PER_SECOND;
    assert!((0.3..1.2).contains(&rate), "{rate} of the link's rate: {measurement}");
}

#[test]
fn damaged_bytes_are_detected_and_not_retried() {
    let server = ScriptedServer::start(|request, answer: ScriptedResponse| {
        let is_every_third = request.operation == "GetObject" && request.number % 3 == 0;
        Reply::Respond(if is_every_third { answer.with_flipped_bit(500) } else { answer })
    });
    let caller = CommandRunner::new(server.address);
    let ran =
        caller.run(&flags("s3://bucket --mix get --size 1KiB --concurrency 2 --count 30 --json --no-out"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let output = String::from_utf8(ran.out).unwrap();
    assert_eq!(
        failures(&lines(&output, "measurement")[0]),
        10,
        "each failure counts and is not retried: {output}"
    );
}

#[test]
fn impossible_measurements_are_rejected_with_a_reason() {
    let scene = TestStore::new();
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let ran = scene.runner.run(&[&["bench", "object"], arguments, &["--no-out"]].concat());
        assert_eq!(ran.status.code(), Some(status), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{arguments:?}: {}", ran.err);
    };
    refused(&["s3://bucket", "--mix", "delete=2,put=1"], 2, "deletes more than it writes");
    refused(&["s3://bucket", "--size", "6TiB"], 2, "the limit of this store");
    refused(&["s3://bucket", "--mix", "take"], 2, "use put, get, head, list or delete");
    refused(&["s3://bucket", "--concurrency", "0"], 2, "a number from 1 to 4096");
    refused(&["s3://bucket", "--rate", "0"], 2, "requests per second");
    refused(&["s3://bucket", "--mix", "get", "--objects", "3"], 2, "3 objects are too few");
    refused(&["s3://bucket", "--count", "9", "--warm-up", "1s"], 2, "counts every request");
    refused(&["s3://bucket", "--workload", "nothing"], 1, "nor a built-in workload: class, hou");
    refused(&["s3://bucket", "--files", "/nonexistent/here"], 1, "cannot create /nonexistent/here");
    refused(&["nowhere://bucket"], 2, "there is no store");
    refused(&["s3://not-there", "--mix", "get", "--count", "1"], 1, "The specified bucket does not exist");
    scene.runner.write("torn.jsonl", b"{\"line\":\"measurement\"}\n");
    let ran = scene.runner.run(&["report", "torn.jsonl"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.err.contains("torn.jsonl is not a valid result: line 1"), "{}", ran.err);
}

fn class_table1(line: &str) -> Vec<&str> {
    ["bench", "class-table1"].into_iter().chain(line.split_whitespace()).collect()
}

#[test]
fn class_table1_measures_all_types_and_removes_its_objects() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("mine", b"not to be touched");
    caller.run_ok(&["cp", "mine", "s3://bucket/there/mine"]);
    let line = "s3://bucket/there --scale 0.0005 --bytes 1MiB --concurrency 4 --timeout 0s --labels shuffled";
    let table = caller.run_ok(&class_table1(line));
    // The header, and for each phase a row for all types and one for each.
    assert_eq!(table.lines().count(), 1 + 3 * (1 + 5), "{table}");
    let text = caller.run_ok(&class_table1(&format!("{line} --json")));
    let result: Json = serde_json::from_str(&text).unwrap();
    assert_eq!((&result["labels"], &result["is_partial"]), (&"shuffled".into(), &false.into()));
    let phases = result["phases"].as_array().unwrap();
    let operations: Vec<&str> = phases.iter().map(|phase| phase["operation"].as_str().unwrap()).collect();
    assert_eq!(operations, ["put", "get", "delete"]);
    let objects = result["objects"].as_u64().unwrap();
    for (phase, expected) in phases.iter().zip([objects, 50, objects]) {
        assert_eq!(phase["all"]["requests"], expected, "{phase}");
        assert_eq!(phase["all"]["failures"], serde_json::json!({}), "{phase}");
        let names: Vec<&str> = phase["types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of_type| of_type["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["files", "pictures", "music", "video", "vmdk"]);
    }
    assert_eq!(caller.keys("s3://bucket"), ["there/mine"]);
}

#[test]
fn class_table1_compares_streams_and_removes_their_objects() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let line = "s3://bucket --streams --time 200ms --scale 0.001 --bytes 1MiB --concurrency 4 --timeout 0s";
    let table = caller.run_ok(&class_table1(line));
    // The header, and for each operation files alone, four streams and a summary.
    assert_eq!(table.lines().count(), 1 + 2 * (1 + 4 + 1), "{table}");
    let text = caller.run_ok(&class_table1(&format!("{line} --json")));
    let result: Json = serde_json::from_str(&text).unwrap();
    for (operation, name) in result["operations"].as_array().unwrap().iter().zip(["put", "get"]) {
        assert_eq!(operation["operation"], name);
        assert!(operation["files_p90_ratio"].as_f64().unwrap() > 0.0, "{operation}");
        let streams = operation["together"].as_array().unwrap();
        assert!(
            streams.len() == 4 && streams.iter().all(|stream| stream["requests"].as_u64() > Some(0)),
            "{operation}"
        );
    }
    assert!(caller.keys("s3://bucket").is_empty());
}

#[test]
fn class_table1_samples_series_of_the_cache() {
    let scene = TestStore::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 1024]);
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /metrics HTTP/1.0\r\n"));
            let metrics = "tradewind_cache_class_bytes{class=\"25\"} 4096\ntradewind_up 1\n";
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{metrics}").unwrap();
        }
    });
    let line = format!(
        "s3://bucket --scale 0.0005 --bytes 1MiB --concurrency 4 --timeout 0s --json --metrics http://{address}/metrics"
    );
    let result: Json = serde_json::from_str(&scene.runner.run_ok(&class_table1(&line))).unwrap();
    let samples = result["contents"]["samples"].as_array().unwrap();
    assert!(!samples.is_empty() && result["contents"]["missed"] == 0, "{result}");
    for sample in samples {
        let expected = serde_json::json!({ "tradewind_cache_class_bytes{class=\"25\"}": 4096.0 });
        assert_eq!(sample["series"], expected);
    }
}

#[test]
fn class_table1_rejects_invalid_flags_before_a_request() {
    let scene = TestStore::new();
    let nothing = "--json --metrics http://127.0.0.1:1/metrics";
    for (flags, status) in
        [("--scale 0", 2), ("--bytes 1KiB", 2), ("--metrics http://a:1/metrics", 2), (nothing, 1)]
    {
        let ran = scene.runner.run(&class_table1(&format!("s3://bucket {flags}")));
        assert_eq!(ran.status.code(), Some(status), "{flags}: {}", ran.err);
    }
    let ran = scene.runner.run(&class_table1("s3://not-there --scale 0.0005 --bytes 1MiB --concurrency 4"));
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.err.contains("The specified bucket does not exist"), "{}", ran.err);
    assert!(scene.runner.keys("s3://bucket").is_empty());
}
