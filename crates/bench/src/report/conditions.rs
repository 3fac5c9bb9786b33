//! Under which conditions two results were measured, where those differ: the machines and kernels that asked, how they held
//! connections and objects, and of mounted file systems what was mounted how, what the time of a file consists of, and what
//! became of caches. A difference between the figures may come of any of these, and nobody should have to find it out by
//! comparing two pages.

use std::collections::BTreeSet;

use super::Kept;
use super::charts::short;
use crate::posix::result::{Conditions, Measured, Mount};
use crate::result::{Cell, Client, Run};

/// Memory that differs by less is that of the same machine: its firmware and kernel keep a little, not always the same.
const MEMORY: f64 = 0.02;

/// One sentence with all that differs; nothing where nothing does.
pub(super) fn differing(before: &Kept, after: &Kept) -> Option<String> {
    let mut differing = clients(before, after);
    if let (Some(before), Some(after)) = (caches(before), caches(after)) {
        differing.extend(different("caches before each measurement", &before, &after));
    }
    if !before.cells.is_empty() && !after.cells.is_empty() {
        let [first, second] = [&before.run, &after.run];
        let lines = |run: &Run| if run.fresh { "one for each request" } else { "kept" };
        differing.extend(different("connections", lines(first), lines(second)));
        let place =
            |run: &Run| run.files.as_ref().map_or("memory".to_owned(), |files| format!("files in {files}"));
        differing.extend(different("objects of the machine that asked", &place(first), &place(second)));
        differing.extend(of_the_same_name(&before.cells, &after.cells));
    }
    if let (Some(before), Some(after)) = (of_posix(before), of_posix(after)) {
        differing.extend(mounts(&before.mount, &after.mount));
        let caches = |told: &Conditions| told.caches.to_string();
        differing.extend(different("caches before reading", &caches(before), &caches(after)));
        differing.extend(different("the time of a file that is written", &before.counted, &after.counted));
    }
    (!differing.is_empty()).then(|| {
        format!(
            "They were not measured under the same conditions, and any difference may come of that: {}.",
            differing.join("; ")
        )
    })
}

/// What a name does not tell: the first warm-up that differs, and what a trace consists of.
fn of_the_same_name(before: &[Cell], after: &[Cell]) -> Vec<String> {
    let pairs = || {
        before.iter().filter_map(|cell| Some((cell, after.iter().find(|other| other.name() == cell.name())?)))
    };
    let warm_up = pairs().find(|(a, b)| a.warm_up != b.warm_up).and_then(|(a, b)| {
        let seconds = |cell: &Cell| format!("{} s", cell.warm_up);
        different(&format!("the warm-up of {}", a.name()), &seconds(a), &seconds(b))
    });
    let trace = |cell: &Cell| {
        let trace = cell.trace.as_ref()?;
        let (requests, broken) = (trace.requests, trace.broken);
        Some(format!("{requests} requests, {broken} broken lines, {} of {}", cell.mix, cell.sizes))
    };
    let mut traces: Vec<String> = Vec::new();
    for (a, b) in pairs() {
        let differs =
            trace(a).zip(trace(b)).and_then(|(first, second)| different(&a.name(), &first, &second));
        traces.extend(differs.filter(|differs| !traces.contains(differs)));
    }
    warm_up.into_iter().chain(traces).collect()
}

/// How caches were dropped before objects were measured; `None` where none were.
fn caches(kept: &Kept) -> Option<String> {
    let all: BTreeSet<_> = kept.cells.iter().map(|cell| cell.caches).collect();
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn of_posix(kept: &Kept) -> Option<&Conditions> {
    kept.posix.iter().find_map(|each| match each {
        Measured::Conditions(conditions) => Some(&**conditions),
        _ => None,
    })
}

fn different(what: &str, before: &str, after: &str) -> Option<String> {
    (before != after).then(|| format!("{what}: {before} before, {after} after"))
}

/// The machines that asked: the only one, or those of several.
fn clients(before: &Kept, after: &Kept) -> Vec<String> {
    fn all(kept: &Kept) -> Vec<&Client> {
        let run = &kept.run;
        if run.agents.is_empty() {
            return vec![&run.client];
        }
        let mut all: Vec<&Client> = run.agents.iter().map(|agent| &agent.client).collect();
        // The order in which they were named is no condition.
        all.sort_by_key(|client| (&client.name, &client.processor, client.cores, client.memory));
        all
    }
    let machine = |client: &Client| {
        let memory = short(client.memory as f64 / 1e9);
        format!("{} ({} cores, {}, {memory} GB)", client.name, client.cores, client.processor)
    };
    let listed = |clients: &[&Client], of: &dyn Fn(&Client) -> String| -> String {
        let listed: BTreeSet<String> = clients.iter().map(|client| of(client)).collect();
        listed.into_iter().collect::<Vec<_>>().join(" and ")
    };
    let is_same = |(a, b): (&&Client, &&Client)| {
        let parts = |client: &Client| (client.name.clone(), client.processor.clone(), client.cores);
        let memory = (a.memory as f64 - b.memory as f64).abs() / (a.memory.max(b.memory).max(1) as f64);
        parts(a) == parts(b) && memory <= MEMORY
    };
    let (before, after) = (all(before), all(after));
    let are_same = before.len() == after.len() && before.iter().zip(&after).all(is_same);
    let machines = (!are_same).then(|| {
        let said = |clients: &[&Client]| listed(clients, &machine);
        format!("measured from {} before, from {} after", said(&before), said(&after))
    });
    let kernel = |clients: &[&Client]| listed(clients, &|client| format!("Linux {}", client.kernel));
    let kernels = different("kernel", &kernel(&before), &kernel(&after));
    machines.into_iter().chain(kernels).collect()
}

fn mounts(before: &Mount, after: &Mount) -> Vec<String> {
    let named = |mount: &Mount| format!("{} of {} at {}", mount.kind, mount.source, mount.point);
    let system = different("file system", &named(before), &named(after));
    let options = |mount: &Mount| -> BTreeSet<String> {
        mount.options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
    };
    let (first, second) = (options(before), options(after));
    // Most of many options are the same: what matters would not be found among them.
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> String {
        let only: Vec<&str> = one.difference(other).map(String::as_str).collect();
        if only.is_empty() { "nothing more".to_owned() } else { only.join(",") }
    };
    let options =
        different("options of its mount that differ", &only(&first, &second), &only(&second, &first));
    system.into_iter().chain(options).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Traced;

    fn mount(source: &str, options: &str) -> Mount {
        Mount {
            kind: "ext4".to_owned(),
            source: source.to_owned(),
            point: "/mnt".to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn a_trace_of_the_same_name_is_not_the_same_trace() {
        let cell = |requests: u64, warm_up: f64| {
            let mut cell = crate::result::tests::cell("get", 4, 1, 100.0);
            cell.trace = Some(Traced { name: "day.csv".to_owned(), requests, broken: 2, speed: None });
            cell.warm_up = warm_up;
            cell
        };
        assert_eq!(of_the_same_name(&[cell(9, 0.5)], &[cell(9, 0.5)]), [""; 0]);
        let name = cell(9, 0.5).name();
        assert_eq!(
            of_the_same_name(&[cell(9, 0.5), cell(9, 0.5)], &[cell(8, 1.0)]),
            [
                format!("the warm-up of {name}: 0.5 s before, 1 s after"),
                format!(
                    "{name}: 9 requests, 2 broken lines, get of 4KiB before, 8 requests, 2 broken lines, get of 4KiB after"
                )
            ]
        );
    }

    #[test]
    fn of_options_only_those_that_differ_are_named() {
        assert_eq!(mounts(&mount("a", "rw,sync"), &mount("a", "sync,rw")), [""; 0]);
        assert_eq!(
            mounts(&mount("a", "rw,relatime"), &mount("b", "rw,relatime,discard")),
            [
                "file system: ext4 of a at /mnt before, ext4 of b at /mnt after",
                "options of its mount that differ: nothing more before, discard after"
            ]
        );
    }
}
