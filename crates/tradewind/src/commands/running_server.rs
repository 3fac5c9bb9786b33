//! The running server that a command asks through its admin API. Address and root key are those of the settings, which
//! flags and environment override.

use std::io;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use http::StatusCode;
use serde_json::Value as Json;

use super::UsageError;
use crate::admin_client::{AdminClient, AdminError};
use crate::root_key;
use crate::settings::{FlagValue, Inputs, Settings};

/// Flags of the commands that ask a server.
#[derive(Debug, Args)]
pub(super) struct ServerFlags {
    /// Settings file of the server (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of the root key [default: that of the settings]
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Address and port of the admin listener [default: that of the settings, 127.0.0.1:9001]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The server that the flags and settings describe.
pub(super) struct RunningServer {
    pub client: AdminClient,
    /// Where the root key is from.
    key_source: String,
}

impl ServerFlags {
    /// Reads the settings, and the root key that they lead to. No server is asked.
    ///
    /// # Errors
    /// Problems of the settings; a root key that cannot be found; [`UsageError`] if the address is not known.
    pub fn find(&self) -> anyhow::Result<RunningServer> {
        let flag = |setting, flag, value: &Option<String>| {
            value.clone().map(|value| FlagValue { setting, flag, value })
        };
        let given = [flag("data", "--data", &self.data), flag("server.admin", "--admin", &self.admin)];
        let inputs = Inputs::gather(self.config.clone(), given.into_iter().flatten().collect())?;
        let settings = Settings::read(&inputs)?;
        let address = settings.scalars.server.admin.value;
        if address.port() == 0 {
            let message = "the settings let the system choose the port of the admin listener; give the one that the \
                           server printed by --admin ADDR";
            return Err(UsageError(message.to_owned()).into());
        }
        let (id, secret, key_source) = match &settings.root_key {
            Some(key) => (key.id.value.clone(), key.secret.value.clone(), key.id.source.to_string()),
            None => {
                let directory = settings.data_directory();
                let path = directory.join(root_key::FILE_NAME).display().to_string();
                let key = root_key::load(directory)?.ok_or_else(|| {
                    anyhow!(
                        "there is no root key in {path}; name the directory of the server by --data or its settings by \
                         --config, or set TRADEWIND_ACCESS_KEY and TRADEWIND_SECRET_KEY"
                    )
                })?;
                (key.id, key.secret, path)
            }
        };
        let client = AdminClient::new(address, id, secret.reveal().to_owned());
        Ok(RunningServer { client, key_source })
    }
}

impl RunningServer {
    /// Reads the document of a path, which is encoded.
    ///
    /// # Errors
    /// The request fails, or the server responds with an error. The message has the remedy.
    pub async fn read(&self, path: &str) -> anyhow::Result<Json> {
        self.client.read(path).await.map_err(|error| self.explain(error))
    }

    /// Makes a change, and returns the document of the response.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn change(&self, path: &str, body: &Json) -> anyhow::Result<Json> {
        self.client.change(path, body).await.map_err(|error| self.explain(error))
    }

    /// Says what to do about an error.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let address = self.client.address();
        if let Some(denied) =
            error.downcast_ref::<AdminError>().filter(|error| error.status == StatusCode::FORBIDDEN)
        {
            let message = denied.message.trim_end_matches('.');
            return anyhow!(
                "the server at {address} rejects the root key from {}: {message}; give its own by --config, --data, or \
                 TRADEWIND_ACCESS_KEY and TRADEWIND_SECRET_KEY",
                self.key_source
            );
        }
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            return anyhow!(
                "no server has its admin listener at {address}; start one by tradewind serve, or give the address that \
                 it printed by --admin ADDR"
            );
        }
        if error.is::<AdminError>() { error } else { error.context(format!("the server at {address}")) }
    }
}
