//! Frames: a length, and so many bytes. A longer one than is waited for is refused by its length; memory grows with the bytes
//! that came and never with a length that was only claimed. Whoever is silent too long is taken for dead.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// Bytes of the length.
const HEAD: usize = 4;
/// Bytes that are read at once, at the least.
const PIECE: usize = 16 << 10;

/// Why nothing more is heard from the other end.
#[derive(Debug)]
pub enum Broken {
    /// It ended the connection.
    Closed,
    /// It said nothing, or took nothing, for so long.
    Silent(Duration),
    /// It claims a frame of so many bytes, more than there may be.
    TooLarge(usize, usize),
    /// A frame does not come from whoever has the key, or is not the next one.
    Forged,
    /// A frame cannot be read.
    Unreadable(serde_json::Error),
    /// It said something else than what was its turn.
    Unexpected(&'static str),
    /// The network failed.
    Network(io::Error),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "it ended the connection"),
            Self::Silent(time) => write!(f, "nothing was heard of it for {} s", time.as_secs_f64()),
            Self::TooLarge(claimed, most) => {
                write!(f, "it claims to send {claimed} bytes at once, of which {most} are the most")
            }
            Self::Forged => write!(f, "what came was changed, or comes from somebody else"),
            Self::Unreadable(e) => write!(f, "what it says cannot be read: {e}"),
            Self::Unexpected(turn) => write!(f, "it said something else where {turn} was its turn"),
            Self::Network(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<io::Error> for Broken {
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

/// One end's ear.
pub struct Reader<R> {
    from: R,
    came: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(from: R) -> Self {
        Self { from, came: BytesMut::new() }
    }

    /// The same, whatever it listens to.
    pub fn boxed(self) -> Reader<Box<dyn AsyncRead + Send + Unpin>>
    where
        R: Send + 'static,
    {
        Reader { from: Box::new(self.from), came: self.came }
    }

    /// Whether some of a frame came that is not whole yet.
    pub fn has_begun(&self) -> bool {
        !self.came.is_empty()
    }

    /// The next frame, of `most` bytes at the most, from an end that is never silent for so long. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self, most: usize, silence: Duration) -> Result<BytesMut, Broken> {
        loop {
            if let Some(head) = self.came.first_chunk::<HEAD>() {
                let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
                if length > most {
                    return Err(Broken::TooLarge(length, most));
                }
                if self.came.len() >= HEAD + length {
                    let mut frame = self.came.split_to(HEAD + length);
                    return Ok(frame.split_off(HEAD));
                }
            }
            self.came.reserve(PIECE);
            let read = timeout(silence, self.from.read_buf(&mut self.came)).await;
            if read.map_err(|_| Broken::Silent(silence))?? == 0 {
                return Err(Broken::Closed);
            }
        }
    }
}

/// Sends a frame to an end that always takes some of it within `silence`.
pub async fn write<W: AsyncWrite + Unpin>(to: &mut W, frame: &[u8], silence: Duration) -> Result<(), Broken> {
    let most = u32::MAX as usize;
    let length = u32::try_from(frame.len()).map_err(|_| Broken::TooLarge(frame.len(), most))?;
    for mut bytes in [&length.to_be_bytes()[..], frame] {
        while !bytes.is_empty() {
            let written = timeout(silence, to.write(bytes)).await.map_err(|_| Broken::Silent(silence))??;
            if written == 0 {
                return Err(Broken::Closed);
            }
            bytes = &bytes[written..];
        }
    }
    timeout(silence, to.flush()).await.map_err(|_| Broken::Silent(silence))??;
    Ok(())
}
