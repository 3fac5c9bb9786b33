//! The two bodies of a request as operations see them. A [`RequestBody`] is decoded and verifies
//! itself: whoever read it to its end without an error has what the client signed. A
//! [`ResponseBody`] carries the store's buffers to the connection without a copy.

mod request;
pub(crate) mod response;

pub use request::RequestBody;
pub use response::{BoxError, ResponseBody};
