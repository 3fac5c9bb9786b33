//! JSON values in the cluster's `config-key` store, which the monitors keep.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::monitors::Monitors;

/// Reads a value; `None` if there is none.
pub(crate) fn load<T: DeserializeOwned>(ceph: &mut Monitors, key: &str) -> Result<Option<T>> {
    match ceph.json(&["config-key", "get", key]) {
        Ok(value) => parse(key, value).map(Some),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Parses a value that was read.
pub(crate) fn parse<T: DeserializeOwned>(key: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| malformed("get", key, &e))
}

/// Writes a value. The monitors have it when this returns.
pub(crate) fn save(ceph: &mut Monitors, key: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| malformed("set", key, &e))?;
    ceph.run(&["config-key", "set", key, &text])
}

/// Removes a value, if there is one.
pub(crate) fn remove(ceph: &mut Monitors, key: &str) -> Result<()> {
    match ceph.run(&["config-key", "rm", key]) {
        Err(e) if e.is_not_found() => Ok(()),
        removed => removed,
    }
}

fn malformed(command: &str, key: &str, error: &serde_json::Error) -> Error {
    Error::Malformed { command: format!("config-key {command} {key}"), message: error.to_string() }
}
