//! Mutual authentication with a shared key, and derivation of session keys.
//!
//! Each end sends a nonce. Then the coordinator, and after it the agent, sends HMAC-SHA256 under the key over its role,
//! the version and both nonces. Fresh nonces prevent replay; the role prevents reflection. The agent proves second, so
//! that a client without the key gets nothing to test guessed keys against. Later frames use a separate MAC key for
//! each direction, derived from the same nonces.
//!
//! During the handshake, the peer is untrusted: frames are short, one deadline covers everything, and error messages
//! never repeat text from the peer.

use std::fmt;
use std::time::Duration;

use ring::hmac::{self, HMAC_SHA256, Tag};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::frame::{self, FrameReader, LinkError};

/// Version of the protocol. It changes when the previous version would misinterpret a message.
pub const PROTOCOL_VERSION: u32 = 4;
const PROTOCOL: &str = "tradewind-bench-cluster";
/// Maximum size of a handshake frame, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 10;
/// Deadline of the whole handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum length of a key, in bytes. A shorter key could be guessed.
const MIN_KEY_BYTES: usize = 16;

/// The key that agents and coordinator share. It is never printed.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Creates a key. Fails if the secret has less than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, String> {
        if secret.len() < MIN_KEY_BYTES {
            let length = secret.len();
            return Err(format!(
                "the key has {length} bytes, but at least {MIN_KEY_BYTES} are required: create one with \
                 `openssl rand -hex 32`"
            ));
        }
        Ok(Self(hmac::Key::new(HMAC_SHA256, secret)))
    }

    fn sign(&self, role: Role, purpose: &str, nonces: &Nonces) -> Tag {
        let mut signing = hmac::Context::with_key(&self.0);
        signing.update(format!("{PROTOCOL}/{PROTOCOL_VERSION} {} {purpose}\n", role.name()).as_bytes());
        signing.update(&nonces.coordinator);
        signing.update(&nonces.agent);
        signing.sign()
    }

    fn verify(&self, role: Role, nonces: &Nonces, proof: &[u8]) -> bool {
        let mut signed = format!("{PROTOCOL}/{PROTOCOL_VERSION} {} {PROOF}\n", role.name()).into_bytes();
        signed.extend([nonces.coordinator, nonces.agent].concat());
        // The comparison takes constant time.
        hmac::verify(&self.0, &signed, proof).is_ok()
    }

    fn session_key(&self, role: Role, nonces: &Nonces) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, self.sign(role, "frames", nonces).as_ref())
    }
}

const PROOF: &str = "proof";

/// The role of an end.
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

/// The random nonces of both ends.
struct Nonces {
    coordinator: [u8; 32],
    agent: [u8; 32],
}

/// A handshake message, sent without a MAC.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Greeting {
    Hello {
        protocol: String,
        version: u32,
        #[serde(rename = "number")]
        nonce: [u8; 32],
    },
    Proof([u8; 32]),
    Refused(Rejection),
}

/// The reason why an end rejects its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rejection {
    /// The versions differ. This is the version of the rejecting end.
    Version(u32),
    /// The keys differ.
    Key,
}

/// A failed handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer rejected this end.
    Rejected(Rejection),
    /// The peer uses this version.
    Version(u32),
    /// The peer does not have the key.
    WrongKey,
    /// The peer uses another protocol or does not respond.
    Broken(LinkError),
    /// The system's random number generator failed.
    RandomFailed,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(Rejection::Version(version)) | Self::Version(version) => {
                write!(
                    f,
                    "its protocol version is {version}, not {PROTOCOL_VERSION}: use the same tradewind version on all machines"
                )
            }
            Self::Rejected(Rejection::Key) => write!(f, "it has a different key"),
            Self::WrongKey => write!(f, "it does not have the key"),
            Self::Broken(LinkError::TooLarge(..) | LinkError::Unparsable(_) | LinkError::Unexpected(_)) => {
                write!(f, "the peer is not a tradewind agent or coordinator")
            }
            Self::Broken(broken) => write!(f, "{broken}"),
            Self::RandomFailed => write!(f, "the system's random number generator failed"),
        }
    }
}

impl From<LinkError> for HandshakeError {
    fn from(broken: LinkError) -> Self {
        Self::Broken(broken)
    }
}

/// An authenticated connection.
pub struct AuthenticatedStream<R, W> {
    pub reader: FrameReader<R>,
    pub writer: W,
    /// MAC key for sending.
    pub send_key: hmac::Key,
    /// MAC key for receiving.
    pub receive_key: hmac::Key,
}

/// Performs the handshake: proves to the peer that this end has the key, and verifies the peer's proof. A rejected peer
/// learns only the reason.
pub async fn handshake<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    role: Role,
    key: &Key,
    reader: R,
    writer: W,
) -> Result<AuthenticatedStream<R, W>, HandshakeError> {
    let mut stream = Stream { reader: FrameReader::new(reader), writer };
    let nonces = timeout(HANDSHAKE_TIMEOUT, stream.authenticate(role, key)).await;
    let nonces = nonces.map_err(|_| LinkError::TimedOut(HANDSHAKE_TIMEOUT))??;
    let (send_key, receive_key) = (key.session_key(role, &nonces), key.session_key(role.other(), &nonces));
    Ok(AuthenticatedStream { reader: stream.reader, writer: stream.writer, send_key, receive_key })
}

struct Stream<R, W> {
    reader: FrameReader<R>,
    writer: W,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Stream<R, W> {
    async fn authenticate(&mut self, role: Role, key: &Key) -> Result<Nonces, HandshakeError> {
        let mut nonce = [0; 32];
        SystemRandom::new().fill(&mut nonce).map_err(|_| HandshakeError::RandomFailed)?;
        let hello = Greeting::Hello { protocol: PROTOCOL.to_owned(), version: PROTOCOL_VERSION, nonce };
        if role == Role::Coordinator {
            self.send(&hello).await?;
            let nonces = Nonces { coordinator: nonce, agent: self.receive_hello().await? };
            self.send_proof(role, key, &nonces).await?;
            self.verify_proof(role.other(), key, &nonces).await?;
            return Ok(nonces);
        }
        let coordinator = match self.receive_hello().await {
            Err(HandshakeError::Version(version)) => {
                self.send(&Greeting::Refused(Rejection::Version(PROTOCOL_VERSION))).await?;
                return Err(HandshakeError::Version(version));
            }
            coordinator => coordinator?,
        };
        self.send(&hello).await?;
        let nonces = Nonces { coordinator, agent: nonce };
        if let Err(error) = self.verify_proof(role.other(), key, &nonces).await {
            if matches!(error, HandshakeError::WrongKey) {
                self.send(&Greeting::Refused(Rejection::Key)).await?;
            }
            return Err(error);
        }
        self.send_proof(role, key, &nonces).await?;
        Ok(nonces)
    }

    async fn send(&mut self, greeting: &Greeting) -> Result<(), LinkError> {
        let message = serde_json::to_vec(greeting).map_err(LinkError::Unparsable)?;
        frame::write_frame(&mut self.writer, &message, HANDSHAKE_TIMEOUT).await
    }

    async fn receive(&mut self) -> Result<Greeting, HandshakeError> {
        let message = self.reader.next_frame(MAX_FRAME_BYTES, HANDSHAKE_TIMEOUT).await?;
        match serde_json::from_slice(&message).map_err(LinkError::Unparsable)? {
            Greeting::Refused(rejection) => Err(HandshakeError::Rejected(rejection)),
            greeting => Ok(greeting),
        }
    }

    async fn receive_hello(&mut self) -> Result<[u8; 32], HandshakeError> {
        match self.receive().await? {
            Greeting::Hello { protocol, version, .. }
                if protocol == PROTOCOL && version != PROTOCOL_VERSION =>
            {
                Err(HandshakeError::Version(version))
            }
            Greeting::Hello { protocol, nonce, .. } if protocol == PROTOCOL => Ok(nonce),
            _ => Err(LinkError::Unexpected("a greeting").into()),
        }
    }

    async fn send_proof(&mut self, role: Role, key: &Key, nonces: &Nonces) -> Result<(), LinkError> {
        let mut proof = [0; 32];
        proof.copy_from_slice(key.sign(role, PROOF, nonces).as_ref());
        self.send(&Greeting::Proof(proof)).await
    }

    async fn verify_proof(&mut self, role: Role, key: &Key, nonces: &Nonces) -> Result<(), HandshakeError> {
        match self.receive().await? {
            Greeting::Proof(proof) if key.verify(role, nonces, &proof) => Ok(()),
            Greeting::Proof(_) => Err(HandshakeError::WrongKey),
            _ => Err(LinkError::Unexpected("a proof of the key").into()),
        }
    }
}
