//! The layer `transformed` and its keys, which are read from their files here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tradewind_core::ObjectStore;
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{KEY_BYTES, Keyring, MasterKey, TransformPolicy};

use crate::settings::{KeySource, TransformedSettings};

/// Puts the layer on a store. Fails if a key cannot be read.
pub(super) fn transform(
    set: &TransformedSettings,
    below: Arc<dyn ObjectStore>,
) -> anyhow::Result<Arc<Transformed>> {
    let mut keys = Keyring { current: set.key.as_ref().map(|key| key.value.clone()), ..Keyring::default() };
    for (name, key) in &set.keys {
        let read =
            read_key(&key.value).with_context(|| format!("{}: cannot read the key {name:?}", key.source));
        keys.keys.insert(name.clone(), read?);
    }
    let policy = TransformPolicy { compress: set.compress.set(), encrypt: set.encrypt.set() };
    let layer = Transformed::new(below, policy, keys);
    layer.with_context(|| format!("{}: the layer cannot be opened", set.source))
}

fn read_key(source: &KeySource) -> anyhow::Result<MasterKey> {
    match source {
        KeySource::File(path) => {
            let text = read_private_file(path).with_context(|| format!("key file {}", path.display()))?;
            parse_key(&text).with_context(|| format!("key file {}", path.display()))
        }
        KeySource::Environment { name, value } => {
            parse_key(value.reveal()).with_context(|| format!("environment variable {name}"))
        }
    }
}

/// Reads a file that no other user may read.
fn read_private_file(path: &Path) -> anyhow::Result<String> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!(
            "it can be read by other users (mode {:o}); run chmod 600 on it, and replace the key if it may have been read",
            mode & 0o777
        );
    }
    Ok(fs::read_to_string(path)?)
}

/// A key in hexadecimal or Base64. Errors do not quote it.
fn parse_key(text: &str) -> anyhow::Result<MasterKey> {
    let text = text.trim();
    let bytes = match text.len() {
        64 => hex::decode(text).ok(),
        _ => BASE64.decode(text).ok(),
    };
    let secret = bytes.and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
    secret.map(MasterKey::new).with_context(|| {
        format!(
            "it must be {KEY_BYTES} bytes in hexadecimal or Base64, as printed by: openssl rand -base64 32"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_32_bytes_in_hexadecimal_or_base64() {
        let good = ["00".repeat(32), format!(" {}\n", "Ab".repeat(32)), BASE64.encode([7; 32])];
        for text in good {
            parse_key(&text).unwrap();
        }
        for text in [String::new(), "00".repeat(31), "0g".repeat(32), BASE64.encode([7; 31]), "x".repeat(44)]
        {
            let error = parse_key(&text).unwrap_err().to_string();
            assert!(error.starts_with("it must be 32 bytes") && !error.contains("xxx"), "{error}");
        }
    }

    #[test]
    fn key_file_that_others_can_read_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "00".repeat(32)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", read_key(&KeySource::File(path.clone())).unwrap_err());
        assert!(error.contains("can be read by other users (mode 640)"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        read_key(&KeySource::File(path)).unwrap();
    }
}
