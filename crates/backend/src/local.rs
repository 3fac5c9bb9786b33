//! The `local` leaf: objects in a directory of this machine. Log-structured, and the log is the only
//! truth: key, metadata, sequence and location ride in records, and one fdatasync shared by all
//! waiting writers makes them durable. The index is derived and can be deleted.
//!
//! `commit` is the one thread through which changes go; `stage` brings bytes in, `read` takes them
//! out, `upkeep` moves what lives out of segments that mostly died; `open` and `reindex` make an index
//! out of a log. The disk format is described in `docs/format.md`.

mod apply;
mod buffers;
mod bulk;
mod check;
mod commit;
mod complete;
mod evidence;
mod fields;
mod fit;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod inspect;
mod io;
mod layout;
mod leaf;
mod list;
mod log;
mod loss;
mod manifests;
mod open;
mod options;
mod position;
mod read;
mod record;
mod recovery;
mod reindex;
mod repair;
mod replay;
mod scan;
mod segment;
mod shared;
mod space;
mod stage;
mod store;
mod upkeep;
mod uploads;

pub use self::check::{CheckReport, Damage, StoreStats, check, reindex_store as reindex, stats};
pub use self::inspect::IndexState;
pub use self::loss::{Loss, LossProof, LostRange, Names};
pub use self::options::LocalOptions;
pub use self::recovery::Recovery;
pub use self::store::LocalStore;
