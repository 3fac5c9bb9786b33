//! The `local` leaf: objects in a local directory. It is log-structured, and the log is the only source of truth:
//! records carry key, metadata, sequence number and location, and one fdatasync shared by all waiting writers makes
//! them durable. The index is derived and can be deleted.
//!
//! `commit` is the single thread that applies changes; `stage` receives bytes, `read` returns them, `upkeep` compacts
//! segments that are mostly dead; `open` and `reindex` build an index from a log. The disk format is described in
//! `docs/format.md`.

mod apply;
mod buffer_pool;
mod bulk;
mod check;
mod commit;
mod complete;
mod current_version;
mod fields;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod index_fit;
mod index_locations;
mod inspect;
mod io_threads;
mod layout;
mod list;
mod loss;
mod loss_evidence;
mod manifest_cache;
mod open;
mod open_store;
mod options;
mod page_cache;
mod pending_records;
mod position;
mod read;
mod record;
mod recovery;
mod redescribe;
mod reindex;
mod replay;
mod scan;
mod segment;
mod segment_files;
mod space;
mod stage;
mod store;
mod store_state;
mod upkeep;
mod uploads;
mod written_end;

pub use self::check::{CheckReport, Damage, StoreStats, check, reindex_store as reindex, stats};
pub use self::inspect::IndexState;
pub use self::loss::{Loss, LossProof, LostRange, NameList};
pub use self::options::LocalOptions;
pub use self::recovery::Recovery;
pub use self::store::LocalStore;
