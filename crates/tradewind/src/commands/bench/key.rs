//! The key that agents and the coordinator share, from a file or an environment variable. It is never printed.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tradewind_bench::cluster::Key;

use crate::commands::UsageError;

const KEY_VARIABLE: &str = "TRADEWIND_BENCH_KEY";
/// The limit of the size of a key file.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// Flags for the key.
#[derive(Debug, Args)]
pub(super) struct KeyFlags {
    /// File with the key shared by agents and coordinator, at least 16 bytes [default: TRADEWIND_BENCH_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyFlags {
    pub fn read(&self) -> anyhow::Result<Key> {
        let (source, secret) = match &self.key_file {
            Some(path) => (path.display().to_string(), read(path)?),
            None => {
                let secret = std::env::var_os(KEY_VARIABLE).filter(|value| !value.is_empty()).ok_or_else(|| {
                    let command = "openssl rand -hex 32 > key";
                    UsageError(format!(
                        "agents and the coordinator need a shared key: create one with `{command}`, and pass it with \
                         --key-file or in {KEY_VARIABLE}"
                    ))
                })?;
                (KEY_VARIABLE.to_owned(), secret.into_encoded_bytes())
            }
        };
        Key::new(secret.trim_ascii()).map_err(|reason| UsageError(format!("{source}: {reason}")).into())
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let mut secret = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read the key {shown}"))?;
    file.take(MAX_KEY_FILE_BYTES + 1)
        .read_to_end(&mut secret)
        .with_context(|| format!("cannot read the key {shown}"))?;
    if secret.len() as u64 > MAX_KEY_FILE_BYTES {
        return Err(
            UsageError(format!("{shown} has more than {MAX_KEY_FILE_BYTES} bytes: it is not a key")).into()
        );
    }
    Ok(secret)
}
