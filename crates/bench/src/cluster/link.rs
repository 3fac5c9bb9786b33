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

use super::frame::{self, FrameReader, LinkError};
use super::handshake::AuthenticatedStream;

/// Interval of the heartbeat.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a silent peer is considered dead.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(8);
/// Capacity of the send queue, in messages.
const SEND_QUEUE: usize = 8;
/// Bytes of the sequence number of a frame, and of its MAC.
const SEQUENCE_BYTES: usize = 8;
const MAC_BYTES: usize = 32;

/// Adds or verifies the sequence number and the MAC of the frames of one direction.
pub struct FrameSealer {
    key: hmac::Key,
    next: u64,
}

impl FrameSealer {
    pub const fn new(key: hmac::Key) -> Self {
        Self { key, next: 0 }
    }

    /// Seals a message into the next frame.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(SEQUENCE_BYTES + message.len() + MAC_BYTES);
        frame.extend(self.next.to_be_bytes());
        frame.extend(message);
        let mac = hmac::sign(&self.key, &frame);
        frame.extend(mac.as_ref());
        self.next += 1;
        frame
    }

    /// Verifies a frame and returns its message. Fails unless it is the next frame of this direction.
    pub fn verify<'a>(&mut self, frame: &'a [u8]) -> Result<&'a [u8], LinkError> {
        let (sealed, mac) = frame.split_last_chunk::<MAC_BYTES>().ok_or(LinkError::BadMac)?;
        hmac::verify(&self.key, sealed, mac).map_err(|_| LinkError::BadMac)?;
        let (number, message) = sealed.split_first_chunk::<SEQUENCE_BYTES>().ok_or(LinkError::BadMac)?;
        if u64::from_be_bytes(*number) != self.next {
            return Err(LinkError::BadMac);
        }
        self.next += 1;
        Ok(message)
    }
}

/// An authenticated connection that sends messages of type `Out`. Dropping it closes the connection.
pub struct Link<Out> {
    reader: FrameReader<Box<dyn AsyncRead + Send + Unpin>>,
    receive_sealer: FrameSealer,
    /// Maximum size of a received message, in bytes.
    max_message_bytes: usize,
    outbox: mpsc::Sender<Out>,
    /// The task that sends. It ends with the link.
    send_task: JoinSet<()>,
}

impl<Out: Serialize + Send + 'static> Link<Out> {
    /// Creates a link that receives messages of at most `max_message_bytes` and sends a heartbeat every second.
    pub fn new<R, W>(
        stream: AuthenticatedStream<R, W>,
        max_message_bytes: usize,
        heartbeat: impl Fn() -> Out + Send + 'static,
    ) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let AuthenticatedStream { reader, writer, send_key, receive_key } = stream;
        let (outbox, queue) = mpsc::channel(SEND_QUEUE);
        let mut send_task = JoinSet::new();
        send_task.spawn(async move {
            if let Err(broken) = send_all(writer, FrameSealer::new(send_key), queue, heartbeat).await {
                tracing::debug!(%broken, "cannot send to the peer any more");
            }
        });
        Self {
            reader: reader.boxed(),
            receive_sealer: FrameSealer::new(receive_key),
            max_message_bytes,
            outbox,
            send_task,
        }
    }

    /// Receives the next message. Cancel-safe.
    pub async fn receive<In: DeserializeOwned>(&mut self) -> Result<In, LinkError> {
        let max_frame_bytes = SEQUENCE_BYTES + self.max_message_bytes + MAC_BYTES;
        let frame = self.reader.next_frame(max_frame_bytes, PEER_TIMEOUT).await?;
        let message = self.receive_sealer.verify(&frame)?;
        serde_json::from_slice(message).map_err(LinkError::Unparsable)
    }

    /// Returns true if part of a message was received.
    pub fn is_receiving(&self) -> bool {
        self.reader.has_partial_frame()
    }

    /// Queues a message. Waits while the queue is full.
    pub async fn send(&mut self, message: Out) -> Result<(), LinkError> {
        // The sending task ends if the peer accepts nothing, which closes the channel and ends this wait.
        self.outbox.send(message).await.map_err(|_| LinkError::Closed)
    }

    /// Sends the queued messages and closes the connection.
    pub async fn close(self) {
        let Self { outbox, mut send_task, .. } = self;
        drop(outbox);
        // A peer that accepts nothing is not waited for.
        let _ = timeout(PEER_TIMEOUT, send_task.join_next()).await;
        send_task.shutdown().await;
    }
}

async fn send_all<Out: Serialize>(
    mut to: impl AsyncWrite + Unpin,
    mut seal: FrameSealer,
    mut queue: mpsc::Receiver<Out>,
    heartbeat: impl Fn() -> Out,
) -> Result<(), LinkError> {
    loop {
        let message = match timeout(HEARTBEAT_INTERVAL, queue.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(_) => heartbeat(),
        };
        let message = serde_json::to_vec(&message).map_err(LinkError::Unparsable)?;
        frame::write_frame(&mut to, &seal.seal(&message), PEER_TIMEOUT).await?;
    }
}
