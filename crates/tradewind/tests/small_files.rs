//! Small files that a directory keeps beside its data: each is lost, emptied, damaged, replaced by its previous generation,
//! or by that of another directory. The next start works, rebuilds what the file had, or refuses and says what to do. It
//! never serves old data.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "small_files/balance.rs"]
mod balance;
#[path = "small_files/claims.rs"]
mod claims;
#[path = "small_files/served.rs"]
mod served;
mod support;
#[path = "small_files/transfers.rs"]
mod transfers;

use std::fs;
use std::path::Path;

/// A fault of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Missing,
    Empty,
    /// One bit is flipped, in each of several places.
    Flipped,
    /// The file is that of the previous generation.
    Older,
    /// The file is that of another directory of the same kind.
    Foreign,
}

impl Damage {
    const ALL: [Self; 5] = [Self::Missing, Self::Empty, Self::Flipped, Self::Older, Self::Foreign];
}

/// The expected reaction to a fault.
#[derive(Debug, Clone, Copy)]
enum Reaction {
    /// The directory is used, and what the file had is rebuilt if it is needed.
    Starts,
    /// The directory is not used. The message has these words.
    Refuses(&'static str),
    /// One of both: it depends on the damaged place.
    StartsOrRefuses(&'static str),
}

/// The bytes of a file after a fault of one bit: at the begin, in the middle, and before the last byte.
fn flipped(bytes: &[u8]) -> Vec<Vec<u8>> {
    const MAX_PLACES: usize = 2;
    let step = bytes.len().div_ceil(MAX_PLACES).max(1);
    let flip = |at: usize| {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1 << (at % 3);
        damaged
    };
    (0..bytes.len()).step_by(step).chain(bytes.len().checked_sub(2)).map(flip).collect()
}

/// Replaces the directory `to` by a copy of `from`.
fn copy_tree(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else if entry.file_name() == "extents" {
            copy_sparse(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Copies a file, of which blocks of zeros become holes.
fn copy_sparse(from: &Path, to: &Path) {
    use std::io::Read as _;
    use std::os::unix::fs::FileExt as _;
    const BLOCK_BYTES: usize = 64 << 10;
    let (mut source, target) = (fs::File::open(from).unwrap(), fs::File::create(to).unwrap());
    target.set_len(source.metadata().unwrap().len()).unwrap();
    let (mut block, mut at) = (vec![0; BLOCK_BYTES], 0);
    loop {
        let read = source.read(&mut block).unwrap();
        if read == 0 {
            return;
        }
        if block[..read].iter().any(|byte| *byte != 0) {
            target.write_all_at(&block[..read], at).unwrap();
        }
        at += read as u64;
    }
}
