//! Threads that forward the packets of links, and the CPUs that they avoid.
//!
//! A relay has real-time priority and spins while packets follow closely. On a client's CPU it would take most of the
//! client's CPU time, and the link would be slower as well.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{self, CpuSet, Pid};

use crate::error::{LabError, cannot};

/// Thread name by which relays are found. Tests find only their own.
const THREAD_NAME: &CStr = if cfg!(test) { c"lab-relay-test" } else { c"lab-relay" };

/// Marks the calling thread as a packet relay.
pub fn mark_current() -> io::Result<()> {
    Ok(thread::set_name(THREAD_NAME)?)
}

/// Moves all relays of this machine off the given CPUs. A relay without any other CPU is not moved.
pub fn move_off_cpus(cpus: &[usize]) -> Result<(), LabError> {
    for relay in relay_thread_ids() {
        match move_off(relay, cpus) {
            // It may have exited concurrently.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(cannot("keep a link's relay off the client's CPUs")(e)),
        }
    }
    Ok(())
}

fn move_off(relay: Pid, cpus: &[usize]) -> rustix::io::Result<()> {
    let mut may_use = thread::sched_getaffinity(Some(relay))?;
    let valid = cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU);
    valid.for_each(|cpu| may_use.unset(*cpu));
    if may_use.count() == 0 { Ok(()) } else { thread::sched_setaffinity(Some(relay), &may_use) }
}

fn relay_thread_ids() -> Vec<Pid> {
    let threads = |process: &Path| numeric_entries(&process.join("task"));
    let processes = numeric_entries(Path::new("/proc"));
    processes
        .iter()
        .flat_map(|process| threads(process))
        .filter_map(|thread| relay_thread_id(&thread))
        .collect()
}

fn relay_thread_id(thread: &Path) -> Option<Pid> {
    let name = fs::read(thread.join("comm")).ok()?;
    let number = thread.file_name()?.to_str()?.parse().ok()?;
    if name.trim_ascii_end() == THREAD_NAME.to_bytes() { Pid::from_raw(number) } else { None }
}

/// Directory entries with a numeric name. Empty if the process has exited.
fn numeric_entries(directory: &Path) -> Vec<PathBuf> {
    let is_number =
        |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(is_number)
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn allowed_cpus(thread: Pid) -> Vec<usize> {
        let may_use = thread::sched_getaffinity(Some(thread)).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| may_use.is_set(*cpu)).collect()
    }

    /// A marked thread that forwards nothing; it ends when the returned sender is dropped.
    fn a_relay() -> (Pid, mpsc::Sender<()>) {
        let (id_sender, id) = mpsc::channel();
        let (end, until_end) = mpsc::channel();
        std::thread::spawn(move || {
            mark_current().unwrap();
            id_sender.send(thread::gettid()).unwrap();
            let _ = until_end.recv();
        });
        (id.recv().unwrap(), end)
    }

    #[test]
    fn keep_off_moves_relays_off_client_cpus() {
        let (relay, running) = a_relay();
        let all = allowed_cpus(relay);
        let [.., last] = all[..] else { return };
        if all.len() < 2 {
            eprintln!("skipped: this machine has one CPU");
            return;
        }
        let others = &all[..all.len() - 1];
        move_off_cpus(&[last, CpuSet::MAX_CPU + 1]).unwrap();
        assert_eq!(allowed_cpus(relay), others);
        // With all remaining CPUs assigned to a client, the relay has nowhere to go.
        move_off_cpus(others).unwrap();
        assert_eq!(allowed_cpus(relay), others);
        drop(running);
        move_off_cpus(&[last]).unwrap();
    }

    #[test]
    fn relay_ignores_unmarked_threads() {
        assert_ne!(relay_thread_id(Path::new("/proc/self")), Some(thread::gettid()));
        assert_eq!(relay_thread_id(Path::new("/proc/none")), None);
    }
}
