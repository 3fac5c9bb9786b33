//! The agent: waits for a coordinator that has the key, does what it asks, one at a time, and removes what it made, also
//! where the coordinator died. The store is opened by whoever runs the agent, with their credentials; a coordinator names
//! the place, and can have nothing removed that is not of its own run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::handshake::{Key, Role, shake};
use super::link::Link;
use super::messages::{Answer, MOST_ASKED};
pub use super::messages::{Job, MOST_AGENTS};
use super::session::Session;
pub use super::session::{Ground, Opens, Tell};
use crate::drive::{Gauge, Stop};

/// Connections whose handshake goes on. More are ended at once.
const STRANGERS: usize = 16;
/// After a connection could not be taken, for want of something that others have.
const PAUSE: Duration = Duration::from_millis(100);
/// Serves coordinators until it is asked to stop; then what is under way ends, what it made is removed, and it returns.
pub async fn serve(
    listener: TcpListener,
    key: &Key,
    opens: &Arc<dyn Opens>,
    halt: &Stop,
    tell: &Tell,
) -> io::Result<()> {
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let slot = Arc::new(Semaphore::new(1));
    // Those of the handshake, the one that works, and those whose coordinators are told the last.
    let mut all = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = halt.asked() => break,
            Some(ended) = all.join_next(), if !all.is_empty() => {
                if let Err(e) = ended {
                    tell(&format!("a session failed: {e}"));
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                // Whoever is one too many sees the connection end.
                let Ok(room) = strangers.clone().try_acquire_owned() else { continue };
                let host =
                    Host { key: key.clone(), opens: opens.clone(), halt: halt.clone(), tell: tell.clone() };
                all.spawn(host.meet(stream, from, room, slot.clone()));
            }
            Err(e) => {
                tracing::warn!(error = %e, "a connection was not taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    while all.join_next().await.is_some() {}
    Ok(())
}

struct Host {
    key: Key,
    opens: Arc<dyn Opens>,
    halt: Stop,
    tell: Tell,
}

impl Host {
    async fn meet(
        self,
        stream: TcpStream,
        from: SocketAddr,
        room: OwnedSemaphorePermit,
        slot: Arc<Semaphore>,
    ) {
        // It is faster, not needed.
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let shaken = tokio::select! {
            shaken = shake(Role::Agent, &self.key, reader, writer) => shaken,
            () = self.halt.asked() => return,
        };
        let shaken = match shaken {
            Ok(shaken) => shaken,
            Err(stranger) => return (self.tell)(&format!("{from} was turned away: {stranger}")),
        };
        let seen: Arc<Mutex<Vec<Arc<Gauge>>>> = Arc::default();
        let shown = seen.clone();
        let mut link = Link::new(shaken, MOST_ASKED, move || beat(&shown.lock()));
        let Ok(working) = slot.try_acquire_owned() else {
            (self.tell)(&format!("{from} was told that this agent is busy"));
            let _ = link.send(Answer::Busy).await;
            return link.close().await;
        };
        drop(room);
        let mut session = Session::new(link, seen, self.halt, self.tell.clone(), from);
        let ended = session.run(&*self.opens).await;
        drop(working);
        (self.tell)(&ended);
        session.link.close().await;
    }
}

fn beat(gauges: &[Arc<Gauge>]) -> Answer {
    let sum = |sum: (u64, u64, u64), read: (u64, u64, u64)| (sum.0 + read.0, sum.1 + read.1, sum.2 + read.2);
    let (operations, bytes, failures) = gauges.iter().map(|gauge| gauge.read()).fold((0, 0, 0), sum);
    Answer::Beat { operations, bytes, failures }
}
