//! Master keys, and the data key of each segment, which a master key wraps.
//!
//! A data key is random and encrypts one segment only. It is wrapped by AES-256-GCM under a key that HKDF-SHA256 (RFC
//! 5869) derives from the master key and the random id of the segment. Each derived key is used once, so that the nonce
//! of the wrapping is constant and the number of segments is not limited by random nonces (NIST SP 800-38D, 8.3).

use std::collections::BTreeMap;
use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use tradewind_core::error::{Error, Reason, Result};

/// Bytes of a master key and of a data key.
pub const KEY_BYTES: usize = 32;
/// The longest name of a key.
pub const MAX_KEY_NAME_BYTES: usize = 64;
/// Bytes of the random id of a segment.
pub(super) const SEGMENT_ID_BYTES: usize = 16;
/// Bytes of the tag of AES-GCM.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of a wrapped data key.
pub(super) const WRAPPED_KEY_BYTES: usize = KEY_BYTES + TAG_BYTES;

const WRAPPING_LABEL: &[u8] = b"tradewind transformed key wrapping 1";

/// The random id of a segment.
pub(super) type SegmentId = [u8; SEGMENT_ID_BYTES];

/// A secret that wraps data keys. Does not print its bytes.
#[derive(Clone)]
pub struct MasterKey([u8; KEY_BYTES]);

impl MasterKey {
    /// From the secret bytes.
    #[must_use]
    pub const fn new(secret: [u8; KEY_BYTES]) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// Named master keys.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    /// The name of the key that wraps the data keys of new objects; must be one of `keys`. `None`: nothing can be
    /// encrypted.
    pub current: Option<String>,
    /// All keys, by name; names have at most [`MAX_KEY_NAME_BYTES`]. Objects name the key that they need.
    pub keys: BTreeMap<String, MasterKey>,
}

/// A data key that encrypts the chunks of one segment.
pub(super) struct DataKey(LessSafeKey);

/// A data key in its stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrappedKey {
    /// The name of the master key.
    pub master: String,
    /// The data key, encrypted and authenticated.
    pub wrapped: [u8; WRAPPED_KEY_BYTES],
}

/// A new data key in both forms.
pub(super) struct NewDataKey {
    pub key: DataKey,
    pub wrapped: WrappedKey,
}

impl Keyring {
    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if the current key is missing or a name is too long.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(Reason::InvalidArgument, message));
        if let Some(name) = self.keys.keys().find(|name| name.is_empty() || name.len() > MAX_KEY_NAME_BYTES) {
            return invalid(format!("the name of key {name:?} must have 1 to {MAX_KEY_NAME_BYTES} bytes"));
        }
        match &self.current {
            Some(name) if !self.keys.contains_key(name) => invalid(format!("there is no key {name:?}")),
            _ => Ok(()),
        }
    }

    /// Creates the data key of a segment, wrapped by the current master key.
    pub(super) fn create(&self, id: &SegmentId) -> Result<NewDataKey> {
        let secret: [u8; KEY_BYTES] = random()?;
        Ok(NewDataKey { key: DataKey::new(&secret)?, wrapped: self.wrap(&secret, id)? })
    }

    /// Wraps a data key by the current master key. A segment has one data key, so that a derived key never encrypts two
    /// different ones.
    fn wrap(&self, secret: &[u8; KEY_BYTES], id: &SegmentId) -> Result<WrappedKey> {
        let master = self.current.as_ref().and_then(|name| self.keys.get_key_value(name));
        let (name, master) =
            master.ok_or_else(|| Error::new(Reason::Defect, "an object must be encrypted without a key"))?;
        let mut wrapped = [0; WRAPPED_KEY_BYTES];
        let (text, tag) = wrapped.split_at_mut(KEY_BYTES);
        text.copy_from_slice(secret);
        let sealed = wrapping_key(master, id)?.seal_in_place_separate_tag(first_nonce(), Aad::empty(), text);
        tag.copy_from_slice(sealed.map_err(|_| defect("a key cannot be wrapped"))?.as_ref());
        Ok(WrappedKey { master: name.clone(), wrapped })
    }

    /// The data key, wrapped by the current master key; `None` if that has wrapped it. Fails as
    /// [`unwrap`](Self::unwrap).
    pub(super) fn rewrap(
        &self,
        wrapped: &WrappedKey,
        id: &SegmentId,
        key: &str,
    ) -> Result<Option<WrappedKey>> {
        if self.current.as_ref() == Some(&wrapped.master) {
            return Ok(None);
        }
        self.wrap(&self.open(wrapped, id, key)?, id).map(Some)
    }

    /// Unwraps the data key of a segment of the object `key`. Fails with [`AccessDenied`](Reason::AccessDenied) if
    /// the master key is missing, and with [`CorruptData`](Reason::CorruptData) if it is another one.
    pub(super) fn unwrap(&self, wrapped: &WrappedKey, id: &SegmentId, key: &str) -> Result<DataKey> {
        DataKey::new(&self.open(wrapped, id, key)?)
    }

    fn open(&self, wrapped: &WrappedKey, id: &SegmentId, key: &str) -> Result<[u8; KEY_BYTES]> {
        let name = &wrapped.master;
        let Some(master) = self.keys.get(name) else {
            let message =
                format!("object {key:?} is encrypted with the key {name:?}, which is not in the settings");
            return Err(Error::new(Reason::AccessDenied, message));
        };
        let mut secret = wrapped.wrapped;
        let opened = wrapping_key(master, id)?.open_in_place(first_nonce(), Aad::empty(), &mut secret);
        let secret = opened.map_err(|_| {
            let message = format!(
                "object {key:?} cannot be decrypted: the key {name:?} is not the one that encrypted it, or its record \
                 is damaged"
            );
            Error::new(Reason::CorruptData, message)
        })?;
        <[u8; KEY_BYTES]>::try_from(&*secret).map_err(|_| defect("a key has the wrong length"))
    }
}

impl DataKey {
    fn new(secret: &[u8]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, secret).map_err(|_| defect("a key has the wrong length"))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Encrypts a chunk in place and returns its tag.
    pub fn seal(&self, number: u64, associated: &[u8], chunk: &mut [u8]) -> Result<[u8; TAG_BYTES]> {
        let sealed = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(associated), chunk);
        let tag = sealed.map_err(|_| defect("a chunk cannot be encrypted"))?;
        tag.as_ref().try_into().map_err(|_| defect("a tag has the wrong length"))
    }

    /// Decrypts a chunk with its tag in place. Returns the plain bytes; `None` if they are not authentic.
    pub fn open<'a>(&self, number: u64, associated: &[u8], chunk: &'a mut [u8]) -> Option<&'a mut [u8]> {
        self.0.open_in_place(nonce(number), Aad::from(associated), chunk).ok()
    }
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::new(Reason::Io, "the system has no random numbers"))?;
    Ok(bytes)
}

fn wrapping_key(master: &MasterKey, id: &SegmentId) -> Result<LessSafeKey> {
    let derived = Salt::new(HKDF_SHA256, id).extract(&master.0);
    let derived = derived.expand(&[WRAPPING_LABEL], &AES_256_GCM);
    let key = derived.map_err(|_| defect("a key cannot be derived"))?;
    Ok(LessSafeKey::new(UnboundKey::from(key)))
}

/// The nonce of a chunk. A data key encrypts each number once.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn first_nonce() -> Nonce {
    nonce(0)
}

fn defect(what: &str) -> Error {
    Error::new(Reason::Defect, what)
}
