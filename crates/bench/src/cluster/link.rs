//! A connection behind its handshake: messages as JSON, each in a frame with its number and a code over both, under the key of
//! its direction. One that was changed, repeated, left out or comes from the other direction breaks the connection before
//! anything of it is read. Each end says something every second, so that a dead one is noticed.

use std::time::Duration;

use ring::hmac;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frame::{self, Broken, Reader};
use super::handshake::Shaken;

/// How often an end says that it is there.
pub const BEAT: Duration = Duration::from_secs(1);
/// An end of which nothing is heard for so long is taken for dead.
pub const SILENCE: Duration = Duration::from_secs(8);
/// Messages that wait to be sent.
const WAITING: usize = 8;
/// Bytes of the number of a frame, and of its code.
const NUMBER: usize = 8;
const CODE: usize = 32;

/// Numbers frames and says their codes.
pub struct Seal {
    key: hmac::Key,
    next: u64,
}

impl Seal {
    pub const fn new(key: hmac::Key) -> Self {
        Self { key, next: 0 }
    }

    /// A frame of a message.
    pub fn close(&mut self, message: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(NUMBER + message.len() + CODE);
        frame.extend(self.next.to_be_bytes());
        frame.extend(message);
        let code = hmac::sign(&self.key, &frame);
        frame.extend(code.as_ref());
        self.next += 1;
        frame
    }

    /// The message of a frame, which has to be the next.
    pub fn open<'a>(&mut self, frame: &'a [u8]) -> Result<&'a [u8], Broken> {
        let (sealed, code) = frame.split_last_chunk::<CODE>().ok_or(Broken::Forged)?;
        hmac::verify(&self.key, sealed, code).map_err(|_| Broken::Forged)?;
        let (number, message) = sealed.split_first_chunk::<NUMBER>().ok_or(Broken::Forged)?;
        if u64::from_be_bytes(*number) != self.next {
            return Err(Broken::Forged);
        }
        self.next += 1;
        Ok(message)
    }
}

/// See the module. Dropping it ends the connection.
pub struct Link<Out> {
    reader: Reader<Box<dyn AsyncRead + Send + Unpin>>,
    hears: Seal,
    /// A message that is heard has no more bytes.
    most: usize,
    outbox: mpsc::Sender<Out>,
    /// The one task that sends. It ends with the link.
    writer: JoinSet<()>,
}

impl<Out: Serialize + Send + 'static> Link<Out> {
    /// Says `beat` every second.
    pub fn new<R, W>(shaken: Shaken<R, W>, most: usize, beat: impl Fn() -> Out + Send + 'static) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let Shaken { reader, writer, sends, hears } = shaken;
        let (outbox, waiting) = mpsc::channel(WAITING);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(broken) = speak(writer, Seal::new(sends), waiting, beat).await {
                tracing::debug!(%broken, "the other end hears nothing more");
            }
        });
        Self { reader: reader.boxed(), hears: Seal::new(hears), most, outbox, writer: tasks }
    }

    /// The next message. Dropping the future loses nothing.
    pub async fn next<In: DeserializeOwned>(&mut self) -> Result<In, Broken> {
        let frame = self.reader.next(NUMBER + self.most + CODE, SILENCE).await?;
        let message = self.hears.open(&frame)?;
        serde_json::from_slice(message).map_err(Broken::Unreadable)
    }

    /// Whether a message is on its way, some of which came.
    pub fn is_hearing(&self) -> bool {
        self.reader.has_begun()
    }

    /// Sends a message behind those that wait.
    pub async fn send(&mut self, message: Out) -> Result<(), Broken> {
        // The writer gives up an end that takes nothing, and with it whoever waits here.
        self.outbox.send(message).await.map_err(|_| Broken::Closed)
    }

    /// Sends what waits, and ends the connection.
    pub async fn close(self) {
        let Self { outbox, mut writer, .. } = self;
        drop(outbox);
        // One that takes nothing is given up.
        let _ = timeout(SILENCE, writer.join_next()).await;
        writer.shutdown().await;
    }
}

async fn speak<Out: Serialize>(
    mut to: impl AsyncWrite + Unpin,
    mut seal: Seal,
    mut waiting: mpsc::Receiver<Out>,
    beat: impl Fn() -> Out,
) -> Result<(), Broken> {
    loop {
        let message = match timeout(BEAT, waiting.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(_) => beat(),
        };
        let message = serde_json::to_vec(&message).map_err(Broken::Unreadable)?;
        frame::write(&mut to, &seal.close(&message), SILENCE).await?;
    }
}
