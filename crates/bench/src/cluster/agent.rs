//! The agent: serves coordinators with the right key, one after another, and removes the objects it created, even if
//! the coordinator dies. The store is opened with the credentials of the agent's operator. A coordinator names the
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
    opener: &Arc<dyn StoreOpener>,
    halt: &StopSignal,
    log: &LogFn,
) -> io::Result<()> {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let slot = Arc::new(Semaphore::new(1));
    // Connections in the handshake, the active session, and connections that send their last message.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = halt.triggered() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(e) = ended {
                    log(&format!("a session failed: {e}"));
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
                    opener: opener.clone(),
                    halt: halt.clone(),
                    log: log.clone(),
                };
                connections.spawn(connection.serve(stream, from, permit, slot.clone()));
            }
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

struct Connection {
    key: Key,
    opener: Arc<dyn StoreOpener>,
    halt: StopSignal,
    log: LogFn,
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
        let stream = tokio::select! {
            stream = handshake(Role::Agent, &self.key, reader, writer) => stream,
            () = self.halt.triggered() => return,
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => return (self.log)(&format!("{from} was rejected: {e}")),
        };
        let progress: Arc<Mutex<Vec<Arc<Progress>>>> = Arc::default();
        let reported = progress.clone();
        let mut link = Link::new(stream, MAX_REQUEST_BYTES, move || heartbeat(&reported.lock()));
        let Ok(session_permit) = slot.try_acquire_owned() else {
            (self.log)(&format!("{from} was rejected: this agent is busy"));
            let _ = link.send(AgentResponse::Busy).await;
            return link.close().await;
        };
        drop(handshake_permit);
        let mut session = Session::new(link, progress, self.halt, self.log.clone(), from);
        let message = session.run(&*self.opener).await;
        drop(session_permit);
        (self.log)(&message);
        session.link.close().await;
    }
}

fn heartbeat(progress: &[Arc<Progress>]) -> AgentResponse {
    let sum = |sum: (u64, u64, u64), read: (u64, u64, u64)| (sum.0 + read.0, sum.1 + read.1, sum.2 + read.2);
    let (operations, bytes, failures) = progress.iter().map(|load| load.snapshot()).fold((0, 0, 0), sum);
    AgentResponse::Heartbeat { operations, bytes, failures }
}
