//! `slices` of a local store.

use std::time::Duration;

use super::*;

const STORE: &str = "[store.disk]\ntype = \"local\"\npath = \"p\"\n";

fn slices(text: &str) -> Option<SliceSettings> {
    match &read(&format!("{STORE}{text}")).named.stores[0].kind {
        StoreKind::Local { options, .. } => options.slices.clone(),
        _ => None,
    }
}

#[test]
fn slices_have_the_speed_of_the_disk_or_of_a_common_one() {
    assert_eq!(slices(""), None);
    let speed = slices("slices = {}").unwrap().disk_speed();
    assert_eq!((speed.positioning_time, speed.bytes_per_second), (Duration::from_millis(12), 140_000_000));
    let text = "slices = { positioning_time = \"8ms\", throughput = \"200MB\" }";
    let speed = slices(text).unwrap().disk_speed();
    assert_eq!((speed.positioning_time, speed.bytes_per_second), (Duration::from_millis(8), 200_000_000));
    let shown = read(&format!("{STORE}{text}")).to_string();
    assert!(shown.contains("store.disk.slices") && shown.contains("positioning_time = \"8ms\""), "{shown}");
}

#[test]
fn invalid_slices_name_their_line() {
    for (text, expected) in [
        ("slices = true", "etc/tw.toml:4: store.disk.slices must be a table"),
        ("slices = { positioning_time = \"0ms\" }", "slices.positioning_time must be 1ms to 100ms"),
        ("slices = { positioning_time = \"2s\" }", "slices.positioning_time must be 1ms to 100ms"),
        ("slices = { throughput = \"1kB\" }", "slices.throughput must be 1MB to 10GB per second"),
        ("slices = { seek = \"1ms\" }", "unknown key \"store.disk.slices.seek\""),
        (
            "slices = {}\n[lanes]\nenabled = true",
            "store.disk.slices and lanes.enabled both schedule this store",
        ),
    ] {
        let found = problem(&format!("{STORE}{text}"));
        assert!(found.contains(expected), "{text}: {found}");
    }
}
