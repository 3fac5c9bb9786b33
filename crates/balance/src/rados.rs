//! Connections to the cluster within this process, by librados. A command takes about a millisecond of CPU, one of the
//! process `ceph` about 100.
//!
//! Calls of librados block for as long as no daemon responds. They run on a thread of their own, and the caller waits with
//! a deadline. A call that is late keeps the thread: the next one waits for its end first, so that a late change never
//! follows a newer one. The manager has a connection of its own: without a manager, the monitors still restore affinities.

mod library;
mod link;

use std::time::Duration;

use serde_json::{Value, json};

use self::library::{Connection, Failure, Target, errno_name};
use self::link::Link;
use crate::ceph_process::CephOptions;
use crate::error::{Error, Result};

pub use self::library::exit_now;
pub use self::link::has_abandoned_call;

type Response = std::result::Result<Vec<u8>, Failure>;

/// The connections to a cluster.
#[derive(Debug)]
pub(crate) struct Rados {
    monitors: Link,
    /// The connection to the manager, from its first command.
    manager: Option<Link>,
    options: CephOptions,
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The library cannot be used here, or rejects the configuration. The command `ceph` may work.
    Unusable(String),
    /// No monitor responds.
    Unreachable,
}

impl Rados {
    /// Connects to the monitors. Takes up to the timeout of the options.
    pub fn connect(options: &CephOptions) -> std::result::Result<Self, ConnectError> {
        let monitors = connect(options, Target::Monitors)?;
        Ok(Self { monitors, manager: None, options: options.clone() })
    }

    /// Runs a command and returns its output. A command without a response in time may still be carried out later.
    pub fn run(&mut self, words: &[&str]) -> Result<Vec<u8>> {
        let shown = words.join(" ");
        let link = match (target(words), &mut self.manager) {
            (Target::Monitors, _) => &mut self.monitors,
            (Target::Manager, Some(manager)) => manager,
            (Target::Manager, manager) => {
                let connected = connect(&self.options, Target::Manager);
                manager.insert(connected.map_err(|e| match e {
                    ConnectError::Unreachable => {
                        Error::Timeout { command: shown.clone(), timeout: self.options.timeout }
                    }
                    ConnectError::Unusable(output) => Error::Ended { output },
                })?)
            }
        };
        link.run(&shown, command(words).to_string())
    }
}

fn connect(options: &CephOptions, target: Target) -> std::result::Result<Link, ConnectError> {
    let timeout = options.timeout;
    let options = options.clone();
    Link::start(timeout, move || {
        let connection = open(&options, target)?;
        Ok(move |command: &str| connection.command(target, command))
    })
}

fn open(options: &CephOptions, target: Target) -> std::result::Result<Connection, ConnectError> {
    let user = options.id.as_deref().unwrap_or("admin");
    let connection = Connection::create(user, options.config.as_deref()).map_err(ConnectError::Unusable)?;
    for (option, value) in settings(target, options.timeout) {
        connection.set(option, &value).map_err(ConnectError::Unusable)?;
    }
    match connection.connect() {
        Ok(()) => Ok(connection),
        Err(failure) if failure.errno == libc::ETIMEDOUT => Err(ConnectError::Unreachable),
        Err(failure) => Err(ConnectError::Unusable(format!("cannot connect: {}", errno_name(failure.errno)))),
    }
}

/// The options of the library. They override the configuration file and the monitors' configuration.
fn settings(target: Target, timeout: Duration) -> [(&'static str, String); 4] {
    let seconds = timeout.as_secs().max(1).to_string();
    let command_seconds = match target {
        // The library cancels a late command, and does not send it again to the next monitor.
        Target::Monitors => seconds.clone(),
        // The library would return without a cancellation, and write a later response to memory that is not valid then.
        Target::Manager => "0".to_owned(),
    };
    [
        ("client_mount_timeout", seconds),
        ("rados_mon_op_timeout", command_seconds),
        // Errors are returned: the library need not print them, too.
        ("log_to_stderr", "false".to_owned()),
        ("err_to_stderr", "false".to_owned()),
    ]
}

/// The manager has the statistics of placement groups, the monitors have all else.
fn target(words: &[&str]) -> Target {
    if words.first() == Some(&"pg") { Target::Manager } else { Target::Monitors }
}

/// A command of the shell as the JSON object that monitors understand.
fn command(words: &[&str]) -> Value {
    match *words {
        ["osd", "primary-affinity", osd, affinity] => {
            // Numbers, not text: the monitors convert neither. They reject a value that is no number.
            let id: Option<u32> = osd.strip_prefix("osd.").and_then(|id| id.parse().ok());
            let weight: Option<f64> = affinity.parse().ok();
            json!({"prefix": "osd primary-affinity", "id": id, "weight": weight})
        }
        ["config-key", "set", key, value] => json!({"prefix": "config-key set", "key": key, "val": value}),
        ["config-key", verb, key] => json!({"prefix": format!("config-key {verb}"), "key": key}),
        _ => json!({"prefix": words.join(" "), "format": "json"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_names_of_their_parameters() {
        let affinity = json!({"prefix": "osd primary-affinity", "id": 3, "weight": 0.515_625});
        assert_eq!(command(&["osd", "primary-affinity", "osd.3", "0.515625"]), affinity);
        let get = json!({"prefix": "config-key get", "key": "a/b"});
        assert_eq!(command(&["config-key", "get", "a/b"]), get);
        let set = json!({"prefix": "config-key set", "key": "a/b", "val": "{\"x\":\"'\"}"});
        assert_eq!(command(&["config-key", "set", "a/b", "{\"x\":\"'\"}"]), set);
        assert_eq!(command(&["osd", "dump"]), json!({"prefix": "osd dump", "format": "json"}));
        assert_eq!(target(&["pg", "dump"]), Target::Manager);
        assert_eq!(target(&["osd", "dump"]), Target::Monitors);
    }

    #[test]
    fn hanging_manager_does_not_delay_the_monitors() {
        let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
        let hang = move || {
            Ok(move |_: &str| {
                let _ = released.recv();
                Ok(Vec::new())
            })
        };
        let respond = || Ok(|_: &str| Ok(b"{}".to_vec()));
        let mut rados = Rados {
            monitors: Link::start(Duration::from_secs(60), respond).unwrap(),
            manager: Some(Link::start(Duration::ZERO, hang).unwrap()),
            options: CephOptions::default(),
        };
        for _ in 0..2 {
            assert!(matches!(rados.run(&["pg", "dump"]), Err(Error::Timeout { .. })));
            assert_eq!(rados.run(&["osd", "dump"]).unwrap(), b"{}");
        }
        release.send(()).unwrap();
    }

    #[test]
    fn late_commands_are_cancelled_at_monitors_only() {
        let timeout_of = |target| {
            let settings = settings(target, Duration::from_secs(15));
            settings.into_iter().find(|(option, _)| *option == "rados_mon_op_timeout").unwrap().1
        };
        assert_eq!(timeout_of(Target::Monitors), "15");
        assert_eq!(timeout_of(Target::Manager), "0");
    }

    #[test]
    fn missing_configuration_is_left_to_the_command_ceph() {
        let config = Some("/nonexistent/ceph.conf".into());
        let options = CephOptions { config, ..CephOptions::default() };
        let error = Rados::connect(&options).unwrap_err();
        assert!(matches!(error, ConnectError::Unusable(_)), "{error:?}");
    }
}
