//! Parallel transfers between a store and memory or files. A plan splits one object into several requests, which share
//! a pool of permits with those of other objects. Only what failed is retried.
//!
//! Also layers over a store: [`Observed`] measures it, [`Scheduled`] queues its requests in lanes by size and priority,
//! and [`Planned`] reads large objects in parallel ranges.

mod cross_store_copy;
pub mod buffer_pool;
pub mod transfer_context;
mod server_side_copy;
pub mod fetch;
mod hedge;
mod part_tracker;
pub mod upload_checkpoint;
pub mod instrumented;
mod origin;
pub mod read_ahead;
pub mod range_reader;
pub mod scheduled;
mod sent_bytes;
pub mod streaming_upload;
mod upload_source;
mod permit_pool;
pub mod store;
pub mod stream;
mod task;
mod multipart_upload;
mod versioned_object;

pub use cross_store_copy::{OnProgress, copy_between_stores};
pub use transfer_context::TransferContext;
pub use server_side_copy::copy_within_store;
pub use fetch::{Fetch, Sink};
pub use upload_checkpoint::UploadCheckpoint;
pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use range_reader::RangeReader;
pub use scheduled::Scheduled;
pub use streaming_upload::StreamingUpload;
pub use upload_source::UploadSource;
pub use store::store_object;
pub use stream::store_stream;
