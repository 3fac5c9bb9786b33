//! An authenticated connection. Each message is JSON in a frame with its sequence number and a MAC over both, under the
//! key of its direction. A message that was altered, replayed, omitted or reflected breaks the connection before it is
//! parsed. Each end sends a message at least every second, so that a dead peer is noticed.

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

/// Interval of the heartbeat.
pub const BEAT: Duration = Duration::from_secs(1);
/// Time after which a silent peer is considered dead.
pub const SILENCE: Duration = Duration::from_secs(8);
/// Capacity of the send queue, in messages.
const SEND_QUEUE: usize = 8;
/// Bytes of the sequence number of a frame, and of its MAC.
const SEQUENCE_BYTES: usize = 8;
const MAC_BYTES: usize = 32;

/// Adds or verifies the sequence number and the MAC of the frames of one direction.
pub struct Seal {
    key: hmac::Key,
    next: u64,
}

impl Seal {
    pub const fn new(key: hmac::Key) -> Self {
        Self { key, next: 0 }
    }

    /// Seals a message into the next frame.
    pub fn close(&mut self, message: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(SEQUENCE_BYTES + message.len() + MAC_BYTES);
        frame.extend(self.next.to_be_bytes());
        frame.extend(message);
        let mac = hmac::sign(&self.key, &frame);
        frame.extend(mac.as_ref());
        self.next += 1;
        frame
    }

    /// Verifies a frame and returns its message. Fails unless it is the next frame of this direction.
    pub fn open<'a>(&mut self, frame: &'a [u8]) -> Result<&'a [u8], Broken> {
        let (sealed, mac) = frame.split_last_chunk::<MAC_BYTES>().ok_or(Broken::Forged)?;
        hmac::verify(&self.key, sealed, mac).map_err(|_| Broken::Forged)?;
        let (number, message) = sealed.split_first_chunk::<SEQUENCE_BYTES>().ok_or(Broken::Forged)?;
        if u64::from_be_bytes(*number) != self.next {
            return Err(Broken::Forged);
        }
        self.next += 1;
        Ok(message)
    }
}

/// An authenticated connection that sends messages of type `Out`. Dropping it closes the connection.
pub struct Link<Out> {
    reader: Reader<Box<dyn AsyncRead + Send + Unpin>>,
    hears: Seal,
    /// Maximum size of a received message, in bytes.
    max_message_bytes: usize,
    outbox: mpsc::Sender<Out>,
    /// The task that sends. It ends with the link.
    writer: JoinSet<()>,
}

impl<Out: Serialize + Send + 'static> Link<Out> {
    /// Creates a link that receives messages of at most `max_message_bytes` and sends a heartbeat every second.
    pub fn new<R, W>(
        shaken: Shaken<R, W>,
        max_message_bytes: usize,
        heartbeat: impl Fn() -> Out + Send + 'static,
    ) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let Shaken { reader, writer, sends, hears } = shaken;
        let (outbox, queue) = mpsc::channel(SEND_QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(broken) = send_all(writer, Seal::new(sends), queue, heartbeat).await {
                tracing::debug!(%broken, "cannot send to the peer any more");
            }
        });
        Self { reader: reader.boxed(), hears: Seal::new(hears), max_message_bytes, outbox, writer: tasks }
    }

    /// Receives the next message. Cancel-safe.
    pub async fn next<In: DeserializeOwned>(&mut self) -> Result<In, Broken> {
        let max_frame_bytes = SEQUENCE_BYTES + self.max_message_bytes + MAC_BYTES;
        let frame = self.reader.next(max_frame_bytes, SILENCE).await?;
        let message = self.hears.open(&frame)?;
        serde_json::from_slice(message).map_err(Broken::Unreadable)
    }

    /// Returns true if part of a message was received.
    pub fn is_hearing(&self) -> bool {
        self.reader.has_begun()
    }

    /// Queues a message. Waits while the queue is full.
    pub async fn send(&mut self, message: Out) -> Result<(), Broken> {
        // The sending task ends if the peer accepts nothing, which closes the channel and ends this wait.
        self.outbox.send(message).await.map_err(|_| Broken::Closed)
    }

    /// Sends the queued messages and closes the connection.
    pub async fn close(self) {
        let Self { outbox, mut writer, .. } = self;
        drop(outbox);
        // A peer that accepts nothing is not waited for.
        let _ = timeout(SILENCE, writer.join_next()).await;
        writer.shutdown().await;
    }
}

async fn send_all<Out: Serialize>(
    mut to: impl AsyncWrite + Unpin,
    mut seal: Seal,
    mut queue: mpsc::Receiver<Out>,
    heartbeat: impl Fn() -> Out,
) -> Result<(), Broken> {
    loop {
        let message = match timeout(BEAT, queue.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(_) => heartbeat(),
        };
        let message = serde_json::to_vec(&message).map_err(Broken::Unreadable)?;
        frame::write(&mut to, &seal.close(&message), SILENCE).await?;
    }
}
