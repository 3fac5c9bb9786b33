//! The root key, created at the first start. It is stored in the data directory with mode 0600, as the two variables
//! that S3 clients read, so that a shell only needs `export $(cat DIR/root-key)`.
//!
//! The file is created atomically: it is written under another name, synced and renamed, then the directory is synced.
//!
//! With a local store in the same directory, the store's lock excludes a second start. Otherwise two first starts may
//! race: one key is saved, and the other start fails or uses a key that is not saved.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};

use crate::settings::Secret;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "root-key";

const ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
/// Letters that need no quoting anywhere a key is pasted.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// A root key.
#[derive(Debug)]
pub struct RootCredentials {
    /// The public half.
    pub id: String,
    /// The secret half.
    pub secret: Secret,
    /// It was created by this call, so it must be printed now.
    pub is_new: bool,
}

/// Reads the key in `directory`, or creates one. Fails if other users can read the file.
pub fn load_or_create(directory: &Path) -> anyhow::Result<RootCredentials> {
    if let Some(saved) = load(directory)? {
        return Ok(saved);
    }
    let id = format!("TW{}", random_text(18)?);
    let secret = random_text(40)?;
    let text = format!("{ID}={id}\n{SECRET}={secret}\n");
    write_atomically(directory, &directory.join(FILE_NAME), &text)
        .with_context(|| format!("cannot store the root key in {}", directory.display()))?;
    Ok(RootCredentials { id, secret: Secret::new(secret), is_new: true })
}

/// Reads the key in `directory`; `None` if there is none. Fails if other users can read the file.
pub fn load(directory: &Path) -> anyhow::Result<Option<RootCredentials>> {
    let path = directory.join(FILE_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the root key in {}", path.display()));
        }
    };
    let (id, secret) = parse(&text).with_context(|| {
        format!("{} contains no valid key; restore it, or delete it to create a new key", path.display())
    })?;
    let mode = fs::metadata(&path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!(
            "{} can be read by other users (mode {:o}); run chmod 600 on it, and replace the key if it may have been \
             read",
            path.display(),
            mode & 0o777
        );
    }
    Ok(Some(RootCredentials { id, secret, is_new: false }))
}

fn parse(text: &str) -> anyhow::Result<(String, Secret)> {
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))
            .filter(|value| !value.is_empty())
            .with_context(|| format!("there is no line {name}=..."))
    };
    Ok((value(ID)?.to_owned(), Secret::new(value(SECRET)?)))
}

fn write_atomically(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let draft = directory.join(format!("{FILE_NAME}.new"));
    // A draft of an interrupted start may exist.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    // The mode at creation is subject to the umask, which can only take away; set it exactly.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(directory)?.sync_all()
}

fn random_text(length: usize) -> anyhow::Result<String> {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow!("the system's random number generator failed: {error}"))?;
    Ok(bytes.into_iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_created_once_with_mode_0600() {
        let directory = tempfile::tempdir().unwrap();
        assert!(load(directory.path()).unwrap().is_none(), "only load_or_create creates one");
        let made = load_or_create(directory.path()).unwrap();
        assert!(made.is_new && made.id.len() == 20 && made.secret.reveal().len() == 40);
        let path = directory.path().join(FILE_NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let loaded = load_or_create(directory.path()).unwrap();
        assert!(!loaded.is_new && loaded.id == made.id && loaded.secret == made.secret);
        assert_eq!(load(directory.path()).unwrap().map(|loaded| loaded.id), Some(made.id));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn invalid_or_readable_key_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        fs::write(&path, "nothing\n").unwrap();
        assert!(load_or_create(directory.path()).unwrap_err().to_string().contains("contains no valid key"));
        fs::remove_file(&path).unwrap();
        load_or_create(directory.path()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = load_or_create(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("mode 644"), "{refused}");
    }
}
