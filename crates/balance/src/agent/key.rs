//! Key pairs of balancers and agents, and the fingerprints by which they know each other.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::sign::SigningKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// Maximum size of a key file.
const MAX_FILE_BYTES: u64 = 16 << 10;
/// Permissions of a key file: only its owner may read it.
const FILE_MODE: u32 = 0o600;
const PREFIX: &str = "sha256:";

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or created.
    #[error("key file {path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// Others may read the file.
    #[error("key file {path} has permissions {mode:03o}: others can read or change it; run chmod 600 {path}")]
    Permissions {
        /// Its path.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// The file has no key.
    #[error("key file {path} has no Ed25519 key in PEM; create one with \"tradewind balance key FILE\"")]
    NoKey {
        /// Its path.
        path: String,
    },
    /// The system has no random numbers.
    #[error("no key can be generated: the system gives no random numbers")]
    Random,
}

/// The SHA-256 hash of a public key (its SubjectPublicKeyInfo). It is not secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

impl Fingerprint {
    /// That of a public key in DER.
    pub(super) fn new(public_key: &[u8]) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, public_key).as_ref());
        Self(hash)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix(PREFIX).ok_or_else(|| format!("must begin with {PREFIX:?}"))?;
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hex::decode_to_slice(digits, &mut hash)
            .map_err(|_| format!("must have {} hexadecimal digits", 2 * SHA256_OUTPUT_LEN))?;
        Ok(Self(hash))
    }
}

/// A key pair.
#[derive(Clone)]
pub struct Key {
    signing: Arc<dyn SigningKey>,
    public: Vec<u8>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.fingerprint())
    }
}

impl Key {
    /// Reads a key file. One that others may read is rejected.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let name = || path.display().to_string();
        let failed = |source| KeyError::File { path: name(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Permissions { path: name(), mode });
        }
        let mut pem = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut pem).map_err(failed)?;
        let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| KeyError::NoKey { path: name() })?;
        Self::from_pkcs8(&pkcs8).ok_or_else(|| KeyError::NoKey { path: name() })
    }

    /// Generates a key and writes it to a new file, with mode 0600. An existing file is never changed: that is an error of
    /// kind [`io::ErrorKind::AlreadyExists`].
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File { path: path.display().to_string(), source };
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        let key = Self::from_pkcs8(&PrivatePkcs8KeyDer::from(pkcs8.as_ref())).ok_or(KeyError::Random)?;
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(failed)?;
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            wrap(&STANDARD.encode(pkcs8.as_ref()))
        );
        if let Err(e) = file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()) {
            // An incomplete key would stand in the way of the next attempt. The first error is reported.
            let _ = std::fs::remove_file(path);
            return Err(failed(e));
        }
        Ok(key)
    }

    /// The fingerprint of its public half.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(&self.public)
    }

    pub(super) fn signing(&self) -> Arc<dyn SigningKey> {
        self.signing.clone()
    }

    /// The public key, in the place that certificates have in TLS (RFC 7250).
    pub(super) fn public(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.public.clone())
    }

    fn from_pkcs8(pkcs8: &PrivatePkcs8KeyDer<'_>) -> Option<Self> {
        let signing = any_eddsa_type(pkcs8).ok()?;
        let public = signing.public_key()?.as_ref().to_vec();
        Some(Self { signing, public })
    }

    #[cfg(test)]
    pub(super) fn generate() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::from_pkcs8(&PrivatePkcs8KeyDer::from(pkcs8.as_ref())).unwrap()
    }

    /// The public half of one key, with the private half of another.
    #[cfg(test)]
    pub(super) fn impostor(pretended: &Self, own: &Self) -> Self {
        Self { signing: own.signing.clone(), public: pretended.public.clone() }
    }
}

/// Lines of 64 characters, as PEM has them (RFC 7468).
fn wrap(base64: &str) -> String {
    let mut lines = String::new();
    for (index, character) in base64.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            lines.push('\n');
        }
        lines.push(character);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_key_is_private_and_read_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        let key = Key::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Key::read(&path).unwrap().fingerprint(), key.fingerprint());
        let before = std::fs::read(&path).unwrap();
        let error = Key::create(&path).unwrap_err();
        assert!(
            matches!(&error, KeyError::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }

    #[test]
    fn key_that_others_can_read_is_rejected() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        Key::create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Key::read(&path).unwrap_err();
        assert!(error.to_string().contains("has permissions 640"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "not a key").unwrap();
        assert!(matches!(Key::read(&path).unwrap_err(), KeyError::NoKey { .. }));
        let error = Key::read(&place.path().join("absent")).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }

    #[test]
    fn fingerprint_is_read_as_it_is_printed() {
        let fingerprint = Key::generate().fingerprint();
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        let text = fingerprint.to_string();
        for malformed in [&text[1..], &text[..text.len() - 1], "", "sha256:", &text.replace("sha256", "md5")]
        {
            assert!(malformed.parse::<Fingerprint>().is_err(), "{malformed}");
        }
    }
}
