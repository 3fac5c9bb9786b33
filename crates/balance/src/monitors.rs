//! The monitors of a cluster: by librados within this process, or by the command `ceph` where the library cannot be used.

use serde_json::Value;

use crate::ceph_process::{CephOptions, CephProcess};
use crate::error::{Error, Result};
use crate::rados::{ConnectError, Rados};

/// A connection to the cluster's monitors.
#[derive(Debug)]
pub struct Monitors {
    options: CephOptions,
    channel: Channel,
}

#[derive(Debug)]
enum Channel {
    Library(Rados),
    Process(CephProcess),
}

impl Monitors {
    /// Connects. Takes up to the timeout of the options. The log says why the library cannot be used, if it cannot.
    pub fn connect(options: CephOptions) -> Result<Self> {
        let _pending = options.activity.begin(&["connect"]);
        let channel = match Self::library(&options) {
            Ok(rados) => Channel::Library(rados),
            Err(ConnectError::Unreachable) => {
                return Err(Error::Timeout { command: "connect".to_owned(), timeout: options.timeout });
            }
            Err(ConnectError::Unusable(reason)) => {
                tracing::info!(reason, "the monitors are reached by the command ceph, not by librados");
                Channel::Process(CephProcess::start(options.clone())?)
            }
        };
        Ok(Self { options, channel })
    }

    fn library(options: &CephOptions) -> std::result::Result<Rados, ConnectError> {
        if options.uses_librados {
            Rados::connect(options)
        } else {
            Err(ConnectError::Unusable("switched off".to_owned()))
        }
    }

    /// The options that it was connected with.
    pub fn options(&self) -> &CephOptions {
        &self.options
    }

    /// True if commands run within this process, and cost milliseconds.
    pub fn is_in_process(&self) -> bool {
        matches!(self.channel, Channel::Library(_))
    }

    /// Runs a command with a JSON response.
    pub fn json(&mut self, words: &[&str]) -> Result<Value> {
        let _pending = self.options.activity.begin(words);
        match &mut self.channel {
            Channel::Library(rados) => {
                let output = rados.run(words)?;
                serde_json::from_slice(&output)
                    .map_err(|e| Error::Malformed { command: words.join(" "), message: e.to_string() })
            }
            Channel::Process(process) => process.json(words),
        }
    }

    /// Runs a command whose response does not matter. After a timeout, it is unknown whether the command took effect.
    pub fn run(&mut self, words: &[&str]) -> Result<()> {
        let _pending = self.options.activity.begin(words);
        match &mut self.channel {
            Channel::Library(rados) => rados.run(words).map(drop),
            Channel::Process(process) => process.run(words).map(drop),
        }
    }
}
