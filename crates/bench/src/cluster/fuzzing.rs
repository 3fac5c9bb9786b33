//! What the fuzz target of the cluster's frames and handshake in `fuzz/` calls: it makes a case out of any bytes and panics
//! where either end does not keep its word to a stranger: it takes no more than it needs, says nothing that shows the key, lets
//! nobody in who does not have it, and is done in time. The property tests below call the same function, so that every
//! build runs a little of what the fuzzer runs for long.
//!
//! Behind the feature `fuzzing`, which only `fuzz/` sets. No interface for anybody else.

#![allow(clippy::unwrap_used, reason = "a panic is how a target fails")]

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split};
use tokio::time::{Instant, Sleep, sleep};

use super::frame;
use super::handshake::{Key, Role, Shaken, TIME, shake};
use super::link::{Link, SILENCE, Seal};
use super::messages::{Answer, MOST_ANSWERED, MOST_ASKED, Request, check};
use crate::result::{Part, merge};

/// More than either end takes of a stranger, and says to one.
const MOST_TAKEN: usize = 64 << 10;
const MOST_SAID: usize = 1 << 10;
/// Between two pieces of somebody slow: not so long that it would be taken for dead.
const PAUSE: Duration = Duration::from_secs(3);
/// Clocks and tasks of the runtime are not exact.
const SLACK: Duration = Duration::from_millis(10);

/// One byte that says who it is (a stranger who speaks with an agent, with a coordinator, one who changes a byte of what two
/// honest ends say, or one who has the key), one for how what is said arrives, and the rest.
pub fn stranger(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<2>() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        match head[0] % 4 {
            0 => speaks_with(Role::Agent, head[1], rest).await,
            1 => speaks_with(Role::Coordinator, head[1], rest).await,
            2 => changes_a_byte(head[1], rest).await,
            _ => has_the_key(head[1], rest).await,
        }
    });
}

fn key() -> Key {
    Key::new(b"a key of sixteen and more").unwrap()
}

/// Bytes that come in pieces, and perhaps slowly; then the connection ends, or nothing more is heard. It notes what was taken, and
/// how much would have been at once.
struct Saying<'a> {
    bytes: &'a [u8],
    piece: usize,
    ends: bool,
    /// Until the next piece.
    pause: Option<Pin<Box<Sleep>>>,
    taken: &'a mut usize,
    room: &'a mut usize,
}

impl AsyncRead for Saying<'_> {
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
        *this.room = (*this.room).max(into.remaining());
        let length = this.piece.min(into.remaining()).min(this.bytes.len());
        let (piece, rest) = this.bytes.split_at(length);
        into.put_slice(piece);
        this.bytes = rest;
        *this.taken += length;
        // A timer wakes whoever waits for more.
        if length > 0 || this.ends { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

async fn speaks_with(role: Role, way: u8, bytes: &[u8]) {
    let (mut taken, mut room, mut said) = (0, 0, Vec::new());
    let (ends, is_slow, piece) = (way & 1 == 0, way & 2 != 0, 1 + usize::from(way >> 2) * 74);
    let pause = is_slow.then(|| Box::pin(sleep(PAUSE)));
    let begun = Instant::now();
    let from = Saying { bytes, piece, ends, pause, taken: &mut taken, room: &mut room };
    let met = shake(role, &key(), from, &mut said).await;
    assert!(met.is_err(), "who does not have the key was let in");
    assert!(begun.elapsed() <= TIME + SLACK, "{:?}", begun.elapsed());
    assert!(taken <= MOST_TAKEN && room <= MOST_TAKEN, "{taken} bytes were taken, and {room} at once");
    assert!(said.len() <= MOST_SAID, "{}", String::from_utf8_lossy(&said));
    let proof = b"\"proof\"";
    let is_shown = said.windows(proof.len()).any(|words| words == proof);
    // A coordinator shows first that it has the key; an agent shows strangers nothing.
    assert!(role == Role::Coordinator || !is_shown, "{}", String::from_utf8_lossy(&said));
}

type End = Shaken<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

async fn meet(role: Role, stream: DuplexStream) -> Option<End> {
    let (reader, writer) = split(stream);
    shake(role, &key(), reader, writer).await.ok()
}

/// Two that have the key, one byte between whom is another: they do not both believe each other.
async fn changes_a_byte(way: u8, bytes: &[u8]) {
    let Some((place, _)) = bytes.split_first_chunk::<2>() else { return };
    let place = usize::from(u16::from_be_bytes(*place)) % 600;
    let (coordinator, near) = duplex(4 << 10);
    let (far, agent) = duplex(4 << 10);
    let ((near_reader, near_writer), (far_reader, far_writer)) = (split(near), split(far));
    let (there, back) = if way & 1 == 0 { (Some(place), None) } else { (None, Some(place)) };
    let change = 1 << (way >> 1 & 7);
    let begun = Instant::now();
    let ends = async { tokio::join!(meet(Role::Coordinator, coordinator), meet(Role::Agent, agent)) };
    let carried = async {
        tokio::join!(
            carry(near_reader, far_writer, there, change),
            carry(far_reader, near_writer, back, change)
        )
    };
    let ((coordinator, agent), (there, back)) = tokio::join!(ends, carried);
    assert!(begun.elapsed() <= 2 * TIME + SLACK, "{:?}", begun.elapsed());
    assert!(coordinator.is_none() || agent.is_none() || !(there || back), "a changed byte was believed");
}

/// Carries bytes until there are none, and changes one; whether it came so far.
async fn carry(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    place: Option<usize>,
    change: u8,
) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut buffer, mut at, mut has_changed) = ([0; 512], 0, false);
    loop {
        let length = match tokio::time::timeout(TIME, from.read(&mut buffer)).await {
            Ok(Ok(length @ 1..)) => length,
            _ => break,
        };
        if let Some(byte) = place.and_then(|place| buffer[..length].get_mut(place.checked_sub(at)?)) {
            *byte ^= change;
            has_changed = true;
        }
        at += length;
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
    has_changed
}

/// What comes behind the handshake: from somebody who has the key, and from one who took over the connection and sends bytes, or
/// seals them with what the other direction is sealed with.
async fn has_the_key(way: u8, bytes: &[u8]) {
    let (one, other) = duplex(1 << 20);
    let (coordinator, agent) = tokio::join!(meet(Role::Coordinator, one), meet(Role::Agent, other));
    let (coordinator, agent) = (coordinator.unwrap(), agent.unwrap());
    let begun = Instant::now();
    let is_sealed = way & 1 == 0;
    let frame = |sends, hears| match way & 5 {
        1 => bytes.to_vec(),
        5 => Seal::new(hears).close(bytes),
        _ => Seal::new(sends).close(bytes),
    };
    if way & 2 == 0 {
        let End { sends, hears, mut writer, reader } = coordinator;
        frame::write(&mut writer, &frame(sends, hears), SILENCE).await.unwrap();
        let mut link = Link::new(agent, MOST_ASKED, || 0_u64);
        if let Ok(request) = link.next::<Request>().await {
            assert!(is_sealed, "what was not sealed was heard");
            judge(&request);
        }
        drop((reader, writer));
    } else {
        let End { sends, hears, mut writer, reader } = agent;
        frame::write(&mut writer, &frame(sends, hears), SILENCE).await.unwrap();
        let mut link = Link::new(coordinator, MOST_ANSWERED, || 0_u64);
        if let Ok(answer) = link.next::<Answer>().await {
            assert!(is_sealed, "what was not sealed was heard");
            add(answer);
        }
        drop((reader, writer));
    }
    assert!(begun.elapsed() <= SILENCE + SLACK, "{:?}", begun.elapsed());
}

/// What a coordinator asks is refused, or can be done.
fn judge(request: &Request) {
    match request {
        Request::Prepare(stage) => {
            let judged = check(stage, 2, 1 << 40);
            assert!(judged.is_err() || (1..=2).contains(&stage.len()));
            assert!(judged.is_err() || stage.iter().all(|step| step.sizes.most() <= 1 << 40));
        }
        Request::Open(job) => {
            let name = job.own();
            assert!(name.starts_with("tradewind-bench-") && !name.contains(['/', '.']), "{name}");
        }
        _ => {}
    }
}

/// What an agent measured can be added up, whatever it says.
fn add(answer: Answer) {
    if let Answer::Cell(cell) = answer {
        let part = |agent: &str| Part { agent: agent.to_owned(), cores: 1, cell: (*cell).clone() };
        assert_eq!(merge(vec![part("one"), part("two")], Duration::ZERO).unwrap().agents.len(), 2);
    }
}

#[cfg(test)]
mod tests;
