//! Links with a name, which last until they are taken down.
//!
//! The process that made one carries its packets and answers at a socket in the link's `place`, where what others need to
//! know lies too: a link is up while somebody answers there. Its near end is a named network namespace, as `ip netns` knows
//! them. What a relay that was killed left behind is found by that and removed; no process is signalled by its number.

mod place;

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

use self::place::Place;
pub use self::place::{Name, names};
use super::carrier::{Carried, Carrier};
use super::{Unsteady, Via, WanOptions, link, told};
use crate::failed::{Failed, failed};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a question is waited for, of somebody who is there.
const ATTENTION: Duration = Duration::from_secs(1);
/// The two questions.
const HOW: &[u8; 1] = b"?";
const END: &[u8; 1] = b"x";

/// A link that is up, in the process that carries its packets.
#[derive(Debug)]
pub struct Standing {
    carrier: Carrier,
    far: Ipv4Addr,
    ending: Ending,
    /// Removes what the link is known by, before those who asked for the end hear of it.
    _place: Place,
    _answering: Answering,
}

/// Ends a standing link.
#[derive(Debug, Clone)]
pub struct Ending(Arc<OwnedFd>);

impl Ending {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Has it end, after what is under way.
    pub fn end(&self) {
        // It fails only where it was said billions of times before.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// How a link of a name is.
#[derive(Debug)]
pub enum State {
    /// There is none.
    Absent,
    /// It is up: what is told of it, as [`told`] has it, with its `name` and for how many `seconds`.
    Up(Value),
    /// Whoever carried its packets has ended without removing it.
    Stale,
    /// Whoever carries its packets does not answer: it is stopped, or the machine is very busy.
    Silent,
}

impl Standing {
    /// Makes a link of a name; refused where one is up. What is left of one that was killed is removed.
    pub fn make(name: &Name, options: WanOptions) -> Result<Self, Failed> {
        let failed_to = |error: io::Error| failed(format!("make the link {name}"))(error);
        let _alone = place::lock().map_err(failed_to)?;
        match state(name)? {
            State::Absent => {}
            State::Stale => Place::of(name).remove().map_err(failed_to)?,
            State::Up(_) | State::Silent => {
                let why = format!("it is up already; `tradewind lab wan down {name}` ends it");
                return Err(failed_to(io::Error::new(io::ErrorKind::AlreadyExists, why)));
            }
        }
        let mut place = Place::make(name).map_err(failed_to)?;
        let ending = Ending::new().map_err(failed_to)?;
        let ((), carrier, far) = link(options, |far| {
            place.take_namespace(far).map_err(failed(format!("name the network namespace {name}")))
        })?;
        let listener = place.listen().map_err(failed_to)?;
        let begun = Instant::now();
        let answers = Answers {
            name: name.clone(),
            options,
            far,
            via: carrier.via(),
            carried: carrier.carried(),
            begun,
        };
        let ended = ending.clone();
        let (gone, until_gone) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || answers.give(&listener, &ended, &until_gone))
            .map_err(failed_to)?;
        let answering = Answering { ending: ending.clone(), gone: Some(gone), thread: Some(thread) };
        Ok(Self { carrier, far, ending, _place: place, _answering: answering })
    }

    /// The far end's address.
    #[must_use]
    pub const fn far(&self) -> Ipv4Addr {
        self.far
    }

    /// What carries the packets: not [`Via::Auto`].
    #[must_use]
    pub const fn via(&self) -> Via {
        self.carrier.via()
    }

    /// What ends it from another thread.
    #[must_use]
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Carries packets until it is taken down, and removes it. Before the first one `on_begun` hears whether the calling thread
    /// runs before others, without which packets may be late.
    pub fn run(mut self, on_begun: impl FnOnce(Result<(), Unsteady>)) -> Result<(), Failed> {
        on_begun(self.carrier.before_others());
        self.carrier.run(self.ending.0.as_fd(), false).map_err(failed("carry packets"))
    }
}

/// The thread that answers. Dropped last of a link, it ends.
#[derive(Debug)]
struct Answering {
    ending: Ending,
    gone: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.ending.end();
        self.gone = None;
        if let Some(thread) = self.thread.take() {
            // A panic of its was told of by itself.
            let _ = thread.join();
        }
    }
}

/// Tells whoever asks how the link is.
struct Answers {
    name: Name,
    options: WanOptions,
    far: Ipv4Addr,
    via: Via,
    carried: Carried,
    begun: Instant,
}

impl Answers {
    /// Answers until the link ends; those who asked for that hear of it when it is gone.
    fn give(&self, listener: &UnixListener, ending: &Ending, until_gone: &mpsc::Receiver<()>) {
        let mut waiting = Vec::new();
        loop {
            let mut awaited =
                [listener.as_fd(), ending.0.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if poll(&mut awaited, None).is_err() {
                continue;
            }
            let [is_asked, is_over] = awaited.map(|fd| !fd.revents().is_empty());
            if is_over {
                break;
            }
            // Where nobody asks, nothing would end the wait for one.
            if !is_asked {
                continue;
            }
            let Ok((mut asking, _)) = listener.accept() else { continue };
            let mut question = [0];
            let asked =
                asking.set_read_timeout(Some(ATTENTION)).and_then(|()| asking.read_exact(&mut question));
            match (asked, &question) {
                (Ok(()), HOW) => {
                    // Whoever did not wait for the answer does not want it.
                    let _ = asking.write_all(self.told().to_string().as_bytes());
                }
                (Ok(()), END) => {
                    waiting.push(asking);
                    ending.end();
                }
                _ => {}
            }
        }
        // Nothing is sent: it ends when the other end is dropped.
        let _ = until_gone.recv();
    }

    fn told(&self) -> Value {
        let mut told = told(self.options, self.via, self.far, &self.carried.read());
        told["name"] = json!(self.name.to_string());
        told["seconds"] = json!(self.begun.elapsed().as_secs_f64());
        told
    }
}

/// How the link of a name is.
pub fn state(name: &Name) -> Result<State, Failed> {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound};
    let place = Place::of(name);
    let asked = match ask(&place, HOW) {
        // It ended meanwhile.
        Ok(answer) if answer.is_empty() => Ok(if place.exists() { State::Stale } else { State::Absent }),
        Ok(answer) => serde_json::from_str(&answer).map(State::Up).map_err(io::Error::from),
        Err(e) if is_silence(&e) => Ok(State::Silent),
        Err(e) => match e.kind() {
            NotFound | ConnectionRefused | ConnectionReset if place.exists() => Ok(State::Stale),
            NotFound | ConnectionRefused | ConnectionReset => Ok(State::Absent),
            _ => Err(e),
        },
    };
    asked.map_err(failed(format!("ask how the link {name} is")))
}

/// Takes a link down, or removes what is left of one; answers whether it was still up. One that does not answer is killed.
pub fn down(name: &Name) -> Result<bool, Failed> {
    let place = Place::of(name);
    let failed_to = |error: io::Error| failed(format!("take down the link {name}"))(error);
    let was_up = match ask(&place, END) {
        Ok(_) => true,
        Err(e) if is_silence(&e) => {
            place.kill_relay().map_err(failed_to)?;
            true
        }
        Err(_) if !place.exists() => {
            return Err(failed_to(io::Error::new(io::ErrorKind::NotFound, "there is none of that name")));
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(failed_to(e)),
        Err(_) => false,
    };
    // A relay that ended well has done this.
    let _alone = place::lock().map_err(failed_to)?;
    if matches!(state(name)?, State::Stale) {
        place.remove().map_err(failed_to)?;
    }
    Ok(was_up)
}

/// Moves the calling thread, and what it starts from now on, to the near end of a link; answers the address of the far one.
pub fn enter(name: &Name) -> Result<Ipv4Addr, Failed> {
    let failed_to = |error: io::Error| failed(format!("enter the link {name}"))(error);
    let why = match state(name)? {
        State::Up(_) | State::Silent => {
            let place = Place::of(name);
            let namespace = place.namespace().map_err(failed_to)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| failed_to(e.into()))?;
            return place.far().map_err(failed_to);
        }
        State::Absent => format!("there is none of that name; `tradewind lab wan up {name}` makes it"),
        State::Stale => {
            format!(
                "its relay was killed; `tradewind lab wan up {name}` makes it anew, `down {name}` removes it"
            )
        }
    };
    Err(failed_to(io::Error::new(io::ErrorKind::NotFound, why)))
}

/// Asks whoever carries the link's packets, and reads until the connection ends.
fn ask(place: &Place, question: &[u8]) -> io::Result<String> {
    let mut stream = UnixStream::connect(place.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
