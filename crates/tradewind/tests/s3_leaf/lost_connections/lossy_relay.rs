//! A relay in front of a service whose connections can all be lost at once, as by a failover of the service's address.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const BUFFER_BYTES: usize = 64 << 10;

/// The behaviour of a lost connection when a client sends something on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It is reset.
    Reset,
    /// The bytes are swallowed, and no response ever arrives.
    Swallow,
}

/// A running relay. It ends with the runtime of the test.
pub struct LossyRelay {
    pub address: SocketAddr,
    state: Arc<RelayState>,
}

struct RelayState {
    loss: Loss,
    /// The number of connections opened in each generation: since the start, and since each loss.
    opened: Mutex<Vec<usize>>,
    /// The number of lost connections that a client has sent something on.
    lost_uses: AtomicUsize,
    close: Notify,
}

impl LossyRelay {
    pub async fn start(service: SocketAddr, loss: Loss) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, lost_uses, close) = (Mutex::new(vec![0]), AtomicUsize::new(0), Notify::new());
        let state = Arc::new(RelayState { loss, opened, lost_uses, close });
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let generation = shared.record_opened();
                let state = shared.clone();
                tokio::spawn(async move { state.serve(client, service, generation).await });
            }
        });
        Self { address, state }
    }

    /// Loses all connections that are open.
    pub fn lose_connections(&self) {
        self.state.opened.lock().unwrap().push(0);
    }

    /// Closes one open connection like a service that closes idle ones.
    pub fn close_connection(&self) {
        self.state.close.notify_one();
    }

    /// The number of connections opened in each generation.
    pub fn opened(&self) -> Vec<usize> {
        self.state.opened.lock().unwrap().clone()
    }

    /// The number of lost connections that a client has sent something on.
    pub fn lost_uses(&self) -> usize {
        self.state.lost_uses.load(Ordering::Relaxed)
    }
}

impl RelayState {
    /// Counts a connection. Returns its generation.
    fn record_opened(&self) -> usize {
        let mut opened = self.opened.lock().unwrap();
        *opened.last_mut().unwrap() += 1;
        opened.len() - 1
    }

    fn is_lost(&self, generation: usize) -> bool {
        generation + 1 < self.opened.lock().unwrap().len()
    }

    async fn serve(&self, mut client: TcpStream, service: SocketAddr, generation: usize) -> io::Result<()> {
        // The end of this task resets the connection.
        set_socket_linger(&client, Some(Duration::ZERO))?;
        let mut server = TcpStream::connect(service).await?;
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.split(), server.split());
        let (mut request, mut response) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
        let (mut is_used_after_loss, mut is_closed) = (false, false);
        loop {
            tokio::select! {
                bytes = from_client.read(&mut request) => {
                    let bytes = bytes?;
                    if bytes == 0 {
                        return Ok(());
                    }
                    if !self.is_lost(generation) {
                        to_server.write_all(&request[..bytes]).await?;
                        continue;
                    }
                    if !std::mem::replace(&mut is_used_after_loss, true) {
                        self.lost_uses.fetch_add(1, Ordering::Relaxed);
                    }
                    if self.loss == Loss::Reset {
                        return Ok(());
                    }
                }
                bytes = from_server.read(&mut response) => {
                    let bytes = bytes?;
                    if bytes == 0 {
                        // The service has closed it. A reset would remove bytes that the client has not read yet.
                        return set_socket_linger(to_client.as_ref(), None).map_err(Into::into);
                    }
                    to_client.write_all(&response[..bytes]).await?;
                }
                () = self.close.notified(), if !is_closed => {
                    is_closed = true;
                    to_client.shutdown().await?;
                }
            }
        }
    }
}
