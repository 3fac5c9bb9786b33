//! Parallel transfers between a store and memory or files. A plan splits one object into several requests, which share
//! a pool of permits with those of other objects. Only what failed is retried.

pub mod buffer_pool;
mod cross_store_copy;
pub mod fetch;
mod hedge;
mod multipart_upload;
pub mod origin;
mod part_sizes;
mod part_tracker;
mod permit_pool;
pub mod range_reader;
mod sent_bytes;
mod server_side_copy;
pub mod stream;
pub mod streaming_upload;
pub mod task;
pub mod transfer_context;
pub mod upload_checkpoint;
pub mod upload_object;
mod upload_source;
pub mod versioned_object;

pub use cross_store_copy::{OnProgress, copy_between_stores};
pub use fetch::{Fetch, Sink};
pub use range_reader::RangeReader;
pub use server_side_copy::copy_within_store;
pub use stream::store_stream;
pub use streaming_upload::StreamingUpload;
pub use transfer_context::TransferContext;
pub use upload_checkpoint::{FinishedCopy, UploadCheckpoint};
pub use upload_object::store_object;
pub use upload_source::UploadSource;
