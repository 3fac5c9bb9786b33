//! Bundles: many small files as one object, which is a tar archive with an index behind its end (Hou 2017, sections 4.1.3
//! and 7). Anybody's `tar` reads the archive; who knows the index fetches one member with one range.
//!
//! `index` and `archive` are the format, without I/O; `packer` says what is packed, `waiting` has the files that are found, `set`
//! remembers which of them are stored, `ahead` reads the others while those before them are sent, `pack` makes bundles; `open`
//! and `unpack` read them; `crew` has the threads. Where a bundle ends, and what is fetched together, `model` decides.

mod ahead;
mod archive;
mod crew;
mod index;
mod open;
mod pack;
mod packer;
mod set;
mod unpack;
mod waiting;

pub use index::Member;
pub use open::Bundle;
pub use packer::{Packed, Packer};
pub use unpack::Unpacker;
