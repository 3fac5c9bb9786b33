//! Parallel transfers between a store and memory or files. A plan splits one object into several requests, which share
//! a pool of permits with those of other objects. Only what failed is retried.
//!
//! Also layers over a store: [`Instrumented`] measures it, [`Scheduled`] queues its requests in lanes by size and priority,
//! and [`ReadAhead`] reads large objects in parallel ranges.

pub mod buffer_pool;
mod cross_store_copy;
pub mod fetch;
mod hedge;
pub mod instrumented;
mod multipart_upload;
mod origin;
mod part_tracker;
mod permit_pool;
pub mod range_reader;
pub mod read_ahead;
pub mod scheduled;
mod sent_bytes;
mod server_side_copy;
pub mod store;
pub mod stream;
pub mod streaming_upload;
mod task;
pub mod transfer_context;
pub mod upload_checkpoint;
mod upload_source;
mod versioned_object;

pub use cross_store_copy::{OnProgress, copy_between_stores};
pub use fetch::{Fetch, Sink};
pub use instrumented::Instrumented;
pub use range_reader::RangeReader;
pub use read_ahead::ReadAhead;
pub use scheduled::Scheduled;
pub use server_side_copy::copy_within_store;
pub use store::store_object;
pub use stream::store_stream;
pub use streaming_upload::StreamingUpload;
pub use transfer_context::TransferContext;
pub use upload_checkpoint::UploadCheckpoint;
pub use upload_source::UploadSource;
