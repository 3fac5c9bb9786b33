//! Entry point of the fuzz target in `fuzz/` for frames and handshake. It derives a case from arbitrary bytes and
//! panics if an end violates its guarantees towards an untrusted peer: bounded memory, no leak of the key, no access
//! without it, and an end in bounded time. The property tests below call the same function, so that every build runs a
//! few cases.
//!
//! Requires the feature `fuzzing`, which only `fuzz/` enables. Not a public interface.

#![allow(clippy::unwrap_used, reason = "a fuzz target reports failures by panicking")]

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split};
use tokio::time::{Instant, Sleep, sleep};

use super::frame;
use super::handshake::{AuthenticatedStream, HANDSHAKE_TIMEOUT, Key, Role, handshake};
use super::link::{FrameSealer, Link, PEER_TIMEOUT};
use super::messages::{AgentRequest, AgentResponse, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, check_stage};
use crate::result::{AgentMeasurement, merge_agents};

/// Upper bounds of the bytes that an end reads from, and sends to, an unauthenticated peer.
const MAX_READ_BYTES: usize = 64 << 10;
const MAX_SENT_BYTES: usize = 1 << 10;
/// Pause of a slow peer between two chunks. Shorter than the time after which it is considered dead.
const PAUSE: Duration = Duration::from_secs(3);
/// Tolerance for the inexact timers of the runtime.
const TOLERANCE: Duration = Duration::from_millis(10);

/// Runs one case. The first byte selects the peer: unauthenticated towards an agent or a coordinator, altering a byte
/// between two honest ends, or authenticated. The second byte selects how data arrives. The rest is the data.
pub fn run_case(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<2>() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        match head[0] % 4 {
            0 => check_unauthenticated(Role::Agent, head[1], rest).await,
            1 => check_unauthenticated(Role::Coordinator, head[1], rest).await,
            2 => check_altered_byte(head[1], rest).await,
            _ => check_authenticated(head[1], rest).await,
        }
    });
}

fn key() -> Key {
    Key::new(b"a key of sixteen and more").unwrap()
}

/// A stream that delivers bytes in chunks, optionally slowly, and then closes or stays silent. It records the total
/// bytes read and the largest buffer offered.
struct ChunkedStream<'a> {
    bytes: &'a [u8],
    chunk: usize,
    closes: bool,
    /// Pause before the next chunk.
    pause: Option<Pin<Box<Sleep>>>,
    read_bytes: &'a mut usize,
    max_buffer: &'a mut usize,
}

impl AsyncRead for ChunkedStream<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(context));
            pause.as_mut().reset(Instant::now() + PAUSE);
        }
        *this.max_buffer = (*this.max_buffer).max(into.remaining());
        let length = this.chunk.min(into.remaining()).min(this.bytes.len());
        let (chunk, rest) = this.bytes.split_at(length);
        into.put_slice(chunk);
        this.bytes = rest;
        *this.read_bytes += length;
        // The deadline of the reader wakes its task.
        if length > 0 || this.closes { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

async fn check_unauthenticated(role: Role, mode: u8, bytes: &[u8]) {
    let (mut read_bytes, mut max_buffer, mut sent) = (0, 0, Vec::new());
    let (closes, is_slow, chunk) = (mode & 1 == 0, mode & 2 != 0, 1 + usize::from(mode >> 2) * 74);
    let pause = is_slow.then(|| Box::pin(sleep(PAUSE)));
    let started = Instant::now();
    let from = ChunkedStream {
        bytes,
        chunk,
        closes,
        pause,
        read_bytes: &mut read_bytes,
        max_buffer: &mut max_buffer,
    };
    let result = handshake(role, &key(), from, &mut sent).await;
    assert!(result.is_err(), "a peer without the key was accepted");
    assert!(started.elapsed() <= HANDSHAKE_TIMEOUT + TOLERANCE, "{:?}", started.elapsed());
    assert!(
        read_bytes <= MAX_READ_BYTES && max_buffer <= MAX_READ_BYTES,
        "{read_bytes} bytes were read, with a buffer of {max_buffer}"
    );
    assert!(sent.len() <= MAX_SENT_BYTES, "{}", String::from_utf8_lossy(&sent));
    let proof = b"\"proof\"";
    let has_proof = sent.windows(proof.len()).any(|window| window == proof);
    // A coordinator proves the key first; an agent must not prove it to an unauthenticated peer.
    assert!(role == Role::Coordinator || !has_proof, "{}", String::from_utf8_lossy(&sent));
}

type End = AuthenticatedStream<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

async fn meet(role: Role, stream: DuplexStream) -> Option<End> {
    let (reader, writer) = split(stream);
    handshake(role, &key(), reader, writer).await.ok()
}

/// Two ends have the key, and one byte between them is altered: they must not both accept each other.
async fn check_altered_byte(mode: u8, bytes: &[u8]) {
    let Some((position, _)) = bytes.split_first_chunk::<2>() else { return };
    let position = usize::from(u16::from_be_bytes(*position)) % 600;
    let (coordinator, near) = duplex(4 << 10);
    let (far, agent) = duplex(4 << 10);
    let ((near_reader, near_writer), (far_reader, far_writer)) = (split(near), split(far));
    let (there, back) = if mode & 1 == 0 { (Some(position), None) } else { (None, Some(position)) };
    let change = 1 << (mode >> 1 & 7);
    let started = Instant::now();
    let ends = async { tokio::join!(meet(Role::Coordinator, coordinator), meet(Role::Agent, agent)) };
    let forwarded = async {
        tokio::join!(
            forward(near_reader, far_writer, there, change),
            forward(far_reader, near_writer, back, change)
        )
    };
    let ((coordinator, agent), (there, back)) = tokio::join!(ends, forwarded);
    assert!(started.elapsed() <= 2 * HANDSHAKE_TIMEOUT + TOLERANCE, "{:?}", started.elapsed());
    assert!(coordinator.is_none() || agent.is_none() || !(there || back), "an altered byte was accepted");
}

/// Forwards bytes until the end and alters the one at `position`. Returns true if it was reached.
async fn forward(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    position: Option<usize>,
    change: u8,
) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut buffer, mut offset, mut was_altered) = ([0; 512], 0, false);
    loop {
        let length = match tokio::time::timeout(HANDSHAKE_TIMEOUT, from.read(&mut buffer)).await {
            Ok(Ok(length @ 1..)) => length,
            _ => break,
        };
        if let Some(byte) =
            position.and_then(|position| buffer[..length].get_mut(position.checked_sub(offset)?))
        {
            *byte ^= change;
            was_altered = true;
        }
        offset += length;
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
    was_altered
}

/// Messages after the handshake: from a peer with the key, and from one who took over the connection and sends raw
/// bytes, or bytes sealed with the key of the other direction.
async fn check_authenticated(mode: u8, bytes: &[u8]) {
    let (one, other) = duplex(1 << 20);
    let (coordinator, agent) = tokio::join!(meet(Role::Coordinator, one), meet(Role::Agent, other));
    let (coordinator, agent) = (coordinator.unwrap(), agent.unwrap());
    let started = Instant::now();
    let is_sealed = mode & 1 == 0;
    let frame = |send_key, receive_key| match mode & 5 {
        1 => bytes.to_vec(),
        5 => FrameSealer::new(receive_key).seal(bytes),
        _ => FrameSealer::new(send_key).seal(bytes),
    };
    if mode & 2 == 0 {
        let End { send_key, receive_key, mut writer, reader } = coordinator;
        frame::write_frame(&mut writer, &frame(send_key, receive_key), PEER_TIMEOUT).await.unwrap();
        let mut link = Link::new(agent, MAX_REQUEST_BYTES, || 0_u64);
        if let Ok(request) = link.receive::<AgentRequest>().await {
            assert!(is_sealed, "an unsealed message was accepted");
            check_request(&request);
        }
        drop((reader, writer));
    } else {
        let End { send_key, receive_key, mut writer, reader } = agent;
        frame::write_frame(&mut writer, &frame(send_key, receive_key), PEER_TIMEOUT).await.unwrap();
        let mut link = Link::new(coordinator, MAX_RESPONSE_BYTES, || 0_u64);
        if let Ok(response) = link.receive::<AgentResponse>().await {
            assert!(is_sealed, "an unsealed message was accepted");
            check_merge(response);
        }
        drop((reader, writer));
    }
    assert!(started.elapsed() <= PEER_TIMEOUT + TOLERANCE, "{:?}", started.elapsed());
}

/// A coordinator's request must be rejected or valid.
fn check_request(request: &AgentRequest) {
    match request {
        AgentRequest::Prepare(stage) => {
            let checked = check_stage(stage, 2, 1 << 40);
            assert!(checked.is_err() || (1..=2).contains(&stage.len()));
            assert!(checked.is_err() || stage.iter().all(|step| step.sizes.max() <= 1 << 40));
        }
        AgentRequest::Open(job) => {
            let name = job.unique_name();
            assert!(name.starts_with("tradewind-bench-") && !name.contains(['/', '.']), "{name}");
        }
        _ => {}
    }
}

/// Measurements of an agent can be merged, whatever values they contain.
fn check_merge(response: AgentResponse) {
    if let AgentResponse::Measurement(measurement) = response {
        let part = |agent: &str| AgentMeasurement {
            address: agent.to_owned(),
            cores: 1,
            measurement: (*measurement).clone(),
        };
        assert_eq!(merge_agents(vec![part("one"), part("two")], Duration::ZERO).unwrap().agents.len(), 2);
    }
}

#[cfg(test)]
mod tests;
