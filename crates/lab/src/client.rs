//! A constrained client: a command with a limited number of CPUs, limited memory, or both (Hou et al. 2017, section
//! 4.2), by control groups.
//!
//! Whole CPUs are a CPU set, so that the command sees as many as a machine of that size has. A fraction is a CPU time
//! quota in addition. The memory limit covers the command's processes and their page cache; swap is disabled.

mod cpu_count;
mod profile;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

pub use self::cpu_count::CpuCount;
pub use self::profile::{ClientProfile, ScaledClient};
use crate::cgroup::{CgroupVersion, Controller, Group, Hierarchy};
use crate::error::LabError;
use crate::relay_threads;
use crate::running_command::RunningCommand;

/// Resource limits of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientOptions {
    /// Number of CPUs; `None` for all.
    pub cpus: Option<CpuCount>,
    /// Memory in bytes; `None` for all.
    pub memory_bytes: Option<u64>,
}

/// A running command on a constrained client.
#[derive(Debug)]
pub struct Client {
    running: RunningCommand,
    group: Group,
    swap_error: Option<LabError>,
}

/// The result of a finished command.
#[derive(Debug)]
pub struct ClientResult {
    /// The command's exit status.
    pub status: ExitStatus,
    /// Resources used by the command and its children.
    pub usage: ResourceUsage,
}

/// Resources used by a command and everything that it started. `None` if the kernel does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// CPU time.
    pub cpu_time: Option<Duration>,
    /// Total time, summed over CPUs, for which the quota throttled the command.
    pub throttled_time: Option<Duration>,
    /// Peak memory in bytes, including page cache.
    pub peak_memory_bytes: Option<u64>,
    /// Number of processes killed by the OOM killer.
    pub oom_kills: u64,
}

impl Client {
    /// Starts a command. Dropping the value kills the command and everything that it started; so does the end of the
    /// calling thread.
    pub fn start(options: ClientOptions, command: &[OsString]) -> Result<Self, LabError> {
        let mut required = Vec::new();
        if let Some(cpus) = options.cpus {
            required.push(Controller::Cpu);
            // Uniprocessor kernels have no cpuset controller.
            if cpus.whole_cpus() < available_cpus() {
                required.push(Controller::CpuSet);
            }
        }
        if options.memory_bytes.is_some() {
            required.push(Controller::Memory);
        }
        let optional = [Controller::Cpu, Controller::CpuAccounting, Controller::Memory];
        let group = Group::create("client", &required, &optional)?;
        if let Some(cpus) = options.cpus {
            limit_cpus(&group, cpus)?;
        }
        let mut swap_error = None;
        if let Some(bytes) = options.memory_bytes {
            limit_memory(&group, bytes)?;
            let set = |file: &str, value: &str| group.set(Controller::Memory, file, value);
            let disabled = disable_swap(group.version(Controller::Memory), bytes, set);
            swap_error = disabled.err().filter(|_| has_swap(&read_swaps()));
        }
        Ok(Self { running: group.start(command)?, group, swap_error })
    }

    /// The reason why swap could not be disabled: the command then becomes slow beyond its limit instead of being
    /// killed. `None` if it cannot swap.
    #[must_use]
    pub const fn swaps(&self) -> Option<&LabError> {
        self.swap_error.as_ref()
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn pidfd(&self) -> Result<OwnedFd, LabError> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Waits for the command to exit. Processes that it left running are killed.
    pub fn wait(mut self) -> Result<ClientResult, LabError> {
        let status = self.running.wait()?;
        Ok(ClientResult { status, usage: read_usage(&self.group) })
    }
}

impl ClientResult {
    /// Returns true if the OOM killer killed the command itself.
    #[must_use]
    pub fn was_oom_killed(&self) -> bool {
        const SIGKILL: i32 = 9;
        let code = self.status.signal().or_else(|| self.status.code().map(|code| code - 128));
        // A shell reports a killed child as 128 plus the signal.
        self.usage.oom_kills > 0 && code == Some(SIGKILL)
    }
}

/// Total memory of this machine in bytes; `None` if /proc/meminfo cannot be read.
#[must_use]
pub fn machine_memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibi: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibi << 10)
}

/// Number of CPUs that this process may use.
#[must_use]
pub fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Limits the CPUs of a group, and moves packet relays off them.
fn limit_cpus(group: &Group, cpus: CpuCount) -> Result<(), LabError> {
    if let Some(hierarchy) = group.hierarchy(Controller::CpuSet) {
        relay_threads::move_off_cpus(&assign_cpus(group, hierarchy, cpus)?)?;
    }
    cpus.quota_micros().map_or(Ok(()), |(quota, period)| set_cpu_quota(group, quota, period))
}

fn set_cpu_quota(group: &Group, quota: u64, period: u64) -> Result<(), LabError> {
    if group.version(Controller::Cpu) == Some(CgroupVersion::V2) {
        return group.set(Controller::Cpu, "cpu.max", &format!("{quota} {period}"));
    }
    group.set(Controller::Cpu, "cpu.cfs_period_us", &period.to_string())?;
    group.set(Controller::Cpu, "cpu.cfs_quota_us", &quota.to_string())
}

fn assign_cpus(group: &Group, hierarchy: &Hierarchy, cpus: CpuCount) -> Result<Vec<usize>, LabError> {
    let (allowed, memory_nodes) = match hierarchy.version {
        CgroupVersion::V1 => ("cpuset.effective_cpus", "cpuset.effective_mems"),
        CgroupVersion::V2 => ("cpuset.cpus.effective", "cpuset.mems.effective"),
    };
    let allowed = cpu_count::parse_cpu_list(&hierarchy.read_nearest(allowed)?);
    let chosen = cpu_count::choose_cpus(
        &allowed,
        &cpu_count::assigned_cpus(&hierarchy.mount_point),
        cpus.whole_cpus(),
    );
    if hierarchy.version == CgroupVersion::V1 {
        // A new group of version 1 has no memory nodes.
        group.set(Controller::CpuSet, "cpuset.mems", hierarchy.read_nearest(memory_nodes)?.trim())?;
    }
    group.set(Controller::CpuSet, "cpuset.cpus", &cpu_count::format_cpu_list(&chosen))?;
    Ok(chosen)
}

fn limit_memory(group: &Group, bytes: u64) -> Result<(), LabError> {
    let value = bytes.to_string();
    let is_new = group.version(Controller::Memory) == Some(CgroupVersion::V2);
    group.set(Controller::Memory, if is_new { "memory.max" } else { "memory.limit_in_bytes" }, &value)
}

/// Disables swap for a group with a memory limit of `bytes`. Not all kernels account for swap per group; version 1
/// without that supports a swappiness of 0.
fn disable_swap(
    version: Option<CgroupVersion>,
    bytes: u64,
    set: impl Fn(&str, &str) -> Result<(), LabError>,
) -> Result<(), LabError> {
    if version == Some(CgroupVersion::V2) {
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

fn read_usage(group: &Group) -> ResourceUsage {
    let field = |controller, file: &str, name: &str| -> Option<u64> {
        let text = group.get(controller, file)?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    let number = |controller, file: &str| -> Option<u64> { group.get(controller, file)?.trim().parse().ok() };
    let is_new = |controller| group.version(controller) == Some(CgroupVersion::V2);
    let cpu_time = if is_new(Controller::CpuAccounting) {
        field(Controller::CpuAccounting, "cpu.stat", "usage_usec").map(Duration::from_micros)
    } else {
        number(Controller::CpuAccounting, "cpuacct.usage").map(Duration::from_nanos)
    };
    let throttled_time = if is_new(Controller::Cpu) {
        field(Controller::Cpu, "cpu.stat", "throttled_usec").map(Duration::from_micros)
    } else {
        field(Controller::Cpu, "cpu.stat", "throttled_time").map(Duration::from_nanos)
    };
    let (peak, kills) = if is_new(Controller::Memory) {
        ("memory.peak", "memory.events")
    } else {
        ("memory.max_usage_in_bytes", "memory.oom_control")
    };
    ResourceUsage {
        cpu_time,
        throttled_time,
        peak_memory_bytes: number(Controller::Memory, peak),
        oom_kills: field(Controller::Memory, kills, "oom_kill").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use super::*;
    use crate::error::cannot;

    /// Returns the settings written to a group that has only the given files, and whether that succeeded.
    fn swap_settings(version: CgroupVersion, files: &[&str]) -> (Vec<String>, bool) {
        let sets = RefCell::new(Vec::new());
        let set = |file: &str, value: &str| {
            if !files.contains(&file) {
                return Err(cannot("set")(io::Error::from(io::ErrorKind::NotFound)));
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
        let one = |files: &[&str]| swap_settings(CgroupVersion::V1, files);
        assert_eq!(one(&[memsw, swappiness]), (vec![format!("{memsw} 4096")], true));
        assert_eq!(one(&[swappiness]), (vec![format!("{swappiness} 0")], true));
        assert_eq!(one(&[]), (vec![], false));
        assert_eq!(swap_settings(CgroupVersion::V2, &["memory.swap.max"]).0, ["memory.swap.max 0"]);
        assert!(!swap_settings(CgroupVersion::V2, &[swappiness]).1);
    }

    #[test]
    fn has_swap_ignores_the_header() {
        let heading = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(has_swap(&format!("{heading}/dev/sda2 partition 1048572 0 -2\n")));
        assert!(!has_swap(heading) && !has_swap(""));
    }
}
