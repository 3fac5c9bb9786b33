//! Bad values of settings, key by key: each is one problem, which names the line, the key and what is allowed.

use super::*;

/// A key in a file.
struct Key {
    /// The file; `VALUE` is in the place of the value.
    file: String,
    /// The key, as messages name it.
    path: &'static str,
    /// The values that are legal, of those of the test.
    legal: &'static [&'static str],
    /// Texts of which a message has one: they name the allowed values.
    allowed: &'static [&'static str],
}

/// The end of messages about sizes and times of another form.
const SIZE: &str = "write a size such as \"128MiB\"";
const TIME: &str = "write a duration such as \"30s\"";

/// The remedies for values of another type.
const TYPES: &[&str] =
    &["must be a single value, not ", "fractions and dates are not supported; write text or a whole number"];

/// Values of all types, and numbers, quantities and words that few keys accept.
const VALUES: &[&str] = &[
    "true",
    "-1",
    "0",
    "1.5",
    "nan",
    "99999999999",
    "[]",
    "[32]",
    "[-1]",
    "[\"no-class\"]",
    "[[]]",
    "[{}]",
    "{}",
    "{ VALUE = 1 }",
    "2026-01-01",
    "\"\"",
    "\" \"",
    "\"-1\"",
    "\"0\"",
    "\"1 apple\"",
    "\"5MiB/s\"",
    "\"18446744073709551616\"",
    "\"99999999999999999999EiB\"",
    "\"1e3\"",
    "\"many\"",
    "\"readonly\"",
    "\"READ-ONLY\"",
    "\"lru \"",
    "\"\\u0000\"",
    "\"größe\"",
];

fn keys() -> Vec<Key> {
    let cached = |key: &str| {
        format!(
            "[store.a]\ntype = \"local\"\npath = \"p\"\n[volume.v]\nstack = [{{ cached = {{ disk = \"c\", size = \"1GiB\", \
             memory = \"1MiB\", {key} = VALUE }} }}, \"a\"]\n"
        )
    };
    let deduplicated = |fields: &str| {
        format!(
            "[store.a]\ntype = \"local\"\npath = \"p\"\n[volume.v]\nstack = [{{ deduplicated = {{ {fields} }} }}, \"a\"]\n"
        )
    };
    let local = |field: &str| format!("[store.a]\ntype = \"local\"\npath = \"p\"\n{field}\n");
    let size = &["must be at least 64KiB", SIZE][..];
    let key = |file, path, legal, allowed| Key { file, path, legal, allowed };
    vec![
        key(cached("verify_rate"), "volume.v.cached.verify_rate", &["0", "\"0\""], size),
        key(cached("max_write_rate"), "volume.v.cached.max_write_rate", &[], size),
        key(cached("write_admission"), "volume.v.cached.write_admission", &[], &["\"class\" nor \"room\""]),
        key(
            cached("write"),
            "volume.v.cached.write",
            &[],
            &["none of \"through\", \"back\" and \"read-only\""],
        ),
        key(cached("policy"), "volume.v.cached.policy", &[], &["adaptive-window"]),
        key(
            local("slices = VALUE"),
            "store.a.slices",
            &["{}"],
            &["must be a table", "known keys: positioning_time, throughput"],
        ),
        key(
            local("slices = { positioning_time = VALUE }"),
            "store.a.slices.positioning_time",
            &[],
            &["must be 1ms to 100ms", TIME],
        ),
        key(
            local("slices = { throughput = VALUE }"),
            "store.a.slices.throughput",
            &[],
            &["1MB to 10GB", SIZE],
        ),
        key(
            "[class.25]\nshare = VALUE\n".to_owned(),
            "class.25.share",
            &[],
            &["whole number above 0", "1 to 1000"],
        ),
        key(
            deduplicated("classes = VALUE"),
            "volume.v.deduplicated.classes",
            &["true", "[]"],
            &["true, false or a list of classes", "numbers from 0 to 31"],
        ),
        key(
            deduplicated("classes = true, min_size = VALUE"),
            "volume.v.deduplicated.min_size",
            &[],
            &["16KiB to 1MiB", SIZE],
        ),
        key(
            deduplicated("classes = true, collect_every = VALUE"),
            "volume.v.deduplicated.collect_every",
            &["\"0\"", "0"],
            &[TIME],
        ),
    ]
}

#[test]
fn bad_value_of_each_key_is_one_problem_with_line_key_and_remedy() {
    let mut failures = Vec::new();
    for key in keys() {
        let name = key.path.rsplit('.').next().unwrap();
        let line = 1 + key.file.lines().position(|line| line.contains("VALUE")).unwrap();
        for value in VALUES {
            let text = key.file.replace("VALUE", value);
            let is_legal = key.legal.contains(value);
            match Settings::read(&inputs(&text)) {
                Ok(_) if is_legal => {}
                Ok(_) => failures.push(format!("{} = {value}: it is accepted", key.path)),
                Err(problems) => {
                    let problems = problems.to_string();
                    let has_remedy =
                        key.allowed.iter().chain(TYPES).any(|allowed| problems.contains(allowed));
                    let is_good = problems.lines().count() == 1
                        && problems.starts_with(&format!("etc/tw.toml:{line}: "))
                        && (problems.contains(key.path) || problems.contains(&format!(" {name}: ")))
                        && has_remedy;
                    if is_legal || !is_good {
                        failures.push(format!("{} = {value}: {problems}", key.path));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
