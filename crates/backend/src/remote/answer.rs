//! An answer: its head is here, its body comes.

use std::fmt;
use std::io::Read as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, Incoming};
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Body, Checksum, Context, Observation};

use super::pool::{Connection, Pool};
use super::waking::Waking;

/// Where less than is worth being woken for comes within this, each byte is.
const A_MOMENT: Duration = Duration::from_millis(250);

/// An answer with success or not. Dropping it before its end closes its connection.
pub(crate) struct Answer {
    pub head: Parts,
    pub observation: Observation,
    incoming: Incoming,
    /// Given back at the end of the body.
    held: Option<(Arc<Pool>, Connection)>,
    /// The store said that it takes nothing more on this connection.
    closes: bool,
    stall_time: Duration,
    /// Of a body that is read in large pieces.
    waking: Option<Arc<Waking>>,
}

impl Answer {
    pub fn new(
        response: http::Response<Incoming>,
        held: (Arc<Pool>, Connection),
        stall_time: Duration,
        observation: Observation,
    ) -> Self {
        let (head, incoming) = response.into_parts();
        let closes = is_last(&head);
        Self { head, observation, incoming, held: Some(held), closes, stall_time, waking: None }
    }

    /// A header's text; what is not ASCII counts as absent.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The announced length of the body.
    pub fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str())?.parse().ok()
    }

    /// The next piece of the body; `None` at its end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let Some(frame) = self.frame().await? else {
                self.end();
                return Ok(None);
            };
            // Trailers say nothing that is acted upon.
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                // Whoever counts bytes does not ask for the end.
                if self.incoming.is_end_stream() {
                    self.end();
                }
                return Ok(Some(data));
            }
        }
    }

    async fn frame(&mut self) -> Result<Option<Frame<Bytes>>> {
        let mut frame = self.incoming.frame();
        let mut frame = pin!(async {
            match &mut self.held {
                Some((_, connection)) => connection.drive(Pin::new(&mut frame)).await,
                None => frame.await,
            }
        });
        let soon = match &self.waking {
            Some(_) => tokio::time::timeout(A_MOMENT, frame.as_mut()).await.ok(),
            None => None,
        };
        let came = match soon {
            Some(frame) => Ok(frame),
            None => {
                if let Some(waking) = self.waking.take() {
                    waking.hurry();
                }
                tokio::time::timeout(self.stall_time, frame).await
            }
        };
        let frame = came.map_err(|_| {
            let seconds = self.stall_time.as_secs();
            Error::new(
                Reason::Io,
                format!("the store sent nothing for {seconds} s in the middle of an answer"),
            )
        })?;
        frame
            .transpose()
            .map_err(|e| Error::with_source(Reason::Io, "the store broke off in the middle of an answer", e))
    }

    fn end(&mut self) {
        if let Some((pool, connection)) = self.held.take()
            && !self.closes
        {
            pool.give_back(connection);
        }
    }

    /// The whole body, of at most `most` bytes.
    pub async fn collect(mut self, most: usize) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await? {
            if all.len() + piece.len() > most {
                return Err(too_long(most));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// The whole document that was sent, of at most `most` bytes: as it came, or as gzip (RFC 1952), of which it has to
    /// be asked for.
    pub async fn document(self, most: usize) -> Result<Bytes> {
        let is_zipped = is_zipped(&self.head.headers);
        let bytes = self.collect(most).await?;
        if is_zipped { unzip(&bytes, most) } else { Ok(bytes) }
    }

    /// The body as an object's bytes: `length` of them, compared with `expected` if there is something to compare with.
    /// The last piece is handed out only if all of them are right. A body of no bytes is compared here, since nobody
    /// may ask for its end.
    ///
    /// # Errors
    /// [`CorruptData`](Reason::CorruptData) if no bytes were announced and `expected` is not the checksum of nothing.
    pub fn into_body(mut self, context: Context, length: u64, expected: Option<Sum>) -> Result<Body> {
        let verifier = expected.map(Verifier::new);
        if length == 0 && self.incoming.is_end_stream() {
            verifier.map_or(Ok(()), Verifier::finish)?;
            self.end();
            return Ok(Body::from_bytes(Bytes::new()));
        }
        // Only if the length is known: of a chunked body a header may say anything.
        if let (Some((_, connection)), Some(bytes)) = (&self.held, self.incoming.size_hint().exact()) {
            self.waking = Some(connection.await_body(bytes));
        }
        let reading = Reading { answer: self, context, left: length, verifier };
        let stream = futures::stream::try_unfold(Some(reading), |reading| async {
            let Some(mut reading) = reading else { return Ok(None) };
            let piece = reading.next().await?;
            Ok(piece.map(|piece| (piece, Some(reading))))
        });
        Ok(Body::from_stream(length, stream))
    }
}

/// Two names of one coding (RFC 9110, 8.4.1.3).
fn is_zipped(headers: &HeaderMap) -> bool {
    let coding = headers.get(CONTENT_ENCODING).map_or(&b""[..], |coding| coding.as_bytes());
    [&b"gzip"[..], b"x-gzip"].iter().any(|name| coding.eq_ignore_ascii_case(name))
}

fn unzip(bytes: &[u8], most: usize) -> Result<Bytes> {
    let mut all = Vec::new();
    let mut unzipped = MultiGzDecoder::new(bytes).take(most as u64 + 1);
    unzipped.read_to_end(&mut all).map_err(|e| {
        Error::with_source(Reason::Io, "the store's answer is not the gzip that it is said to be", e)
    })?;
    if all.len() > most {
        return Err(too_long(most));
    }
    Ok(all.into())
}

fn too_long(most: usize) -> Error {
    Error::new(Reason::Io, format!("the store's answer is longer than {most} bytes"))
}

/// Whether a connection ends with this answer (RFC 9112, 9.6).
fn is_last(head: &Parts) -> bool {
    let says_close = |value: &http::HeaderValue| {
        value.as_bytes().split(|b| *b == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    head.version != http::Version::HTTP_11 || head.headers.get_all(CONNECTION).iter().any(says_close)
}

/// What the bytes of a whole object must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    Checksum(Checksum),
    Md5([u8; 16]),
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum(checksum) => checksum.fmt(f),
            Self::Md5(md5) => {
                f.write_str("MD5:")?;
                md5.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Compares bytes with what they must have, while they pass.
enum Verifier {
    Checksum(Hasher, Checksum),
    Md5(Md5, [u8; 16]),
}

impl Verifier {
    fn new(sum: Sum) -> Self {
        match sum {
            Sum::Checksum(expected) => Self::Checksum(Hasher::new(expected.algorithm()), expected),
            Sum::Md5(expected) => Self::Md5(Md5::new(), expected),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Checksum(hasher, _) => hasher.update(bytes),
            Self::Md5(hasher, _) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Result<()> {
        let (found, expected) = match self {
            Self::Checksum(hasher, expected) => (Sum::Checksum(hasher.finish()), Sum::Checksum(expected)),
            Self::Md5(hasher, expected) => (Sum::Md5(hasher.finalize().into()), Sum::Md5(expected)),
        };
        if found == expected {
            return Ok(());
        }
        let what = format!(
            "the object's bytes came with another checksum ({found:?}) than the store has of it ({expected:?})"
        );
        Err(Error::new(Reason::CorruptData, what))
    }
}

/// A body that is being read.
struct Reading {
    answer: Answer,
    context: Context,
    /// Bytes to come.
    left: u64,
    verifier: Option<Verifier>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.context.guard(self.answer.next()).await??;
        match &piece {
            Some(piece) => {
                self.left =
                    self.left.checked_sub(piece.len() as u64).ok_or_else(|| self.wrong_length("more"))?;
                if let Some(verifier) = &mut self.verifier {
                    verifier.update(piece);
                }
            }
            None if self.left > 0 => return Err(self.wrong_length("fewer")),
            None => {}
        }
        // However many pieces there were, none among them.
        if self.left == 0
            && let Some(verifier) = self.verifier.take()
        {
            verifier.finish()?;
        }
        Ok(piece)
    }

    fn wrong_length(&self, what: &str) -> Error {
        Error::new(Reason::Io, format!("the store sent {what} bytes than it announced"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_was_zipped_comes_out_as_it_was() {
        let page = b"<Contents/>".repeat(1000);
        let sent = zipped(&page);
        assert_eq!(unzip(&sent, page.len()).unwrap(), page);
        assert_eq!(unzip(&[zipped(b"one"), zipped(b"two")].concat(), 10).unwrap(), "onetwo");
        for torn in [0, 5, sent.len() / 2, sent.len() - 1] {
            let found = unzip(&sent[..torn], page.len());
            assert_eq!(found.map_err(|e| e.reason()), Err(Reason::Io), "{torn} bytes of {}", sent.len());
        }
        let mut changed = sent.clone();
        let last = changed.len() - 6;
        changed[last] ^= 1;
        assert!(unzip(&changed, page.len()).is_err(), "another checksum");
    }

    #[test]
    fn no_more_is_unzipped_than_may_be() {
        let sent = zipped(&vec![0; 1 << 20]);
        assert!(sent.len() < 10_000, "{}", sent.len());
        assert!(unzip(&sent, 1 << 20).is_ok());
        assert!(unzip(&sent, (1 << 20) - 1).unwrap_err().to_string().contains("longer than"));
    }
}
