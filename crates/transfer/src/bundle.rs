//! Bundles: many small files in one object, a tar archive followed by an index (Hou 2017, sections 4.1.3 and 7). Any
//! `tar` reads the archive; with the index, one range request fetches one member.
//!
//! `index` and `archive` implement the format without I/O. Packing reads queued files ahead while earlier ones are
//! uploaded, and a journal of the set lets an interrupted packing resume. `tradewind_model::bundle` decides where a
//! bundle ends and which members are fetched together.

mod archive;
mod file_queue;
mod file_reader;
mod index;
mod pack;
mod packer;
mod reader;
mod set;
mod thread_pool;
mod unpack;

pub use index::Member;
pub use packer::{PackOutcome, Packer};
pub use reader::Bundle;
pub use unpack::Unpacker;
