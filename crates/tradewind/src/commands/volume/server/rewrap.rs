//! `tradewind volume rewrap`: the rotation of master keys by a running server.

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value as Json, json};

use super::super::super::running_server::ServerFlags;
use super::super::super::transfer::block_on;
use super::super::super::{CommandOutcome, UsageError};
use super::{ObjectPrefix, follow_lines, number, volume_of, volume_path};

/// Wrap the data keys of encrypted objects by the current key of their volume
///
/// For the rotation of keys: afterwards, the objects no longer need the older keys. Their bytes are not written again.
/// Versions and unfinished uploads are included. The last lines say how many objects and uploads need which key, and which
/// keys none of a volume needs. It can be stopped and repeated. Exit status 1 means that an object cannot be rewrapped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume rewrap --config tradewind.toml\n  \
    tradewind volume rewrap mail/2026/ --config tradewind.toml --json")]
pub(in super::super::super) struct Rewrap {
    /// Bucket, and the beginning of the keys [default: all buckets of all volumes that encrypt]
    #[arg(value_name = "BUCKET[/PREFIX]")]
    objects: Option<ObjectPrefix>,
    #[command(flatten)]
    server: ServerFlags,
}

pub(in super::super::super) fn rewrap(arguments: Rewrap) -> anyhow::Result<CommandOutcome> {
    let Rewrap { objects, server: flags } = arguments;
    let server = flags.find()?;
    block_on(async move {
        let volumes = server.read("/v1/volumes").await?;
        let names = match &objects {
            Some(objects) => {
                vec![volume_of(&volumes, &objects.bucket).context("the server reports no volume")?]
            }
            None => encrypting_volumes(&volumes),
        };
        if names.is_empty() {
            let message = "no volume of the server has the layer \"transformed\" with a key".to_owned();
            return Err(UsageError(message).into());
        }
        let body = objects.as_ref().map_or_else(|| json!({}), ObjectPrefix::to_json);
        let mut outcome = CommandOutcome::Done;
        for name in names {
            let path = volume_path(name, "rewrap");
            let lines = server.client.start(&path, &body).await.map_err(|error| server.explain(error))?;
            let done = follow_lines(&flags, &server, lines, |counts| counts_text(name, counts)).await?;
            if number(&done, "failed") > 0 || needs_older_keys(&done) {
                outcome = CommandOutcome::FoundProblems;
            }
        }
        Ok(outcome)
    })
}

/// The names of the volumes with a key for new objects.
fn encrypting_volumes(volumes: &Json) -> Vec<&str> {
    let all = volumes["volumes"].as_array().into_iter().flatten();
    let encrypting = all.filter(|volume| volume["transformed"]["key"].is_string());
    encrypting.filter_map(|volume| volume["name"].as_str()).collect()
}

fn needs_older_keys(done: &Json) -> bool {
    let mut needed = done["needed_keys"].as_object().into_iter().flatten();
    needed.any(|(key, _)| done["key"] != key.as_str())
}

/// The counts in words: one line, and at the end a line for each key.
fn counts_text(volume: &str, counts: &Json) -> String {
    let (rewrapped, objects) = (number(counts, "rewrapped"), number(counts, "objects"));
    let uploads = number(counts, "uploads");
    let mut text = format!("{volume}: rewrapped {rewrapped} of {objects} objects");
    if uploads > 0 {
        text += &format!(" and {uploads} uploads");
    }
    if number(counts, "failed") > 0 {
        text += &format!("; {} failed", number(counts, "failed"));
    }
    for (key, needed) in counts["needed_keys"].as_object().into_iter().flatten() {
        let current = if counts["key"] == key.as_str() { " (current)" } else { "" };
        text += &format!("\n  key {key:?}{current}: needed by {needed}");
    }
    for key in counts["unneeded_keys"].as_array().into_iter().flatten() {
        text += &format!("\n  key {key}: not needed, remove it from the settings");
    }
    text
}

/// The line of `volume status` about the keys of a volume; empty without any.
pub(super) fn keys_text(transformed: &Json) -> String {
    let names = transformed["keys"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let named = |name: &str| match transformed["key"] == name {
        true => format!("{name} (current)"),
        false => name.to_owned(),
    };
    let names: Vec<String> = names.map(named).collect();
    if names.is_empty() { String::new() } else { format!("keys     {}\n", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_name_keys_that_are_needed_and_not() {
        let done = json!({
            "key": "new", "objects": 7, "uploads": 1, "rewrapped": 4, "failed": 1,
            "needed_keys": { "lost": 1, "new": 5 }, "unneeded_keys": ["old"],
        });
        let expected = "v: rewrapped 4 of 7 objects and 1 uploads; 1 failed\n  key \"lost\": needed by 1\n  \
                        key \"new\" (current): needed by 5\n  key \"old\": not needed, remove it from the settings";
        assert_eq!(counts_text("v", &done), expected);
        assert!(needs_older_keys(&done));
        assert_eq!(counts_text("v", &json!({ "objects": 2, "rewrapped": 1 })), "v: rewrapped 1 of 2 objects");
    }

    #[test]
    fn keys_are_shown_with_the_current_one() {
        assert_eq!(keys_text(&json!({ "key": "b", "keys": ["a", "b"] })), "keys     a, b (current)\n");
        assert_eq!(keys_text(&Json::Null), "");
        let volumes = json!({ "volumes": [
            { "name": "v", "transformed": { "key": "b", "keys": ["b"] } },
            { "name": "w", "transformed": null },
            { "name": "x", "transformed": { "key": null, "keys": [] } },
        ]});
        assert_eq!(encrypting_volumes(&volumes), ["v"]);
    }
}
