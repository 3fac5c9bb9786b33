//! The memory limits of this process, of its control groups and of its address space, and whether the settings fit into
//! them.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::bail;
use rustix::process::{Resource, getrlimit};

use crate::settings::{ByteSize, Settings};

/// Memory besides the shares of the budget: the index of a local store, code, and the allocator.
const BASE_BYTES: u64 = 150 << 20;
/// Address space that is mapped without being used: the allocator maps 64 MiB at once, and the binary is mapped whole.
const UNUSED_ADDRESS_BYTES: u64 = 128 << 20;
/// Address space of the stack of a worker thread.
const STACK_BYTES: u64 = 2 << 20;

/// The lowest memory limit of the control groups of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub bytes: u64,
    /// The file that has it.
    pub file: PathBuf,
}

impl MemoryLimit {
    /// The limit of this process; `None` without one, and where it cannot be read.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::find(Path::new("/sys/fs/cgroup"), &groups)
    }

    /// The lowest limit of the groups in `groups` (as in `/proc/self/cgroup`) and their parents, below the mount point
    /// `root`.
    fn find(root: &Path, groups: &str) -> Option<Self> {
        let files = groups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            match controllers {
                "" if hierarchy == "0" => Some((root.to_owned(), path, "memory.max")),
                "memory" => Some((root.join("memory"), path, "memory.limit_in_bytes")),
                _ => None,
            }
        });
        let limits = files.flat_map(|(root, path, name)| {
            let path = PathBuf::from(path.trim_start_matches('/'));
            let groups: Vec<PathBuf> = path.ancestors().map(|group| root.join(group)).collect();
            let last = groups.iter().position(|group| is_separate(group)).unwrap_or(groups.len());
            groups.into_iter().take(last + 1).map(|group| group.join(name)).collect::<Vec<_>>()
        });
        limits.filter_map(Self::read).min_by_key(|limit| limit.bytes)
    }

    /// The limit in a file. `None` for `max`, and for the largest number of pages, which means the same in version 1.
    fn read(file: PathBuf) -> Option<Self> {
        let bytes: u64 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        (bytes < u64::MAX / 4).then_some(Self { bytes, file })
    }
}

/// True for a group of version 1 to which the limits of its parents do not apply.
fn is_separate(group: &Path) -> bool {
    fs::read_to_string(group.join("memory.use_hierarchy")).is_ok_and(|text| text.trim() == "0")
}

/// The memory that a server with one local store uses at most, without its connections: the rule in
/// `docs/deployment.md`.
#[must_use]
pub const fn needed_bytes(budget_bytes: u64) -> u64 {
    budget_bytes.saturating_add(budget_bytes / 10 * 6).saturating_add(BASE_BYTES)
}

/// The address space that a server with one local store uses at most. With less, an allocation may fail, which ends the
/// process.
const fn needed_address_bytes(budget_bytes: u64, workers: u64) -> u64 {
    let stacks = workers.saturating_mul(STACK_BYTES);
    needed_bytes(budget_bytes).saturating_add(UNUSED_ADDRESS_BYTES).saturating_add(stacks)
}

/// The least address space with which a server with one local store starts. Its requests may use the whole budget.
const fn min_address_bytes(budget_bytes: u64, workers: u64) -> u64 {
    let beyond_budget = needed_bytes(budget_bytes).saturating_sub(BASE_BYTES).saturating_sub(budget_bytes);
    needed_address_bytes(budget_bytes, workers).saturating_sub(beyond_budget)
}

/// Limits the allocator of the C library, which only C code and the start of a thread use, if the address space is
/// limited: it would map 64 MiB for each thread. Call before the first thread starts.
pub fn limit_c_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if getrlimit(Resource::As).current.is_some() {
        // SAFETY: The call has no preconditions. It changes a setting of the allocator, under the allocator's lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Checks that the settings fit into the limit of the address space (`ulimit -v`).
fn check_address_space(settings: &Settings) -> anyhow::Result<()> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let budget = &settings.scalars.memory.budget;
    let workers = settings.scalars.server.workers.value.map(NonZeroUsize::get);
    let workers = workers.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let needed = needed_address_bytes(budget.value.0, workers as u64);
    if min_address_bytes(budget.value.0, workers as u64) > limit {
        bail!(
            "{}: memory.budget = {}, but this process may map only {} of memory (ulimit -v); lower the budget, or raise the \
             limit to at least {}",
            budget.source,
            budget.value,
            ByteSize(limit),
            ByteSize(needed.next_multiple_of(1 << 20)),
        );
    }
    if needed > limit {
        tracing::warn!(
            budget = %budget.value,
            limit = %ByteSize(limit),
            needed = %ByteSize(needed.next_multiple_of(1 << 20)),
            "under load this process may lack address space (ulimit -v): lower memory.budget or raise the limit"
        );
    }
    Ok(())
}

/// Checks that the memory of the settings fits into the limits of this process. Logs a warning if only a part of it might
/// be used.
///
/// # Errors
///
/// `memory.budget` alone is not below the limit of a control group, or the address space does not suffice.
pub fn check(settings: &Settings) -> anyhow::Result<()> {
    check_address_space(settings)?;
    let Some(limit) = MemoryLimit::of_this_process() else { return Ok(()) };
    let budget = &settings.scalars.memory.budget;
    let (needed, file) = (needed_bytes(budget.value.0), limit.file.display());
    if budget.value.0 >= limit.bytes {
        bail!(
            "{}: memory.budget = {}, but this process may use only {} ({file}); lower the budget, or raise the limit to {}",
            budget.source,
            budget.value,
            ByteSize(limit.bytes),
            ByteSize(needed),
        );
    }
    if needed > limit.bytes {
        tracing::warn!(
            budget = %budget.value,
            limit = %ByteSize(limit.bytes),
            needed = %ByteSize(needed),
            %file,
            "under load this process may be killed for lack of memory: lower memory.budget or raise the limit"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_budget_fits_into_500_mib_of_address_space() {
        let budget =
            Settings::read(&crate::settings::Inputs::default()).unwrap().scalars.memory.budget.value.0;
        assert!(needed_address_bytes(budget, 4) <= 500 << 20, "{}", needed_address_bytes(budget, 4));
        assert!(needed_address_bytes(u64::MAX, 2) == u64::MAX);
    }

    #[test]
    fn lowest_limit_of_a_group_and_its_parents_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let find = |groups: &str| MemoryLimit::find(root.path(), groups);
        assert_eq!(find("0::/a/b\n"), None);
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1073741824\n");
        let found = find("0::/a/b\n").unwrap();
        assert_eq!((found.bytes, found.file), (1 << 30, root.path().join("a/memory.max")));
        // Version 1, where the largest number of pages is no limit.
        write("memory/x/memory.limit_in_bytes", "268435456\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(find("5:cpu:/x\n4:memory:/x\n0::/\n").unwrap().bytes, 256 << 20);
        assert_eq!(find("4:memory:/\n"), None);
        write("memory/x/y/memory.limit_in_bytes", "536870912\n");
        assert_eq!(find("4:memory:/x/y\n").unwrap().bytes, 256 << 20);
        write("memory/x/y/memory.use_hierarchy", "0\n");
        assert_eq!(find("4:memory:/x/y\n").unwrap().bytes, 512 << 20);
        assert_eq!(find("nonsense\n"), None);
    }
}
