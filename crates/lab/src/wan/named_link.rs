//! Named links, which persist until they are taken down.
//!
//! The process that created a link forwards its packets and serves a socket in the link's directory (see
//! `LinkDirectory`), which also contains its metadata. A link is up while the socket is served. Its near end is a named
//! network namespace, as for `ip netns`. Remains of a killed relay are detected by the metadata and removed; no process
//! is signalled by PID alone.

mod link_directory;

use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use self::link_directory::LinkDirectory;
pub use self::link_directory::{LinkName, link_names};
use super::packet_forwarder::{LinkCounter, PacketForwarder};
use super::{ForwarderKind, TimingWarning, WanOptions, create_link, link_report};
use crate::error::{LabError, cannot};

/// Maximum wait for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum wait for a connected client's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The two requests.
const STATUS_REQUEST: &[u8; 1] = b"?";
const STOP_REQUEST: &[u8; 1] = b"x";

/// A link that is up, in the process that forwards its packets.
#[derive(Debug)]
pub struct NamedLink {
    forwarder: PacketForwarder,
    far_address: Ipv4Addr,
    stop_handle: StopHandle,
    /// Removes the link's directory and namespace name before clients that requested the stop are notified.
    _directory: LinkDirectory,
    _responder: ResponderThread,
}

/// Stops a named link from another thread.
#[derive(Debug, Clone)]
pub struct StopHandle(Arc<OwnedFd>);

impl StopHandle {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Stops the link after the packets in flight.
    pub fn stop(&self) {
        // It fails only if the counter is already at its maximum.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// The state of the link with a given name.
#[derive(Debug)]
pub enum LinkState {
    /// No such link.
    Absent,
    /// It is up: its report as of [`link_report`], with its `name` and uptime in `seconds`.
    Up(Value),
    /// The process that forwarded its packets has ended without removing it.
    Stale,
    /// The process that forwards its packets does not respond: it is stopped, or the machine is overloaded.
    Unresponsive,
}

impl NamedLink {
    /// Creates a named link; an error if one is up. Remains of a killed one are removed.
    pub fn create(name: &LinkName, options: WanOptions) -> Result<Self, LabError> {
        let failed_to = |error: io::Error| cannot(format!("create the link {name}"))(error);
        let _lock = link_directory::lock().map_err(failed_to)?;
        match link_state(name)? {
            LinkState::Absent => {}
            LinkState::Stale => LinkDirectory::new(name).remove().map_err(failed_to)?,
            LinkState::Up(_) | LinkState::Unresponsive => {
                let why = format!("it is up already; run `tradewind lab wan down {name}` first");
                return Err(failed_to(io::Error::new(io::ErrorKind::AlreadyExists, why)));
            }
        }
        let mut directory = LinkDirectory::create(name).map_err(failed_to)?;
        let stop_handle = StopHandle::new().map_err(failed_to)?;
        let ((), forwarder, far_address) = create_link(options, |far_address| {
            directory
                .take_namespace(far_address)
                .map_err(cannot(format!("name the network namespace {name}")))
        })?;
        let listener = directory.listen().map_err(failed_to)?;
        let started = Instant::now();
        let responder = StatusResponder {
            name: name.clone(),
            options,
            far_address,
            via: forwarder.via(),
            counter: forwarder.counter(),
            started,
        };
        let (handle, (link_guard, until_removed)) = (stop_handle.clone(), mpsc::channel());
        let thread = thread::Builder::new()
            .name("responder".to_owned())
            .spawn(move || responder.serve(&listener, &handle, &until_removed))
            .map_err(failed_to)?;
        let responder = ResponderThread {
            stop_handle: stop_handle.clone(),
            link_guard: Some(link_guard),
            thread: Some(thread),
        };
        Ok(Self { forwarder, far_address, stop_handle, _directory: directory, _responder: responder })
    }

    /// Address of the far end.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far_address
    }

    /// The packet forwarder in use: never [`ForwarderKind::Auto`].
    #[must_use]
    pub const fn via(&self) -> ForwarderKind {
        self.forwarder.via()
    }

    /// A handle that stops the link from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop_handle.clone()
    }

    /// Forwards packets until the link is taken down, then removes it. Before the first packet, `on_start` is called
    /// with the result of requesting real-time priority, without which packets may be late.
    pub fn run(mut self, on_start: impl FnOnce(Result<(), TimingWarning>)) -> Result<(), LabError> {
        on_start(self.forwarder.raise_priority());
        self.forwarder.run(self.stop_handle.0.as_fd(), false).map_err(cannot("forward packets"))
    }
}

/// The thread that serves the socket. Dropped last of a link, it stops the thread.
#[derive(Debug)]
struct ResponderThread {
    stop_handle: StopHandle,
    /// Dropped once the link is removed: the thread waits for that before it releases its clients.
    link_guard: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ResponderThread {
    fn drop(&mut self) {
        self.stop_handle.stop();
        self.link_guard = None;
        if let Some(thread) = self.thread.take() {
            // The thread's panic was already reported.
            let _ = thread.join();
        }
    }
}

/// Serves the link's status to clients.
struct StatusResponder {
    name: LinkName,
    options: WanOptions,
    far_address: Ipv4Addr,
    via: ForwarderKind,
    counter: LinkCounter,
    started: Instant,
}

impl StatusResponder {
    /// Serves until the link stops; clients that requested the stop are released once it is removed.
    fn serve(&self, listener: &UnixListener, stop_handle: &StopHandle, until_removed: &mpsc::Receiver<()>) {
        let mut waiting = Vec::new();
        loop {
            let mut awaited = [listener.as_fd(), stop_handle.0.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut awaited, None).is_err() {
                continue;
            }
            let [is_connecting, is_stopped] = awaited.map(|fd| !fd.revents().is_empty());
            if is_stopped {
                break;
            }
            // Without a client, accept would block beyond the end of the link.
            if !is_connecting {
                continue;
            }
            let Ok((mut client, _)) = listener.accept() else { continue };
            let mut request = [0];
            let received =
                client.set_read_timeout(Some(REQUEST_TIMEOUT)).and_then(|()| client.read_exact(&mut request));
            match (received, &request) {
                (Ok(()), STATUS_REQUEST) => {
                    // A client that has gone away does not need the response.
                    let _ = client.write_all(self.status().to_string().as_bytes());
                }
                (Ok(()), STOP_REQUEST) => {
                    waiting.push(client);
                    stop_handle.stop();
                }
                _ => {}
            }
        }
        // Clients are not sent anything: dropping their connections is the notification.
        let _ = until_removed.recv();
    }

    fn status(&self) -> Value {
        let mut status = link_report(self.options, self.via, self.far_address, &self.counter.read());
        status["name"] = json!(self.name.to_string());
        status["seconds"] = json!(self.started.elapsed().as_secs_f64());
        status
    }
}

/// The state of the link with the given name.
pub fn link_state(name: &LinkName) -> Result<LinkState, LabError> {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound};
    let directory = LinkDirectory::new(name);
    let state = match send_request(&directory, STATUS_REQUEST) {
        // It ended during the request.
        Ok(response) if response.is_empty() => {
            Ok(if directory.exists() { LinkState::Stale } else { LinkState::Absent })
        }
        Ok(response) => serde_json::from_str(&response).map(LinkState::Up).map_err(io::Error::from),
        Err(e) if is_timeout(&e) => Ok(LinkState::Unresponsive),
        Err(e) => match e.kind() {
            NotFound | ConnectionRefused | ConnectionReset if directory.exists() => Ok(LinkState::Stale),
            NotFound | ConnectionRefused | ConnectionReset => Ok(LinkState::Absent),
            _ => Err(e),
        },
    };
    state.map_err(cannot(format!("query the link {name}")))
}

/// Takes a link down, or removes the remains of one; returns true if it was up. A relay that does not respond is
/// killed.
pub fn down(name: &LinkName) -> Result<bool, LabError> {
    let directory = LinkDirectory::new(name);
    let failed_to = |error: io::Error| cannot(format!("take down the link {name}"))(error);
    let was_up = match send_request(&directory, STOP_REQUEST) {
        Ok(_) => true,
        Err(e) if is_timeout(&e) => {
            directory.kill_relay().map_err(failed_to)?;
            true
        }
        Err(_) if !directory.exists() => {
            return Err(failed_to(io::Error::new(io::ErrorKind::NotFound, "there is no link of that name")));
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(failed_to(e)),
        Err(_) => false,
    };
    // A relay that exits cleanly has already removed it.
    let _lock = link_directory::lock().map_err(failed_to)?;
    if matches!(link_state(name)?, LinkState::Stale) {
        directory.remove().map_err(failed_to)?;
    }
    Ok(was_up)
}

/// Moves the calling thread and its future children to the near end of a link; returns the address of the far end.
pub fn enter(name: &LinkName) -> Result<Ipv4Addr, LabError> {
    let failed_to = |error: io::Error| cannot(format!("enter the link {name}"))(error);
    let why = match link_state(name)? {
        LinkState::Up(_) | LinkState::Unresponsive => {
            let directory = LinkDirectory::new(name);
            let namespace = directory.namespace().map_err(failed_to)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| failed_to(e.into()))?;
            return directory.far_address().map_err(failed_to);
        }
        LinkState::Absent => {
            format!("there is no link of that name; create it with `tradewind lab wan up {name}`")
        }
        LinkState::Stale => {
            format!(
                "its relay was killed; re-create it with `tradewind lab wan up {name}`, or remove it with `down {name}`"
            )
        }
    };
    Err(failed_to(io::Error::new(io::ErrorKind::NotFound, why)))
}

/// Sends a request to the link's process and reads until the connection ends.
fn send_request(directory: &LinkDirectory, request: &[u8]) -> io::Result<String> {
    let mut stream = UnixStream::connect(directory.socket_path())?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(request)?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
