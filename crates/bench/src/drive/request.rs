//! One request of any worker: waited for, timed and counted; and how an object is written.

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

/// Bytes that are handed to a store at once.
const PIECE_BYTES: u64 = 256 << 10;
/// A worker of a closed loop whose requests fail one behind the other waits so long before the next: a store that refuses at
/// once would otherwise be asked as fast as the generator can. That of an open loop is asked as often as it was said.
pub(crate) const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// How often it is tried to make an object that is to be there before a load begins.
pub(crate) const TRIES: u32 = 3;

/// What a request came to.
pub(crate) struct Answered {
    /// When the first byte was there.
    pub first: Duration,
    /// When all of it was. To judge it behind that is no part of the store's time.
    pub whole: Duration,
    pub bytes: u64,
}

impl Answered {
    /// All of it at once, without any bytes that are asked for.
    pub const fn at(whole: Duration, bytes: u64) -> Self {
        Self { first: whole, whole, bytes }
    }
}

/// Why it counts as failed: a short name to count by, and what was seen.
#[derive(Debug)]
pub(crate) struct Failed {
    kind: String,
    pub what: String,
    /// What the store said, where it is that which failed.
    pub error: Option<ErrorKind>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let kind = format!("{:?}", error.reason());
        Self { kind, what: error.to_string(), error: Some(error.kind()) }
    }
}

/// Of a file that bytes come from or go to.
impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { kind: "File".to_owned(), what: error.to_string(), error: None }
    }
}

impl Failed {
    /// What was answered is not what is there.
    pub fn wrong(what: String) -> Self {
        Self { kind: "WrongAnswer".to_owned(), what, error: None }
    }
}

/// Waits for a request that begins now and was meant to at a moment, and counts it. How it went. What was answered and is
/// judged only then must not wait for anything once requests are given up: it would count as unanswered.
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
                what: format!("{operation} was not answered by the end"),
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

/// Writes an object of so many bytes, from memory or from a file that has them.
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
        let length = PIECE_BYTES.min(size - at);
        let piece = match &mut file {
            Some(file) => file.read(usize::try_from(length).unwrap_or(usize::MAX)).await?,
            None => piece(&bed.content, content, at, length),
        };
        at += piece.len() as u64;
        staged.write(piece).await?;
    }
    staged.commit(Expected { size: Some(size), ..Expected::default() }).await?;
    Ok(())
}

fn piece(pool: &Content, content: ContentId, at: u64, length: u64) -> Bytes {
    let mut piece = BytesMut::zeroed(usize::try_from(length).unwrap_or(usize::MAX));
    pool.fill(content, at, &mut piece);
    piece.freeze()
}
