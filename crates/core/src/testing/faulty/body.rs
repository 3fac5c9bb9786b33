//! Faults in the middle of a body.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::body::Body;
use crate::error::{Error, Result};

use super::plan::Fault;

/// Applies a fault to a body. An offset at or beyond the end means the last byte, so
/// that every non-empty body is affected.
pub(super) fn apply_body_fault(body: Body, fault: Fault) -> Body {
    let length = body.length();
    let Some(last) = length.checked_sub(1) else { return body };
    match fault {
        Fault::Truncate(at) => Body::from_stream(length, cut(body, at.min(last), None)),
        Fault::FailAt(at, reason) => {
            let error = Error::new(reason, "an injected fault broke the body");
            Body::from_stream(length, cut(body, at.min(last), Some(error)))
        }
        Fault::Corrupt(at) => Body::from_stream(length, flip(body, at.min(last))),
        Fault::FailBefore(_)
        | Fault::FailAfter(_)
        | Fault::Delay(_)
        | Fault::Hang
        | Fault::IgnorePrefix
        | Fault::DelayedFailure(..)
        | Fault::EmptyListing
        | Fault::UnorderedListing
        | Fault::PretendSuccess => body,
    }
}

/// The first `keep` bytes, then the error, if any.
fn cut(body: Body, keep: u64, end: Option<Error>) -> impl futures::Stream<Item = Result<Bytes>> + Send {
    let kept = futures::stream::unfold((body, keep), |(mut body, left)| async move {
        if left == 0 {
            return None;
        }
        let mut piece = match body.next().await? {
            Ok(piece) => piece,
            Err(e) => return Some((Err(e), (body, 0))),
        };
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - piece.len() as u64;
        Some((Ok(piece), (body, left)))
    });
    kept.chain(futures::stream::iter(end.map(Err)))
}

fn flip(body: Body, at: u64) -> impl futures::Stream<Item = Result<Bytes>> + Send {
    body.scan(0_u64, move |offset, piece| {
        let piece = piece.map(|bytes| {
            let index = at.checked_sub(*offset).and_then(|n| usize::try_from(n).ok());
            *offset += bytes.len() as u64;
            match index.filter(|&n| n < bytes.len()) {
                Some(index) => {
                    let mut copy = BytesMut::from(&bytes[..]);
                    copy[index] ^= 1;
                    copy.freeze()
                }
                None => bytes,
            }
        });
        std::future::ready(Some(piece))
    })
}
