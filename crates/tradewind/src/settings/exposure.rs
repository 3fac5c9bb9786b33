//! Detects exposed secrets: a settings file with secrets, or a TLS key, that other users can access. The server only
//! warns, because access to a file may be restricted by more than its mode.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{SettingSource, Settings};

impl Settings {
    /// Files that contain a secret and are accessible to users other than the owner, with their modes.
    #[must_use]
    pub fn exposed_files(&self) -> Vec<(PathBuf, u32)> {
        let others_mode = |path: &Path| {
            let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
            (mode & 0o077 != 0).then_some(mode)
        };
        let secret_files = self.secret_files();
        secret_files.into_iter().filter_map(|path| Some((path.to_owned(), others_mode(path)?))).collect()
    }

    fn secret_files(&self) -> BTreeSet<&Path> {
        let root = self.root_key.iter().map(|key| &key.secret.source);
        let sources = root.chain(self.named.access_keys.iter().map(|key| &key.secret.source));
        let settings = sources.filter_map(|source| match source {
            SettingSource::File { path, .. } => Some(path.as_path()),
            _ => None,
        });
        settings.chain(self.scalars.server.tls_key.value.as_deref()).collect()
    }
}
