//! Removing control groups: those whose command has ended, and those that a killed process left.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::PREFIX;

/// How long processes that were killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Groups within groups, at the most, that are searched.
const DEPTH: usize = 12;

/// Removes all groups below a directory that were made here and that nobody holds.
pub(super) fn sweep(directory: &Path) {
    sweep_to(directory, DEPTH);
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

/// Ends what runs in a group and in those within it, and removes them. One that stays is left to the next sweep.
pub(super) fn remove(directory: &Path) {
    let until = Instant::now() + PATIENCE;
    // Whoever is about to start another process cannot be told from one who is not.
    while directory.exists() && Instant::now() < until {
        end_processes(directory);
        remove_directories(directory);
        if directory.exists() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn end_processes(directory: &Path) {
    for group in inner(directory) {
        end_processes(&group);
    }
    let Ok(listed) = fs::read_to_string(directory.join("cgroup.procs")) else { return };
    let ours = std::process::id();
    // Those that this process cannot see are listed as 0.
    let processes = listed.lines().filter_map(|line| line.parse().ok()).filter(|process| *process != 0);
    for process in processes.filter(|process: &u32| *process != ours) {
        if let Some(process) = Pid::from_raw(process.cast_signed()) {
            // It may have ended just now.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

fn remove_directories(directory: &Path) {
    for group in inner(directory) {
        remove_directories(&group);
    }
    // It fails while a process is in it; the caller tries again.
    let _ = fs::remove_dir(directory);
}

fn inner(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
