//! The layer `deduplicated` in the settings.

use super::*;

const STORES: &str = "[store.a]\ntype = \"local\"\npath = \"p\"\n\
    [store.far]\ntype = \"s3\"\nendpoint = \"http://127.0.0.1:1\"\n";

fn volume(stack: &str) -> String {
    format!("{STORES}[volume.v]\nstack = [{stack}]\n")
}

#[test]
fn deduplicated_layers_are_read_and_shown() {
    let layer = "{ deduplicated = { classes = [0, 31], min_size = \"128KiB\", collect_every = \"12h\" } }";
    let settings = read(&volume(&format!("{layer}, \"a\"")));
    assert_eq!(settings.named.volumes[0].stack_text(), format!("[{layer}, \"a\"]"));
    let settings = read(&volume("{ deduplicated = { classes = true } }, \"a\""));
    let set = settings.named.volumes[0].layers[0].deduplicated().unwrap();
    assert_eq!(set.policy(), tradewind_layers::deduplicated::DeduplicationPolicy::default());
    let shown = settings.named.volumes[0].stack_text();
    assert_eq!(
        shown,
        "[{ deduplicated = { classes = true, min_size = \"64KiB\", collect_every = \"1d\" } }, \"a\"]"
    );
    read(&format!("{STORES}[volume.v]\nstack = {shown}\n"));
}

#[test]
fn invalid_deduplicated_layers_are_rejected_with_line_and_remedy() {
    let layer = |fields: &str| volume(&format!("{{ deduplicated = {{ {fields} }} }}, \"a\""));
    let cached = "{ cached = { disk = \"c\", size = \"1GiB\" } }";
    let all = "{ deduplicated = { classes = true } }";
    let compress = "{ transformed = { compress = true } }";
    let routed = "{ routed = { tiers = [\"far\"], classes = { far = [25] } } }";
    let together = "transformed and deduplicated cannot be in one stack";
    for (text, expected) in [
        (layer(""), "volume.v.deduplicated needs classes, for example classes = true"),
        (layer("classes = 3"), "volume.v.deduplicated.classes must be true, false or a list of classes"),
        (layer("classes = [32]"), "volume.v.deduplicated.classes must list classes, numbers from 0 to 31"),
        (
            layer("classes = true, min_size = \"8KiB\""),
            "volume.v.deduplicated.min_size must be 16KiB to 1MiB",
        ),
        (
            layer("classes = true, min_size = \"2MiB\""),
            "volume.v.deduplicated.min_size must be 16KiB to 1MiB",
        ),
        (layer("classes = true, collect_every = \"x\""), "volume.v.deduplicated.collect_every: "),
        (layer("classes = true, size = 3"), "unknown key \"volume.v.deduplicated.size\""),
        (volume("{ deduplicated = 7 }, \"a\""), "volume.v.deduplicated must be a table, not a number"),
        (
            volume(&format!("{all}, {cached}, \"a\"")),
            "volume.v.deduplicated must be directly above the store",
        ),
        (volume(&format!("{all}, {all}, \"a\"")), "volume.v.deduplicated must be directly above the store"),
        (volume(&format!("{all}, {compress}, \"a\"")), together),
        (volume(&format!("{compress}, {all}, \"a\"")), together),
        (volume(&format!("{all}, \"far\"")), "volume.v.deduplicated: an S3 service lists the size and ETag"),
    ] {
        let problems = problem(&text);
        assert!(problems.starts_with("etc/tw.toml:8: ") && problems.contains(expected), "{text}: {problems}");
        assert_eq!(problems.lines().count(), 1, "{text}: {problems}");
    }
    for stack in [format!("{cached}, {all}"), format!("{routed}, {all}")] {
        read(&volume(&format!("{stack}, \"a\"")));
    }
}

#[test]
fn store_of_deduplicated_chunks_is_in_one_volume_only() {
    let all = "{ deduplicated = { classes = true } }";
    let text = format!(
        "default_volume = \"v\"\n{STORES}[volume.v]\nstack = [{all}, \"a\"]\n[volume.w]\nstack = [\"a\"]\n"
    );
    let problems = problem(&text);
    let expected = "the volume \"v\" deduplicates the store \"a\", which the volume \"w\" uses too";
    assert!(problems.contains(expected), "{problems}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}
