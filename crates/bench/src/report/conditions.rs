//! Differences between the conditions of two results: client machines and kernels, reuse of connections, where
//! objects were held; for mounted file systems the mount, the calls included in the write time, and the treatment of
//! caches. Any of them may explain a difference between the figures, so the report names them.

use std::collections::BTreeSet;

use super::ResultFile;
use super::charts::format_short;
use crate::posix::result::{Mount, PosixConditions, PosixRecord};
use crate::result::{ClientMachine, Measurement, Run};

/// Largest relative difference of memory on the same machine: firmware and kernel reserve slightly varying amounts.
const MAX_MEMORY_DIFFERENCE: f64 = 0.02;

/// A sentence that lists all differing conditions; `None` if none differ.
pub(super) fn describe_differences(before: &ResultFile, after: &ResultFile) -> Option<String> {
    let mut differing = clients(before, after);
    if let (Some(before), Some(after)) = (caches(before), caches(after)) {
        differing.extend(describe_difference("caches before each measurement", &before, &after));
    }
    if !before.measurements.is_empty() && !after.measurements.is_empty() {
        let [first, second] = [&before.run, &after.run];
        let connections = |run: &Run| if run.new_connections { "new for each request" } else { "reused" };
        differing.extend(describe_difference("connections", connections(first), connections(second)));
        let objects = |run: &Run| {
            run.files_dir.as_ref().map_or("memory".to_owned(), |files| format!("files in {files}"))
        };
        differing.extend(describe_difference("objects on the client", &objects(first), &objects(second)));
        differing.extend(same_name_differences(&before.measurements, &after.measurements));
    }
    if let (Some(before), Some(after)) = (posix_conditions(before), posix_conditions(after)) {
        differing.extend(mounts(&before.mount, &after.mount));
        let caches = |conditions: &PosixConditions| conditions.caches.to_string();
        differing.extend(describe_difference("caches before reading", &caches(before), &caches(after)));
        differing.extend(describe_difference(
            "time of a written file",
            &before.timed_calls,
            &after.timed_calls,
        ));
    }
    (!differing.is_empty()).then(|| {
        format!(
            "The results were not measured under the same conditions, which may explain any difference: {}.",
            differing.join("; ")
        )
    })
}

/// Differences between measurements of the same name: the first warm-up that differs, and the contents of traces.
fn same_name_differences(before: &[Measurement], after: &[Measurement]) -> Vec<String> {
    let pairs = || {
        before.iter().filter_map(|measurement| {
            Some((measurement, after.iter().find(|other| other.name() == measurement.name())?))
        })
    };
    let warm_up = pairs().find(|(a, b)| a.warm_up_seconds != b.warm_up_seconds).and_then(|(a, b)| {
        let seconds = |measurement: &Measurement| format!("{} s", measurement.warm_up_seconds);
        describe_difference(&format!("warm-up of {}", a.name()), &seconds(a), &seconds(b))
    });
    let trace = |measurement: &Measurement| {
        let trace = measurement.trace.as_ref()?;
        let (requests, invalid_lines) = (trace.requests, trace.invalid_lines);
        Some(format!(
            "{requests} requests, {invalid_lines} invalid lines, {} of {}",
            measurement.mix, measurement.sizes
        ))
    };
    let mut traces: Vec<String> = Vec::new();
    for (a, b) in pairs() {
        let differs = trace(a)
            .zip(trace(b))
            .and_then(|(first, second)| describe_difference(&a.name(), &first, &second));
        traces.extend(differs.filter(|differs| !traces.contains(differs)));
    }
    warm_up.into_iter().chain(traces).collect()
}

/// Treatment of caches before the measurements of objects; `None` without such measurements.
fn caches(result: &ResultFile) -> Option<String> {
    let all: BTreeSet<_> = result.measurements.iter().map(|measurement| measurement.caches).collect();
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn posix_conditions(result: &ResultFile) -> Option<&PosixConditions> {
    result.posix.iter().find_map(|record| match record {
        PosixRecord::Conditions(conditions) => Some(&**conditions),
        _ => None,
    })
}

fn describe_difference(condition: &str, before: &str, after: &str) -> Option<String> {
    (before != after).then(|| format!("{condition}: {before} before, {after} after"))
}

/// Differences between the client machines.
fn clients(before: &ResultFile, after: &ResultFile) -> Vec<String> {
    fn all(result: &ResultFile) -> Vec<&ClientMachine> {
        let run = &result.run;
        if run.agents.is_empty() {
            return vec![&run.client];
        }
        let mut all: Vec<&ClientMachine> = run.agents.iter().map(|agent| &agent.client).collect();
        // The order of the agents does not matter.
        all.sort_by_key(|client| (&client.hostname, &client.cpu_model, client.cores, client.memory_bytes));
        all
    }
    let machine = |client: &ClientMachine| {
        let memory = format_short(client.memory_bytes as f64 / 1e9);
        format!("{} ({} CPUs, {}, {memory} GB)", client.hostname, client.cores, client.cpu_model)
    };
    let listed = |clients: &[&ClientMachine], text: &dyn Fn(&ClientMachine) -> String| -> String {
        let listed: BTreeSet<String> = clients.iter().map(|client| text(client)).collect();
        listed.into_iter().collect::<Vec<_>>().join(" and ")
    };
    let is_same = |(a, b): (&&ClientMachine, &&ClientMachine)| {
        let parts =
            |client: &ClientMachine| (client.hostname.clone(), client.cpu_model.clone(), client.cores);
        let memory = (a.memory_bytes as f64 - b.memory_bytes as f64).abs()
            / (a.memory_bytes.max(b.memory_bytes).max(1) as f64);
        parts(a) == parts(b) && memory <= MAX_MEMORY_DIFFERENCE
    };
    let (before, after) = (all(before), all(after));
    let are_same = before.len() == after.len() && before.iter().zip(&after).all(is_same);
    let machines = (!are_same).then(|| {
        let machines = |clients: &[&ClientMachine]| listed(clients, &machine);
        format!("measured from {} before, from {} after", machines(&before), machines(&after))
    });
    let kernel = |clients: &[&ClientMachine]| listed(clients, &|client| format!("Linux {}", client.kernel));
    let kernels = describe_difference("kernel", &kernel(&before), &kernel(&after));
    machines.into_iter().chain(kernels).collect()
}

fn mounts(before: &Mount, after: &Mount) -> Vec<String> {
    let named = |mount: &Mount| format!("{} of {} at {}", mount.fs_type, mount.source, mount.mount_point);
    let system = describe_difference("file system", &named(before), &named(after));
    let options = |mount: &Mount| -> BTreeSet<String> {
        mount.options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
    };
    let (first, second) = (options(before), options(after));
    // Most options are equal and would hide the differing ones.
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> String {
        let only: Vec<&str> = one.difference(other).map(String::as_str).collect();
        if only.is_empty() { "none".to_owned() } else { only.join(",") }
    };
    let options =
        describe_difference("mount options that differ", &only(&first, &second), &only(&second, &first));
    system.into_iter().chain(options).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::TraceInfo;

    fn mount(source: &str, options: &str) -> Mount {
        Mount {
            fs_type: "ext4".to_owned(),
            source: source.to_owned(),
            mount_point: "/mnt".to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn different_traces_of_the_same_name_are_reported() {
        let measurement = |requests: u64, warm_up: f64| {
            let mut measurement = crate::result::tests::measurement("get", 4, 1, 100.0);
            measurement.trace =
                Some(TraceInfo { name: "day.csv".to_owned(), requests, invalid_lines: 2, speed: None });
            measurement.warm_up_seconds = warm_up;
            measurement
        };
        assert_eq!(same_name_differences(&[measurement(9, 0.5)], &[measurement(9, 0.5)]), [""; 0]);
        let name = measurement(9, 0.5).name();
        assert_eq!(
            same_name_differences(&[measurement(9, 0.5), measurement(9, 0.5)], &[measurement(8, 1.0)]),
            [
                format!("warm-up of {name}: 0.5 s before, 1 s after"),
                format!(
                    "{name}: 9 requests, 2 invalid lines, get of 4KiB before, 8 requests, 2 invalid lines, get of 4KiB after"
                )
            ]
        );
    }

    #[test]
    fn mounts_names_only_the_differing_options() {
        assert_eq!(mounts(&mount("a", "rw,sync"), &mount("a", "sync,rw")), [""; 0]);
        assert_eq!(
            mounts(&mount("a", "rw,relatime"), &mount("b", "rw,relatime,discard")),
            [
                "file system: ext4 of a at /mnt before, ext4 of b at /mnt after",
                "mount options that differ: none before, discard after"
            ]
        );
    }
}
