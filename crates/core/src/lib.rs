//! The core types of all crates, and the port [`ObjectStore`], through which the gateway and the commands use every
//! store.
//!
//! Nothing here does I/O. Decisions that several stores must make in the same way (does a
//! precondition hold, what belongs on a page of a listing, is this key legal) are pure functions
//! here, so that leaves and layers cannot drift apart.

pub mod body;
pub mod budget;
pub mod cache_status;
pub mod checksum;
pub mod class;
pub mod clock;
pub mod condition;
pub mod context;
pub mod deadline;
pub mod device_gate;
pub mod error;
pub mod layer;
pub mod listing;
pub mod metadata;
pub mod multipart;
pub mod name;
pub mod object;
pub mod observation;
pub mod printable;
pub mod quantity;
pub mod random;
pub mod range;
pub mod send_progress;
pub mod store;
pub mod stored_form;
#[cfg(feature = "testing")]
pub mod testing;
pub mod threads;
pub mod token;
pub mod traffic;
pub mod version;

pub use body::Body;
pub use budget::{Account, Budget, Demand, Reservation, Tenant, Window};
pub use checksum::{Algorithm, Checksum, ChecksumScope};
pub use class::{Class, ClassUpdate, Classes, Retention};
pub use clock::{Clock, SystemClock, Timestamp};
pub use condition::{Precondition, ReadConditions};
pub use context::Context;
pub use device_gate::DeviceGate;
pub use error::{Error, ErrorKind, Reason, Result};
pub use metadata::{Metadata, SystemHeaders, Tags};
pub use name::{Address, BucketName, ObjectKey};
pub use object::{ETag, Generation, Identity, ObjectInfo};
pub use observation::Observation;
pub use printable::printable;
pub use range::{ByteRange, Span};
pub use send_progress::SendProgress;
pub use store::{ObjectStore, Staged};
pub use traffic::Traffic;
pub use version::{VersionId, Versioning};
