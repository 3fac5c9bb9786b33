//! Length-prefixed frames. A frame beyond the maximum is rejected by its length. Memory grows with the bytes received,
//! never with a length that was only claimed. A peer that is silent for too long is considered dead.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// Bytes of the length prefix.
const LENGTH_BYTES: usize = 4;
/// Minimum buffer space for a read, in bytes.
const MIN_READ_BYTES: usize = 16 << 10;

/// A connection error.
#[derive(Debug)]
pub enum LinkError {
    /// The peer closed the connection.
    Closed,
    /// The peer sent nothing, or accepted nothing, for this time.
    TimedOut(Duration),
    /// A frame has this length, which exceeds the given maximum.
    TooLarge(usize, usize),
    /// A frame has a wrong MAC or sequence number.
    BadMac,
    /// A message cannot be parsed.
    Unparsable(serde_json::Error),
    /// The peer sent something else than the expected message.
    Unexpected(&'static str),
    /// The network failed.
    Network(io::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "it closed the connection"),
            Self::TimedOut(time) => write!(f, "it has not responded for {} s", time.as_secs_f64()),
            Self::TooLarge(claimed, max) => {
                write!(f, "it announced a message of {claimed} bytes, but the limit is {max}")
            }
            Self::BadMac => write!(f, "a message was altered or is from someone else"),
            Self::Unparsable(e) => write!(f, "a message cannot be parsed: {e}"),
            Self::Unexpected(expected) => write!(f, "it sent another message instead of {expected}"),
            Self::Network(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<io::Error> for LinkError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Network(e),
        }
    }
}

/// Reads frames.
pub struct FrameReader<R> {
    from: R,
    received: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(from: R) -> Self {
        Self { from, received: BytesMut::new() }
    }

    /// Erases the type of the stream.
    pub fn boxed(self) -> FrameReader<Box<dyn AsyncRead + Send + Unpin>>
    where
        R: Send + 'static,
    {
        FrameReader { from: Box::new(self.from), received: self.received }
    }

    /// Returns true if part of a frame was received.
    pub fn has_partial_frame(&self) -> bool {
        !self.received.is_empty()
    }

    /// Reads the next frame, of at most `max_bytes`. Fails if nothing arrives for the time `silence`. Cancel-safe.
    pub async fn next_frame(&mut self, max_bytes: usize, silence: Duration) -> Result<BytesMut, LinkError> {
        loop {
            if let Some(head) = self.received.first_chunk::<LENGTH_BYTES>() {
                let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
                if length > max_bytes {
                    return Err(LinkError::TooLarge(length, max_bytes));
                }
                if self.received.len() >= LENGTH_BYTES + length {
                    let mut frame = self.received.split_to(LENGTH_BYTES + length);
                    return Ok(frame.split_off(LENGTH_BYTES));
                }
            }
            self.received.reserve(MIN_READ_BYTES);
            let read = timeout(silence, self.from.read_buf(&mut self.received)).await;
            if read.map_err(|_| LinkError::TimedOut(silence))?? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }
}

/// Writes a frame. Fails if the peer accepts nothing for the time `silence`.
pub async fn write_frame<W: AsyncWrite + Unpin>(
    to: &mut W,
    frame: &[u8],
    silence: Duration,
) -> Result<(), LinkError> {
    let max_bytes = u32::MAX as usize;
    let length = u32::try_from(frame.len()).map_err(|_| LinkError::TooLarge(frame.len(), max_bytes))?;
    for mut bytes in [&length.to_be_bytes()[..], frame] {
        while !bytes.is_empty() {
            let written =
                timeout(silence, to.write(bytes)).await.map_err(|_| LinkError::TimedOut(silence))??;
            if written == 0 {
                return Err(LinkError::Closed);
            }
            bytes = &bytes[written..];
        }
    }
    timeout(silence, to.flush()).await.map_err(|_| LinkError::TimedOut(silence))??;
    Ok(())
}
