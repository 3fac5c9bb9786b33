//! The two bodies of a request as seen by operations. A [`RequestBody`] is decoded and verifies itself: if it was read
//! to its end without an error, its bytes are those that the client signed. A [`ResponseBody`] passes the store's
//! buffers to the connection without a copy.

mod request;
pub(crate) mod response;

pub use request::RequestBody;
pub use response::{BoxError, ResponseBody};
