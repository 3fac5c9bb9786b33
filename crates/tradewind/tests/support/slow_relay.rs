//! A relay on loopback with a limited rate to the server, over all connections. Its receive buffers are small, so that
//! unsent bytes wait in the send buffers of the client.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are relayed at once.
const PIECE_BYTES: usize = 16 << 10;
const RECEIVE_BUFFER_BYTES: usize = 32 << 10;

/// The time at which the link is free.
type LinkFree = Arc<Mutex<Instant>>;

/// Starts a relay to `server`, which runs until the process ends. Returns its address.
pub fn start(server: SocketAddr, bytes_per_second: f64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER_BYTES).unwrap();
    let address = listener.local_addr().unwrap();
    let free: LinkFree = Arc::new(Mutex::new(Instant::now()));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let (responses, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let free = free.clone();
            thread::spawn(move || relay_slowly(client, server, &free, bytes_per_second));
            thread::spawn(move || relay(responses, to_client));
        }
    });
    address
}

/// Relays until either side closes.
fn relay_slowly(mut from: TcpStream, mut to: TcpStream, free: &LinkFree, bytes_per_second: f64) {
    let mut piece = [0; PIECE_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        let until = {
            let mut free = free.lock().unwrap();
            *free = (*free).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / bytes_per_second);
            *free
        };
        thread::sleep(until.saturating_duration_since(Instant::now()));
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    // Either side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
}

fn relay(mut from: TcpStream, mut to: TcpStream) {
    // Either side may close at any time.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
