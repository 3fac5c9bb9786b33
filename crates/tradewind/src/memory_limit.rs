//! The memory limit of the control groups of this process, and whether the settings fit into it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::settings::{ByteSize, Settings};

/// Memory besides the shares of the budget: the index of a local store, code, and the allocator.
const BASE_BYTES: u64 = 150 << 20;

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

/// Checks that the memory of the settings fits into the limit of this process. Logs a warning if only a part of it might
/// be used.
///
/// # Errors
///
/// `memory.budget` alone is not below the limit.
pub fn check(settings: &Settings) -> anyhow::Result<()> {
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
