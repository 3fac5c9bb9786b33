//! How both ends show each other that they have the same key, and agree on keys for what follows.
//!
//! Each says a number that nobody used before; then the coordinator, and after it the agent, sends HMAC-SHA256 under the key
//! over its role, the version and both numbers. Who only heard others say it cannot answer new numbers, and who sends back
//! what it was sent has the wrong role. The agent answers second, so that whoever knows no key learns nothing to try keys
//! on. What is sent later is sealed with a key for each direction, made of the same numbers.
//!
//! Up to here the other end may be anybody: frames are short, there is one deadline for all of it, and what is said in
//! refusal are words of our own, not those of the other end.

use std::fmt;
use std::time::Duration;

use ring::hmac::{self, HMAC_SHA256, Tag};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::frame::{self, Broken, Reader};

/// What they speak. It changes where one of before would misunderstand it.
pub const VERSION: u32 = 3;
const PROTOCOL: &str = "tradewind-bench-cluster";
/// A frame of the handshake has no more bytes.
const MOST: usize = 1 << 10;
/// All of it takes no longer.
pub const TIME: Duration = Duration::from_secs(5);
/// A shorter key could be guessed.
const LEAST_KEY: usize = 16;

/// What agents and their coordinator share. It is never shown.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Of these bytes, 16 at the least; otherwise why not, in words.
    pub fn new(secret: &[u8]) -> Result<Self, String> {
        if secret.len() < LEAST_KEY {
            let length = secret.len();
            return Err(format!(
                "the key has {length} bytes, and {LEAST_KEY} are the least: make one with `openssl rand -hex 32`"
            ));
        }
        Ok(Self(hmac::Key::new(HMAC_SHA256, secret)))
    }

    fn sign(&self, role: Role, what: &str, numbers: &Numbers) -> Tag {
        let mut signing = hmac::Context::with_key(&self.0);
        signing.update(format!("{PROTOCOL}/{VERSION} {} {what}\n", role.name()).as_bytes());
        signing.update(&numbers.coordinator);
        signing.update(&numbers.agent);
        signing.sign()
    }

    fn verify(&self, role: Role, numbers: &Numbers, proof: &[u8]) -> bool {
        let mut said = format!("{PROTOCOL}/{VERSION} {} {PROOF}\n", role.name()).into_bytes();
        said.extend([numbers.coordinator, numbers.agent].concat());
        // It takes as long wherever they differ.
        hmac::verify(&self.0, &said, proof).is_ok()
    }

    fn seals(&self, role: Role, numbers: &Numbers) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, self.sign(role, "frames", numbers).as_ref())
    }
}

const PROOF: &str = "proof";

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Coordinator,
    Agent,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Agent => "agent",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Coordinator => Self::Agent,
            Self::Agent => Self::Coordinator,
        }
    }
}

/// What each end said that nobody said before.
struct Numbers {
    coordinator: [u8; 32],
    agent: [u8; 32],
}

/// What is said in clear.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Greeting {
    Hello { protocol: String, version: u32, number: [u8; 32] },
    Proof([u8; 32]),
    Refused(Refusal),
}

/// Why an end does not speak with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// It speaks this version.
    Version(u32),
    /// The key is another.
    Key,
}

/// Why no connection came about.
#[derive(Debug)]
pub enum Stranger {
    /// The other end said so.
    Refused(Refusal),
    /// It speaks this version.
    Version(u32),
    /// It does not have the key.
    Key,
    /// It speaks something else, or not at all.
    Broken(Broken),
    /// This system gives no random numbers.
    NoRandom,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refusal::Version(version)) | Self::Version(version) => {
                write!(
                    f,
                    "it speaks version {version} of the protocol, and this is {VERSION}: use the same tradewind on all machines"
                )
            }
            Self::Refused(Refusal::Key) => write!(f, "it has another key"),
            Self::Key => write!(f, "it does not have the key"),
            Self::Broken(Broken::TooLarge(..) | Broken::Unreadable(_) | Broken::Unexpected(_)) => {
                write!(f, "what answers there is not tradewind")
            }
            Self::Broken(broken) => write!(f, "{broken}"),
            Self::NoRandom => write!(f, "this system gives no random numbers"),
        }
    }
}

impl From<Broken> for Stranger {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// A connection whose other end has the key.
pub struct Shaken<R, W> {
    pub reader: Reader<R>,
    pub writer: W,
    /// Of what this end sends.
    pub sends: hmac::Key,
    /// Of what it hears.
    pub hears: hmac::Key,
}

/// Shows the other end that this one has the key, and finds out whether the other has it. Who is told why not is told
/// nothing else.
pub async fn shake<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    role: Role,
    key: &Key,
    from: R,
    to: W,
) -> Result<Shaken<R, W>, Stranger> {
    let mut ends = Ends { reader: Reader::new(from), writer: to };
    let numbers = timeout(TIME, ends.shake(role, key)).await;
    let numbers = numbers.map_err(|_| Broken::Silent(TIME))??;
    let (sends, hears) = (key.seals(role, &numbers), key.seals(role.other(), &numbers));
    Ok(Shaken { reader: ends.reader, writer: ends.writer, sends, hears })
}

struct Ends<R, W> {
    reader: Reader<R>,
    writer: W,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Ends<R, W> {
    async fn shake(&mut self, role: Role, key: &Key) -> Result<Numbers, Stranger> {
        let mut mine = [0; 32];
        SystemRandom::new().fill(&mut mine).map_err(|_| Stranger::NoRandom)?;
        let hello = Greeting::Hello { protocol: PROTOCOL.to_owned(), version: VERSION, number: mine };
        if role == Role::Coordinator {
            self.say(&hello).await?;
            let numbers = Numbers { coordinator: mine, agent: self.hello().await? };
            self.prove(role, key, &numbers).await?;
            self.check(role.other(), key, &numbers).await?;
            return Ok(numbers);
        }
        let theirs = match self.hello().await {
            Err(Stranger::Version(version)) => {
                self.say(&Greeting::Refused(Refusal::Version(VERSION))).await?;
                return Err(Stranger::Version(version));
            }
            theirs => theirs?,
        };
        self.say(&hello).await?;
        let numbers = Numbers { coordinator: theirs, agent: mine };
        if let Err(stranger) = self.check(role.other(), key, &numbers).await {
            if matches!(stranger, Stranger::Key) {
                self.say(&Greeting::Refused(Refusal::Key)).await?;
            }
            return Err(stranger);
        }
        self.prove(role, key, &numbers).await?;
        Ok(numbers)
    }

    async fn say(&mut self, greeting: &Greeting) -> Result<(), Broken> {
        let said = serde_json::to_vec(greeting).map_err(Broken::Unreadable)?;
        frame::write(&mut self.writer, &said, TIME).await
    }

    async fn hear(&mut self) -> Result<Greeting, Stranger> {
        let heard = self.reader.next(MOST, TIME).await?;
        match serde_json::from_slice(&heard).map_err(Broken::Unreadable)? {
            Greeting::Refused(refusal) => Err(Stranger::Refused(refusal)),
            greeting => Ok(greeting),
        }
    }

    async fn hello(&mut self) -> Result<[u8; 32], Stranger> {
        match self.hear().await? {
            Greeting::Hello { protocol, version, .. } if protocol == PROTOCOL && version != VERSION => {
                Err(Stranger::Version(version))
            }
            Greeting::Hello { protocol, number, .. } if protocol == PROTOCOL => Ok(number),
            _ => Err(Broken::Unexpected("a greeting").into()),
        }
    }

    async fn prove(&mut self, role: Role, key: &Key, numbers: &Numbers) -> Result<(), Broken> {
        let mut proof = [0; 32];
        proof.copy_from_slice(key.sign(role, PROOF, numbers).as_ref());
        self.say(&Greeting::Proof(proof)).await
    }

    async fn check(&mut self, role: Role, key: &Key, numbers: &Numbers) -> Result<(), Stranger> {
        match self.hear().await? {
            Greeting::Proof(proof) if key.verify(role, numbers, &proof) => Ok(()),
            Greeting::Proof(_) => Err(Stranger::Key),
            _ => Err(Broken::Unexpected("a proof of the key").into()),
        }
    }
}
