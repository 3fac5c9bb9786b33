//! The agent: serves coordinators with the right key, one after another, and removes the objects it created, even if the
//! coordinator dies. The store is opened with the credentials of the agent's operator. A coordinator names the
//! location, and can only have objects of its own run removed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::handshake::{Key, Role, handshake};
use super::link::Link;
pub use super::messages::{AgentJob, MAX_AGENTS};
use super::messages::{AgentResponse, MAX_REQUEST_BYTES};
use super::session::Session;
pub use super::session::{LogFn, OpenedStore, StoreOpener};
use crate::drive::{Progress, StopSignal};

/// Maximum number of concurrent handshakes. Further connections are closed at once.
const MAX_HANDSHAKES: usize = 16;
/// Pause after a failed accept, for example because file descriptors are exhausted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Serves coordinators until `halt`. Then the active session ends, its objects are removed, and the function returns.
pub async fn serve(
    listener: TcpListener,
    key: &Key,
    opens: &Arc<dyn StoreOpener>,
    halt: &StopSignal,
    tell: &LogFn,
) -> io::Result<()> {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let slot = Arc::new(Semaphore::new(1));
    // Connections in the handshake, the active session, and connections that send their last message.
    let mut all = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = halt.triggered() => break,
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
                // Dropping the stream closes the surplus connection.
                let Ok(permit) = handshakes.clone().try_acquire_owned() else { continue };
                let connection = Connection {
                    key: key.clone(),
                    opens: opens.clone(),
                    halt: halt.clone(),
                    tell: tell.clone(),
                };
                all.spawn(connection.serve(stream, from, permit, slot.clone()));
            }
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
    drop(listener);
    while all.join_next().await.is_some() {}
    Ok(())
}

struct Connection {
    key: Key,
    opens: Arc<dyn StoreOpener>,
    halt: StopSignal,
    tell: LogFn,
}

impl Connection {
    async fn serve(
        self,
        stream: TcpStream,
        from: SocketAddr,
        handshake_permit: OwnedSemaphorePermit,
        slot: Arc<Semaphore>,
    ) {
        // Only an optimization: failure is harmless.
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let shaken = tokio::select! {
            shaken = handshake(Role::Agent, &self.key, reader, writer) => shaken,
            () = self.halt.triggered() => return,
        };
        let shaken = match shaken {
            Ok(shaken) => shaken,
            Err(stranger) => return (self.tell)(&format!("{from} was rejected: {stranger}")),
        };
        let gauges: Arc<Mutex<Vec<Arc<Progress>>>> = Arc::default();
        let reported = gauges.clone();
        let mut link = Link::new(shaken, MAX_REQUEST_BYTES, move || heartbeat(&reported.lock()));
        let Ok(session_permit) = slot.try_acquire_owned() else {
            (self.tell)(&format!("{from} was rejected: this agent is busy"));
            let _ = link.send(AgentResponse::Busy).await;
            return link.close().await;
        };
        drop(handshake_permit);
        let mut session = Session::new(link, gauges, self.halt, self.tell.clone(), from);
        let end_reason = session.run(&*self.opens).await;
        drop(session_permit);
        (self.tell)(&end_reason);
        session.link.close().await;
    }
}

fn heartbeat(gauges: &[Arc<Progress>]) -> AgentResponse {
    let sum = |sum: (u64, u64, u64), read: (u64, u64, u64)| (sum.0 + read.0, sum.1 + read.1, sum.2 + read.2);
    let (operations, bytes, failures) = gauges.iter().map(|gauge| gauge.snapshot()).fold((0, 0, 0), sum);
    AgentResponse::Heartbeat { operations, bytes, failures }
}
