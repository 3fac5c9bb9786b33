//! Executes, times and records one request of a worker, and writes objects.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tradewind_core::error::{Error, ErrorKind};
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Context};
use tradewind_pattern::{Content, ContentId};

use super::Bed;
use super::shared::Shared;
use crate::files::Opened;
use crate::operation::Operation;
use crate::record::{Record, Timing};
use crate::samples::Handled;

/// Bytes per write to a staged object.
const WRITE_BYTES: u64 = 256 << 10;
/// Pause of a closed-loop worker after a failed request: a store that rejects at once would otherwise be called as fast
/// as the generator can. An open loop keeps its rate and does not pause.
pub(crate) const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// Maximum attempts to create an object that must exist before a load begins.
pub(crate) const TRIES: u32 = 3;

/// A successful request.
pub(crate) struct Answered {
    /// Time of the first byte.
    pub first: Duration,
    /// Time of the last byte. Checking the response afterwards is not counted as the store's time.
    pub whole: Duration,
    /// Bytes of the object.
    pub bytes: u64,
}

impl Answered {
    /// A response without a body, or an upload: first and last byte at the same time.
    pub const fn at(whole: Duration, bytes: u64) -> Self {
        Self { first: whole, whole, bytes }
    }
}

/// A failed request: a short kind for counting, and a message.
#[derive(Debug)]
pub(crate) struct Failed {
    kind: String,
    pub what: String,
    /// The kind of the store's error, if the store failed.
    pub error: Option<ErrorKind>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let kind = format!("{:?}", error.reason());
        Self { kind, what: error.to_string(), error: Some(error.kind()) }
    }
}

/// A failure of a source or target file.
impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { kind: "File".to_owned(), what: error.to_string(), error: None }
    }
}

impl Failed {
    /// The response does not match what was written.
    pub fn wrong(what: String) -> Self {
        Self { kind: "WrongAnswer".to_owned(), what, error: None }
    }
}

/// Executes a request that was scheduled for `intended` and records its result. A response that has arrived must be
/// checked without waiting: once requests are cancelled, a pending check would count as unanswered.
pub(crate) async fn attend<T>(
    shared: &Shared<T>,
    record: &mut Record,
    (operation, intended): (Operation, Duration),
    asked: impl Future<Output = Result<Answered, Failed>>,
) -> Handled {
    let begun = shared.now();
    let answered = tokio::select! {
        biased;
        answered = asked => answered,
        () = shared.over.cancelled() => {
            record.cut(shared.window(), operation, intended, shared.now());
            Err(Failed {
                kind: "Unanswered".to_owned(),
                what: format!("{operation} got no response before the end"),
                error: None,
            })
        }
    };
    let ended = answered.as_ref().map_or_else(|_| shared.now(), |answered| answered.whole);
    let window = shared.window();
    shared.ended(ended);
    let answer = match answered {
        Ok(Answered { first, bytes, .. }) => {
            shared.gauge.success(bytes);
            record.success(window, operation, Timing { intended, begun, first, ended }, bytes);
            Ok((first, bytes))
        }
        Err(Failed { kind, what, .. }) => {
            shared.gauge.failure();
            record.failure(window, operation, ended, &kind, &what);
            Err(kind)
        }
    };
    Handled { intended, begun: Some(begun), ended, answer }
}

/// Writes an object of `size` bytes, from generated content or from a file.
pub(crate) async fn put(
    bed: &Bed,
    context: &Context,
    address: &Address,
    (content, size): (ContentId, u64),
    mut file: Option<Opened>,
) -> Result<(), Failed> {
    let request = StageRequest { size: Some(size), ..StageRequest::default() };
    let mut staged = bed.store.stage(context, address, request).await?;
    let mut at = 0;
    while at < size {
        let length = WRITE_BYTES.min(size - at);
        let buffer = match &mut file {
            Some(file) => file.read(usize::try_from(length).unwrap_or(usize::MAX)).await?,
            None => generate(&bed.content, content, at, length),
        };
        at += buffer.len() as u64;
        staged.write(buffer).await?;
    }
    staged.commit(Expected { size: Some(size), ..Expected::default() }).await?;
    Ok(())
}

fn generate(generator: &Content, content: ContentId, offset: u64, length: u64) -> Bytes {
    let mut buffer = BytesMut::zeroed(usize::try_from(length).unwrap_or(usize::MAX));
    generator.fill(content, offset, &mut buffer);
    buffer.freeze()
}
