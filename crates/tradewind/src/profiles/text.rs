//! Profiles as TOML, which users can read and edit. Unknown keys and invalid values are reported with their line and
//! ignored.

use std::fmt::Write as _;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};
use tradewind_core::quantity::ByteSize;
use tradewind_model::tune::{OperatingPoint, Sample, TailLatency};

use super::Profile;

const FILE_HEADER: &str = "\
# Measurements of a store from one client by `tradewind tune`. Transfer commands derive the concurrency and the sizes of
# download ranges from it; on another client they extrapolate it. latency_ms is the mean; error_percent its relative standard error.
# This file may be edited, copied or removed.
";
const UPLOAD: &str = "upload";
const DOWNLOAD: &str = "download";
/// The keys of a sample, except its tail latencies.
const SAMPLE_KEYS: [&str; 5] = ["size", "concurrency", "latency_ms", "error_percent", "from_transfer"];
/// The keys of the tail latencies: 95th and 99th percentile.
const TAIL_KEYS: [&str; 2] = ["p95_ms", "p99_ms"];
/// Maximum accepted concurrency.
const MAX_CONCURRENCY: f64 = 4096.0;

impl Profile {
    /// The text of the profile's file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = FILE_HEADER.to_owned();
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "\nstore = {}\nmeasured_at = {}", quoted(&self.store), quoted(&self.measured_at));
        let _ = writeln!(text, "client = {}", quoted(&self.client_name));
        if self.cpus > 0 {
            let _ = writeln!(text, "cpus = {}", self.cpus);
        }
        if let Some(bytes) = self.memory_bytes {
            let _ = writeln!(text, "memory = {}", quoted(&ByteSize(bytes).to_string()));
        }
        if let Some(rate) = self.storage_bytes_per_second {
            let _ = writeln!(text, "storage_mb_per_second = {:.3}", rate / 1e6);
        }
        if let Some(rate) = self.interface_bytes_per_second {
            let _ = writeln!(text, "interface_mbit_per_second = {:.3}", rate * 8.0 / 1e6);
        }
        if let Some(seconds) = self.rtt_seconds {
            let _ = writeln!(text, "rtt_ms = {:.3}", seconds * 1e3);
        }
        for (name, samples) in [(UPLOAD, &self.upload), (DOWNLOAD, &self.download)] {
            for Sample { point, latency, relative_error, tail, from_transfer } in samples {
                let size = quoted(&ByteSize(point.bytes).to_string());
                let _ = writeln!(text, "\n[[{name}]]\nsize = {size}\nconcurrency = {}", point.concurrency);
                let _ = writeln!(
                    text,
                    "latency_ms = {:.3}\nerror_percent = {:.1}",
                    latency * 1e3,
                    relative_error * 100.0
                );
                if let Some(TailLatency { p95, p99 }) = tail {
                    for (name, seconds) in TAIL_KEYS.iter().zip([p95, p99]) {
                        let _ = writeln!(text, "{name} = {:.3}", seconds * 1e3);
                    }
                }
                if *from_transfer {
                    let _ = writeln!(text, "from_transfer = true");
                }
            }
        }
        text
    }

    /// Parses a profile. Also returns messages about the parts that were ignored, with line numbers.
    #[must_use]
    pub fn from_text(text: &str) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let line =
            |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count();
        let mut profile = Self::default();
        let root = match DeTable::parse(text) {
            Ok(root) => root,
            Err(e) => {
                let at = line(e.span().map_or(0, |span| span.start));
                return (profile, vec![format!("line {at}: this is not TOML: {}", e.message())]);
            }
        };
        for (key, value) in root.get_ref() {
            let (at, value) = (line(value.span().start), value.get_ref());
            let is_valid = match (&**key.get_ref(), value) {
                ("store", DeValue::String(text)) => set(&mut profile.store, Some(text.to_string())),
                ("measured_at", DeValue::String(text)) => {
                    set(&mut profile.measured_at, Some(text.to_string()))
                }
                ("client", DeValue::String(text)) => set(&mut profile.client_name, Some(text.to_string())),
                ("cpus", value) => set(&mut profile.cpus, number(value, 1.0, 1e5).map(|cpus| cpus as usize)),
                ("memory", DeValue::String(text)) => {
                    set(&mut profile.memory_bytes, ByteSize::parse(text).ok().map(|size| Some(size.0)))
                }
                ("storage_mb_per_second", value) => set(
                    &mut profile.storage_bytes_per_second,
                    number(value, 1e-3, 1e6).map(|rate| Some(rate * 1e6)),
                ),
                ("interface_mbit_per_second", value) => set(
                    &mut profile.interface_bytes_per_second,
                    number(value, 1e-3, 1e7).map(|rate| Some(rate * 1e6 / 8.0)),
                ),
                ("rtt_ms", value) => {
                    set(&mut profile.rtt_seconds, number(value, 1e-3, 1e6).map(|time| Some(time / 1e3)))
                }
                (name @ (UPLOAD | DOWNLOAD), DeValue::Array(items)) => {
                    let samples = if name == UPLOAD { &mut profile.upload } else { &mut profile.download };
                    for item in items {
                        for name in unknown_keys(item.get_ref()) {
                            let at = line(name.span().start);
                            problems.push(format!("line {at}: {:?}: unknown key", name.get_ref()));
                        }
                        match parse_sample(item.get_ref()) {
                            Ok(sample) => samples.push(sample),
                            Err(why) => {
                                problems.push(format!("line {}: {name}: {why}", line(item.span().start)))
                            }
                        }
                    }
                    true
                }
                _ => false,
            };
            if !is_valid {
                problems.push(format!("line {at}: {:?}: unknown key or invalid value", key.get_ref()));
            }
        }
        (profile, problems)
    }
}

/// Sets a field to a value, if any. Returns true if there is one.
fn set<T>(field: &mut T, value: Option<T>) -> bool {
    value.map(|value| *field = value).is_some()
}

/// The number in a value; `None` if it is not a number from `min` to `max`.
fn number(value: &DeValue<'_>, min: f64, max: f64) -> Option<f64> {
    let number: f64 = match value {
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    (min..=max).contains(&number).then_some(number)
}

/// The unknown keys of a sample. They are ignored.
fn unknown_keys<'a, 'b>(value: &'a DeValue<'b>) -> impl Iterator<Item = &'a Spanned<DeString<'b>>> {
    let is_known = |name: &str| SAMPLE_KEYS.contains(&name) || TAIL_KEYS.contains(&name);
    let names = value.as_table().into_iter().flat_map(DeTable::keys);
    names.filter(move |name| !is_known(name.get_ref()))
}

/// Parses a sample. Fails with a message for the user.
fn parse_sample(value: &DeValue<'_>) -> Result<Sample, String> {
    let DeValue::Table(table) = value else { return Err("it is not a table".to_owned()) };
    let take = |key: &str, min: f64, max: f64| {
        let found = table.iter().find(|(name, _)| name.get_ref() == key);
        let found = found.and_then(|(_, value)| number(value.get_ref(), min, max));
        found.ok_or_else(|| format!("{key} must be a number from {min} to {max}"))
    };
    let size = table.iter().find(|(name, _)| name.get_ref() == "size").map(|(_, value)| value.get_ref());
    let size = match size {
        Some(DeValue::String(text)) => ByteSize::parse(text).map_err(|why| format!("size: {why}"))?,
        _ => return Err("size must be a string like \"256KiB\"".to_owned()),
    };
    let concurrency = take("concurrency", 1.0, MAX_CONCURRENCY)? as usize;
    let latency = take("latency_ms", 1e-3, 1e8)? / 1e3;
    let relative_error = take("error_percent", 0.0, 1e4)? / 100.0;
    let has_tail = TAIL_KEYS.iter().any(|name| table.iter().any(|(key, _)| key.get_ref() == name));
    let tail = if has_tail {
        let [p95, p99] = TAIL_KEYS.map(|name| take(name, 1e-3, 1e8).map(|time| time / 1e3));
        Some(TailLatency { p95: p95?, p99: p99? })
    } else {
        None
    };
    let from_transfer =
        table.iter().find(|(name, _)| name.get_ref() == "from_transfer").map(|(_, value)| value.get_ref());
    let from_transfer = match from_transfer {
        None => false,
        Some(DeValue::Boolean(value)) => *value,
        Some(_) => return Err("from_transfer must be true or false".to_owned()),
    };
    Ok(Sample {
        point: OperatingPoint { bytes: size.0.max(1), concurrency },
        latency,
        relative_error,
        tail,
        from_transfer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::tests::profile;

    #[test]
    fn text_round_trips() {
        let (read, problems) = Profile::from_text(&profile().to_text());
        assert_eq!((read, problems), (profile(), Vec::new()));
        // A client with few known properties, a slow disk and a slow interface.
        let slow = Profile {
            cpus: 0,
            storage_bytes_per_second: Some(20e3),
            interface_bytes_per_second: Some(7e3),
            ..profile()
        };
        assert_eq!(Profile::from_text(&slow.to_text()), (slow, Vec::new()));
    }

    #[test]
    fn unknown_and_invalid_values_are_ignored_and_reported() {
        let text = profile().to_text().replace("concurrency = 4\n", "concurrency = \"four\"\n")
            + "\ncolour = \"red\"\n";
        let (read, problems) = Profile::from_text(&text);
        assert_eq!((read.upload.len(), read.download.len()), (1, 2));
        assert!(
            problems.iter().any(|why| why.contains("upload: concurrency must be a number")),
            "{problems:?}"
        );
        let last = format!("line {}: \"colour\": unknown key", text.lines().count());
        assert!(problems.contains(&last), "{problems:?}");
        let odd = profile().to_text().replace("concurrency = 4\n", "concurrency = 0x4\npriority = 1\n");
        let (read, problems) = Profile::from_text(&odd);
        assert_eq!((read, problems.len()), (profile(), 1), "{problems:?}");
        assert!(problems[0].contains("\"priority\": unknown key"), "{problems:?}");
        let (read, problems) = Profile::from_text(&odd.replace("priority = 1\n", ""));
        assert_eq!((read, problems), (profile(), Vec::new()));
        let (read, problems) = Profile::from_text("store = \"x\"\nupload = 3\ncpus = -1\n= 4");
        assert_eq!(read, Profile::default());
        assert!(problems[0].starts_with("line 4: this is not TOML"), "{problems:?}");
        let (read, problems) = Profile::from_text("store = \"x\"\nupload = 3\ncpus = -1\n");
        assert_eq!((read.store.as_str(), problems.len()), ("x", 2), "{problems:?}");
        let invalid = "line 3: \"cpus\": unknown key or invalid value".to_owned();
        assert!(problems.contains(&invalid), "{problems:?}");
    }

    #[test]
    fn missing_values_of_older_profiles_are_none() {
        let new = ["memory", "storage", "interface"];
        let text = profile().to_text();
        let older = text.lines().filter(|line| !new.iter().any(|name| line.starts_with(name)));
        let (read, problems) = Profile::from_text(&older.map(|line| format!("{line}\n")).collect::<String>());
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(
            read,
            Profile {
                memory_bytes: None,
                storage_bytes_per_second: None,
                interface_bytes_per_second: None,
                ..profile()
            }
        );
        let (read, problems) =
            Profile::from_text("store = \"x\"\nmemory = 3\ninterface_mbit_per_second = \"fast\"\n");
        assert_eq!((read, problems.len()), (Profile { store: "x".to_owned(), ..Profile::default() }, 2));
    }
}
