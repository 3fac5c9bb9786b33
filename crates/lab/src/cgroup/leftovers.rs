//! Removal of control groups: those whose command has ended, and those left behind by a killed process.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::PREFIX;

/// Maximum time that killed processes may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum nesting depth of the search.
const MAX_DEPTH: usize = 12;

/// Removes all unlocked groups below a directory that were created here.
pub(super) fn sweep(directory: &Path) {
    sweep_to(directory, MAX_DEPTH);
}

fn sweep_to(directory: &Path, depth: usize) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let path = entry.path();
        if depth > 0 {
            sweep_to(&path, depth - 1);
        }
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(group) = File::open(&path)
            && group.try_lock().is_ok()
        {
            remove(&path);
        }
    }
}

/// Kills the processes of a group and its children, and removes the groups. A group that remains is left to the next
/// sweep.
pub(super) fn remove(directory: &Path) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    // A process may fork between the listing and the kill, so both are repeated.
    while directory.exists() && Instant::now() < deadline {
        end_processes(directory);
        remove_directories(directory);
        if directory.exists() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn end_processes(directory: &Path) {
    for group in child_groups(directory) {
        end_processes(&group);
    }
    let Ok(listed) = fs::read_to_string(directory.join("cgroup.procs")) else { return };
    let ours = std::process::id();
    // Processes outside this PID namespace are listed as 0.
    let processes = listed.lines().filter_map(|line| line.parse().ok()).filter(|process| *process != 0);
    for process in processes.filter(|process: &u32| *process != ours) {
        if let Some(process) = Pid::from_raw(process.cast_signed()) {
            // It may have exited just now.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

fn remove_directories(directory: &Path) {
    for group in child_groups(directory) {
        remove_directories(&group);
    }
    // Fails while the group contains a process; the caller retries.
    let _ = fs::remove_dir(directory);
}

fn child_groups(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
