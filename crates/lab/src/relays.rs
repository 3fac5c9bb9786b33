//! Threads that carry the packets of links, and the processors that they keep off.
//!
//! A relay runs before everything else, and does not sleep where packets follow closely. On a processor that a client was given it
//! would take most of what the client has, and the line would be a slower one, too.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{self, CpuSet, Pid};

use crate::failed::{Failed, failed};

/// By this name they are found. Tests look for their own alone.
const NAME: &CStr = if cfg!(test) { c"lab-relay-test" } else { c"lab-relay" };

/// Has the calling thread found as one that carries packets.
pub fn mark_current() -> io::Result<()> {
    Ok(thread::set_name(NAME)?)
}

/// Has all relays of this machine keep off processors from now on, where they have others: one of those is all that a relay needs.
pub fn keep_off(processors: &[usize]) -> Result<(), Failed> {
    for relay in all() {
        match move_off(relay, processors) {
            // It may have ended meanwhile.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(failed("keep a link's relay off the client's processors")(e)),
        }
    }
    Ok(())
}

fn move_off(relay: Pid, processors: &[usize]) -> rustix::io::Result<()> {
    let mut may_use = thread::sched_getaffinity(Some(relay))?;
    let known = processors.iter().filter(|processor| **processor < CpuSet::MAX_CPU);
    known.for_each(|processor| may_use.unset(*processor));
    if may_use.count() == 0 { Ok(()) } else { thread::sched_setaffinity(Some(relay), &may_use) }
}

fn all() -> Vec<Pid> {
    let threads = |process: &Path| entries(&process.join("task"));
    let processes = entries(Path::new("/proc"));
    processes.iter().flat_map(|process| threads(process)).filter_map(|thread| relay(&thread)).collect()
}

fn relay(thread: &Path) -> Option<Pid> {
    let name = fs::read(thread.join("comm")).ok()?;
    let number = thread.file_name()?.to_str()?.parse().ok()?;
    if name.trim_ascii_end() == NAME.to_bytes() { Pid::from_raw(number) } else { None }
}

/// What has a number for its name. Whatever has ended meanwhile has none.
fn entries(directory: &Path) -> Vec<PathBuf> {
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

    fn processors(of: Pid) -> Vec<usize> {
        let may_use = thread::sched_getaffinity(Some(of)).unwrap();
        (0..CpuSet::MAX_CPU).filter(|processor| may_use.is_set(*processor)).collect()
    }

    /// A thread that carries nothing; it ends when what is answered is dropped.
    fn a_relay() -> (Pid, mpsc::Sender<()>) {
        let (told, number) = mpsc::channel();
        let (end, until_end) = mpsc::channel();
        std::thread::spawn(move || {
            mark_current().unwrap();
            told.send(thread::gettid()).unwrap();
            let _ = until_end.recv();
        });
        (number.recv().unwrap(), end)
    }

    #[test]
    fn relays_keep_off_a_clients_processors() {
        let (relay, running) = a_relay();
        let all = processors(relay);
        let [.., last] = all[..] else { return };
        if all.len() < 2 {
            eprintln!("skipped: this machine has one processor");
            return;
        }
        let others = &all[..all.len() - 1];
        keep_off(&[last, CpuSet::MAX_CPU + 1]).unwrap();
        assert_eq!(processors(relay), others);
        // A client of all that are left: there is nowhere else.
        keep_off(others).unwrap();
        assert_eq!(processors(relay), others);
        drop(running);
        keep_off(&[last]).unwrap();
    }

    #[test]
    fn nobody_else_is_a_relay() {
        assert_ne!(relay(Path::new("/proc/self")), Some(thread::gettid()));
        assert_eq!(relay(Path::new("/proc/none")), None);
    }
}
