//! A constrained client: a command with a limited number of CPUs, limited memory, or both (Hou et al. 2017, section
//! 4.2), by control groups.
//!
//! Whole CPUs are a CPU set, so that the command sees as many as a machine of that size has. A fraction is a CPU time
//! quota in addition. The memory limit covers the command's processes and their page cache; swap is disabled.

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

/// Resource limits of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientOptions {
    /// Number of CPUs; `None` for all.
    pub processors: Option<Processors>,
    /// Memory in bytes; `None` for all.
    pub memory: Option<u64>,
}

/// A running command on a constrained client.
#[derive(Debug)]
pub struct Client {
    running: Running,
    group: Group,
    swaps: Option<Failed>,
}

/// The result of a finished command.
#[derive(Debug)]
pub struct Ended {
    /// The command's exit status.
    pub status: ExitStatus,
    /// Resources used by the command and its children.
    pub used: Used,
}

/// Resources used by a command and everything that it started. `None` if the kernel does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time.
    pub processor: Option<Duration>,
    /// Total time, summed over CPUs, for which the quota throttled the command.
    pub throttled: Option<Duration>,
    /// Peak memory in bytes, including page cache.
    pub peak_memory: Option<u64>,
    /// Number of processes killed by the OOM killer.
    pub killed_for_memory: u64,
}

impl Client {
    /// Starts a command. Dropping the value kills the command and everything that it started; so does the end of the
    /// calling thread.
    pub fn start(options: ClientOptions, command: &[OsString]) -> Result<Self, Failed> {
        let mut required = Vec::new();
        if let Some(processors) = options.processors {
            required.push(Controller::Processor);
            // Uniprocessor kernels have no cpuset controller.
            if processors.whole() < machine_processors() {
                required.push(Controller::ProcessorSet);
            }
        }
        if options.memory.is_some() {
            required.push(Controller::Memory);
        }
        let optional = [Controller::Processor, Controller::ProcessorUse, Controller::Memory];
        let group = Group::make("client", &required, &optional)?;
        if let Some(processors) = options.processors {
            limit_cpus(&group, processors)?;
        }
        let mut swaps = None;
        if let Some(bytes) = options.memory {
            limit_memory(&group, bytes)?;
            let set = |file: &str, value: &str| group.set(Controller::Memory, file, value);
            let disabled = disable_swap(group.version(Controller::Memory), bytes, set);
            swaps = disabled.err().filter(|_| has_swap(&read_swaps()));
        }
        Ok(Self { running: group.start(command)?, group, swaps })
    }

    /// The reason why swap could not be disabled: the command then becomes slow beyond its limit instead of being
    /// killed. `None` if it cannot swap.
    #[must_use]
    pub const fn swaps(&self) -> Option<&Failed> {
        self.swaps.as_ref()
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// Waits for the command to exit. Processes that it left running are killed.
    pub fn wait(mut self) -> Result<Ended, Failed> {
        let status = self.running.wait()?;
        Ok(Ended { status, used: used(&self.group) })
    }
}

impl Ended {
    /// Returns true if the OOM killer killed the command itself.
    #[must_use]
    pub fn lacked_memory(&self) -> bool {
        const SIGKILL: i32 = 9;
        let code = self.status.signal().or_else(|| self.status.code().map(|code| code - 128));
        // A shell reports a killed child as 128 plus the signal.
        self.used.killed_for_memory > 0 && code == Some(SIGKILL)
    }
}

/// Total memory of this machine in bytes; `None` if /proc/meminfo cannot be read.
#[must_use]
pub fn machine_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibi: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibi << 10)
}

/// Number of CPUs that this process may use.
#[must_use]
pub fn machine_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Limits the CPUs of a group, and moves packet relays off them.
fn limit_cpus(group: &Group, processors: Processors) -> Result<(), Failed> {
    if let Some(hierarchy) = group.hierarchy(Controller::ProcessorSet) {
        relays::keep_off(&assign_cpus(group, hierarchy, processors)?)?;
    }
    processors.quota_micros().map_or(Ok(()), |(quota, period)| set_cpu_quota(group, quota, period))
}

fn set_cpu_quota(group: &Group, quota: u64, period: u64) -> Result<(), Failed> {
    if group.version(Controller::Processor) == Some(Version::Two) {
        return group.set(Controller::Processor, "cpu.max", &format!("{quota} {period}"));
    }
    group.set(Controller::Processor, "cpu.cfs_period_us", &period.to_string())?;
    group.set(Controller::Processor, "cpu.cfs_quota_us", &quota.to_string())
}

fn assign_cpus(group: &Group, hierarchy: &Hierarchy, processors: Processors) -> Result<Vec<usize>, Failed> {
    let (allowed, memory_nodes) = match hierarchy.version {
        Version::One => ("cpuset.effective_cpus", "cpuset.effective_mems"),
        Version::Two => ("cpuset.cpus.effective", "cpuset.mems.effective"),
    };
    let allowed = processors::parse_list(&hierarchy.nearest(allowed)?);
    let chosen = processors::choose(&allowed, &processors::taken(&hierarchy.mounted), processors.whole());
    if hierarchy.version == Version::One {
        // A new group of version 1 has no memory nodes.
        group.set(Controller::ProcessorSet, "cpuset.mems", hierarchy.nearest(memory_nodes)?.trim())?;
    }
    group.set(Controller::ProcessorSet, "cpuset.cpus", &processors::show_list(&chosen))?;
    Ok(chosen)
}

fn limit_memory(group: &Group, bytes: u64) -> Result<(), Failed> {
    let value = bytes.to_string();
    let is_new = group.version(Controller::Memory) == Some(Version::Two);
    group.set(Controller::Memory, if is_new { "memory.max" } else { "memory.limit_in_bytes" }, &value)
}

/// Disables swap for a group with a memory limit of `bytes`. Not all kernels account for swap per group; version 1
/// without that supports a swappiness of 0.
fn disable_swap(
    version: Option<Version>,
    bytes: u64,
    set: impl Fn(&str, &str) -> Result<(), Failed>,
) -> Result<(), Failed> {
    if version == Some(Version::Two) {
        return set("memory.swap.max", "0");
    }
    // This limits the sum of memory and swap; equal to the memory limit, it leaves none for swap.
    set("memory.memsw.limit_in_bytes", &bytes.to_string()).or_else(|_| set("memory.swappiness", "0"))
}

/// The contents of /proc/swaps; empty if the kernel has no swap support.
fn read_swaps() -> String {
    fs::read_to_string("/proc/swaps").unwrap_or_default()
}

/// Returns true if there is an entry after the header.
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

    /// Returns the settings written to a group that has only the given files, and whether that succeeded.
    fn swap_settings(version: Version, files: &[&str]) -> (Vec<String>, bool) {
        let sets = RefCell::new(Vec::new());
        let set = |file: &str, value: &str| {
            if !files.contains(&file) {
                return Err(failed("set")(io::Error::from(io::ErrorKind::NotFound)));
            }
            sets.borrow_mut().push(format!("{file} {value}"));
            Ok(())
        };
        let is_disabled = disable_swap(Some(version), 4096, set).is_ok();
        (sets.into_inner(), is_disabled)
    }

    #[test]
    fn disable_swap_uses_what_the_kernel_supports() {
        let (memsw, swappiness) = ("memory.memsw.limit_in_bytes", "memory.swappiness");
        let one = |files: &[&str]| swap_settings(Version::One, files);
        assert_eq!(one(&[memsw, swappiness]), (vec![format!("{memsw} 4096")], true));
        assert_eq!(one(&[swappiness]), (vec![format!("{swappiness} 0")], true));
        assert_eq!(one(&[]), (vec![], false));
        assert_eq!(swap_settings(Version::Two, &["memory.swap.max"]).0, ["memory.swap.max 0"]);
        assert!(!swap_settings(Version::Two, &[swappiness]).1);
    }

    #[test]
    fn has_swap_ignores_the_header() {
        let heading = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(has_swap(&format!("{heading}/dev/sda2 partition 1048572 0 -2\n")));
        assert!(!has_swap(heading) && !has_swap(""));
    }
}
