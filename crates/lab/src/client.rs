//! A weaker client: a command that gets so many processors and so much memory, each alone or both (Hou et al. 2017,
//! section 4.2), by control groups.
//!
//! Whole processors are a set that the command may use, so that it finds as many as a machine of that size has; a part
//! of one is a quota of time on top. Memory is that of its processes and of the files that the kernel keeps for them;
//! swap space does not stand in for it.

mod processors;
mod profile;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

pub use self::processors::Processors;
pub use self::profile::{ClientProfile, Scaled};
use crate::cgroup::{Controller, Group, Hierarchy, Version};
use crate::failed::Failed;
use crate::relays;
use crate::running::Running;

/// What a client has.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientOptions {
    /// Processors; `None`: all.
    pub processors: Option<Processors>,
    /// Bytes of memory; `None`: all.
    pub memory: Option<u64>,
}

/// A command on a weaker client, while it runs.
#[derive(Debug)]
pub struct Client {
    running: Running,
    group: Group,
    swaps: Option<Failed>,
}

/// How it went.
#[derive(Debug)]
pub struct Ended {
    /// The command's.
    pub status: ExitStatus,
    /// What it used.
    pub used: Used,
}

/// What a command and all that it started used. `None`: this kernel does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Processor time.
    pub processor: Option<Duration>,
    /// For how long processors that it wanted were kept from it by its quota, added up over them.
    pub throttled: Option<Duration>,
    /// The most bytes of memory at a time, with those of files.
    pub peak_memory: Option<u64>,
    /// Processes that were killed because there was no more memory.
    pub killed_for_memory: u64,
}

impl Client {
    /// Starts a command. Dropped, it is killed, with all that it started; it is killed when the calling thread ends, too.
    pub fn start(options: ClientOptions, command: &[OsString]) -> Result<Self, Failed> {
        let mut needed = Vec::new();
        if let Some(processors) = options.processors {
            needed.push(Controller::Processor);
            // Kernels for one processor do not have it.
            if processors.whole() < machine_processors() {
                needed.push(Controller::ProcessorSet);
            }
        }
        if options.memory.is_some() {
            needed.push(Controller::Memory);
        }
        let wished = [Controller::Processor, Controller::ProcessorUse, Controller::Memory];
        let group = Group::make("client", &needed, &wished)?;
        if let Some(processors) = options.processors {
            bound_processors(&group, processors)?;
        }
        let mut swaps = None;
        if let Some(bytes) = options.memory {
            bound_memory(&group, bytes)?;
            let set = |file: &str, value: &str| group.set(Controller::Memory, file, value);
            let kept = keep_from_swap(group.version(Controller::Memory), bytes, set);
            swaps = kept.err().filter(|_| has_swap(&read_swaps()));
        }
        Ok(Self { running: group.start(command)?, group, swaps })
    }

    /// Why what the command has no memory for may go to swap space, which it is then slowed by and not killed; `None`: it may not.
    #[must_use]
    pub const fn swaps(&self) -> Option<&Failed> {
        self.swaps.as_ref()
    }

    /// The command's process, to send signals to. It never means another process that was given the same number.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The number of the command's process.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// Waits until the command has ended. What it left running ends with it.
    pub fn wait(mut self) -> Result<Ended, Failed> {
        let status = self.running.wait()?;
        Ok(Ended { status, used: used(&self.group) })
    }
}

impl Ended {
    /// Whether the command itself was killed because there was no more memory.
    #[must_use]
    pub fn lacked_memory(&self) -> bool {
        const KILLED: i32 = 9;
        let code = self.status.signal().or_else(|| self.status.code().map(|code| code - 128));
        // A shell tells of what it ran so.
        self.used.killed_for_memory > 0 && code == Some(KILLED)
    }
}

/// Bytes of memory that this machine has; `None` where it does not say.
#[must_use]
pub fn machine_memory() -> Option<u64> {
    let told = fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibi: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibi << 10)
}

/// Processors that this process may use.
#[must_use]
pub fn machine_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Gives a group its processors; what carries packets keeps off them from then on.
fn bound_processors(group: &Group, processors: Processors) -> Result<(), Failed> {
    if let Some(hierarchy) = group.hierarchy(Controller::ProcessorSet) {
        relays::keep_off(&choose_processors(group, hierarchy, processors)?)?;
    }
    processors.quota_micros().map_or(Ok(()), |(quota, period)| bound_time(group, quota, period))
}

fn bound_time(group: &Group, quota: u64, period: u64) -> Result<(), Failed> {
    if group.version(Controller::Processor) == Some(Version::Two) {
        return group.set(Controller::Processor, "cpu.max", &format!("{quota} {period}"));
    }
    group.set(Controller::Processor, "cpu.cfs_period_us", &period.to_string())?;
    group.set(Controller::Processor, "cpu.cfs_quota_us", &quota.to_string())
}

fn choose_processors(
    group: &Group,
    hierarchy: &Hierarchy,
    processors: Processors,
) -> Result<Vec<usize>, Failed> {
    let (allowed, memory_nodes) = match hierarchy.version {
        Version::One => ("cpuset.effective_cpus", "cpuset.effective_mems"),
        Version::Two => ("cpuset.cpus.effective", "cpuset.mems.effective"),
    };
    let allowed = processors::parse_list(&hierarchy.nearest(allowed)?);
    let chosen = processors::choose(&allowed, &processors::taken(&hierarchy.mounted), processors.whole());
    if hierarchy.version == Version::One {
        // A new group of version 1 has none.
        group.set(Controller::ProcessorSet, "cpuset.mems", hierarchy.nearest(memory_nodes)?.trim())?;
    }
    group.set(Controller::ProcessorSet, "cpuset.cpus", &processors::show_list(&chosen))?;
    Ok(chosen)
}

fn bound_memory(group: &Group, bytes: u64) -> Result<(), Failed> {
    let value = bytes.to_string();
    let is_new = group.version(Controller::Memory) == Some(Version::Two);
    group.set(Controller::Memory, if is_new { "memory.max" } else { "memory.limit_in_bytes" }, &value)
}

/// Has a group with so many bytes of memory do without swap space. Not all kernels account for that; of those that do not, the ones with
/// version 1 can be told not to take any.
fn keep_from_swap(
    version: Option<Version>,
    bytes: u64,
    set: impl Fn(&str, &str) -> Result<(), Failed>,
) -> Result<(), Failed> {
    if version == Some(Version::Two) {
        return set("memory.swap.max", "0");
    }
    // Memory and swap together: the same, so that there is none of the latter.
    set("memory.memsw.limit_in_bytes", &bytes.to_string()).or_else(|_| set("memory.swappiness", "0"))
}

/// What swap space the machine has; nothing where the kernel knows of none.
fn read_swaps() -> String {
    fs::read_to_string("/proc/swaps").unwrap_or_default()
}

/// Whether there is an entry behind the heading.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

fn used(group: &Group) -> Used {
    let field = |controller, file: &str, name: &str| -> Option<u64> {
        let text = group.get(controller, file)?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    let number = |controller, file: &str| -> Option<u64> { group.get(controller, file)?.trim().parse().ok() };
    let is_new = |controller| group.version(controller) == Some(Version::Two);
    let processor = if is_new(Controller::ProcessorUse) {
        field(Controller::ProcessorUse, "cpu.stat", "usage_usec").map(Duration::from_micros)
    } else {
        number(Controller::ProcessorUse, "cpuacct.usage").map(Duration::from_nanos)
    };
    let throttled = if is_new(Controller::Processor) {
        field(Controller::Processor, "cpu.stat", "throttled_usec").map(Duration::from_micros)
    } else {
        field(Controller::Processor, "cpu.stat", "throttled_time").map(Duration::from_nanos)
    };
    let (peak, kills) = if is_new(Controller::Memory) {
        ("memory.peak", "memory.events")
    } else {
        ("memory.max_usage_in_bytes", "memory.oom_control")
    };
    Used {
        processor,
        throttled,
        peak_memory: number(Controller::Memory, peak),
        killed_for_memory: field(Controller::Memory, kills, "oom_kill").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use super::*;
    use crate::failed::failed;

    /// What is set in a group that has some files only, and whether that was enough.
    fn kept(version: Version, files: &[&str]) -> (Vec<String>, bool) {
        let sets = RefCell::new(Vec::new());
        let set = |file: &str, value: &str| {
            if !files.contains(&file) {
                return Err(failed("set")(io::Error::from(io::ErrorKind::NotFound)));
            }
            sets.borrow_mut().push(format!("{file} {value}"));
            Ok(())
        };
        let is_kept = keep_from_swap(Some(version), 4096, set).is_ok();
        (sets.into_inner(), is_kept)
    }

    #[test]
    fn no_client_gets_memory_from_swap_space() {
        let (accounted, told) = ("memory.memsw.limit_in_bytes", "memory.swappiness");
        let one = |files: &[&str]| kept(Version::One, files);
        assert_eq!(one(&[accounted, told]), (vec![format!("{accounted} 4096")], true));
        assert_eq!(one(&[told]), (vec![format!("{told} 0")], true));
        assert_eq!(one(&[]), (vec![], false));
        assert_eq!(kept(Version::Two, &["memory.swap.max"]).0, ["memory.swap.max 0"]);
        assert!(!kept(Version::Two, &[told]).1);
    }

    #[test]
    fn swap_space_is_found() {
        let heading = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(has_swap(&format!("{heading}/dev/sda2 partition 1048572 0 -2\n")));
        assert!(!has_swap(heading) && !has_swap(""));
    }
}
