//! `tradewind class policy | reload`: the policies of classes in a [running server](RunningServer).

use std::io::{self, Write as _};
use std::str::FromStr;

use clap::Args;
use serde_json::{Map, Value as Json, json};

use super::super::running_server::{RunningServer, ServerFlags};
use super::super::terminal::{Names, print_error_line, printable_json};
use super::super::transfer::block_on;
use super::super::{CommandOutcome, UsageError};
use crate::settings::nearest_name;

/// The keys of a class, in the order of the output.
const KEYS: [&str; 9] =
    ["name", "priority", "occupancy", "write", "pin", "share", "compress", "encrypt", "tier"];

/// Show or change the policies of classes in a running server
///
/// Without CLASS, lists all classes with the policies in force; with CLASS, shows one; with KEY=VALUE, changes it at once. A
/// change lasts until the next reload or restart of the server, which read its settings file; to keep it, write it to
/// [class.N] there. An asterisk marks what differs from the settings. Keys: name, priority, occupancy, write, pin, share,
/// compress and encrypt, with the values of the settings. KEY= without a value returns to that of the settings. If one
/// value is wrong, nothing changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind class policy --config tradewind.toml\n  \
    tradewind class policy mail --config tradewind.toml\n  \
    tradewind class policy 25 priority=2 pin=true --config tradewind.toml\n  \
    tradewind class policy 31 occupancy=10% write=through --config tradewind.toml\n  \
    tradewind class policy 25 pin= --config tradewind.toml\n  \
    tradewind class policy --admin 127.0.0.1:9001 --data ./data --json")]
pub(in super::super) struct Policy {
    /// Class, 0 to 31 or a name [default: all]
    #[arg(value_name = "CLASS")]
    class: Option<String>,
    /// Policy to change, such as priority=2
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    #[command(flatten)]
    server: ServerFlags,
}

/// Read the policies and rules of classes in the settings file of a running server again
///
/// Like SIGHUP, and prints the outcome. If the file has a problem, the old settings stay. Changes by class policy
/// end. Other settings need a restart. The file is the one on the server's machine that the server was started with.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind class reload --config tradewind.toml\n  \
    tradewind class reload --admin 127.0.0.1:9001 --data ./data --json")]
pub(in super::super) struct Reload {
    #[command(flatten)]
    server: ServerFlags,
}

/// A change of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    key: String,
    value: Json,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("{text:?} is not KEY=VALUE; write for example priority=2"))?;
        let value = match value {
            "" => Json::Null,
            _ if key == "name" => json!(value),
            "true" => json!(true),
            "false" => json!(false),
            _ => value.parse::<i64>().map_or_else(|_| json!(value), |number| json!(number)),
        };
        Ok(Self { key: key.to_owned(), value })
    }
}

pub(in super::super) fn policy(arguments: Policy) -> anyhow::Result<CommandOutcome> {
    let Policy { class, changes, server: flags } = arguments;
    if let Some(class) = class.as_ref().filter(|class| class.contains('=')) {
        let message = format!("{class:?} follows the class: tradewind class policy 25 {class}");
        return Err(UsageError(message).into());
    }
    let body = body_of(changes)?;
    let server = flags.find()?;
    block_on(async move {
        let all = server.read("/v1/classes").await?;
        let shown = match &class {
            None => all,
            Some(class) => {
                let entry = find_entry(&all, class)?;
                if body.is_empty() { entry.clone() } else { change(&server, entry, body).await? }
            }
        };
        let mut stdout = io::stdout().lock();
        match (flags.json, shown["classes"].as_array()) {
            (true, _) => writeln!(stdout, "{}", printable_json(&format!("{shown:#}")))?,
            (false, Some(entries)) => write!(stdout, "{}", table(entries))?,
            (false, None) => write!(stdout, "{}", lines(&shown))?,
        }
        Ok(CommandOutcome::Done)
    })
}

/// The body of the call.
///
/// # Errors
/// [`UsageError`] if a key is given twice.
fn body_of(changes: Vec<Change>) -> Result<Map<String, Json>, UsageError> {
    let mut body = Map::new();
    for Change { key, value } in changes {
        if body.contains_key(&key) {
            return Err(UsageError(format!("{key} is given twice")));
        }
        body.insert(key, value);
    }
    Ok(body)
}

async fn change(server: &RunningServer, entry: &Json, body: Map<String, Json>) -> anyhow::Result<Json> {
    let path = format!("/v1/classes/{}", entry["class"]);
    let changed = server.change(&path, &Json::Object(body)).await?;
    for note in changed["notes"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        print_error_line(format!("tradewind: {note}"))?;
    }
    Ok(changed)
}

/// The entry of a class, by number or by a name that the server knows.
///
/// # Errors
/// [`UsageError`] if there is no such class.
fn find_entry<'a>(all: &'a Json, class: &str) -> Result<&'a Json, UsageError> {
    let entries = all["classes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |entry: &'a Json| entry["name"].as_str();
    let is_meant = |entry: &&Json| {
        entry["class"].as_u64().map(|number| number.to_string()).as_deref() == Some(class)
            || entry["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(class))
    };
    let own = entries.iter().find(is_meant);
    let by_default_name = || {
        let number = tradewind_model::class_policy::class_by_name(class)?.value();
        entries.iter().find(|entry| entry["class"] == number)
    };
    own.or_else(by_default_name).ok_or_else(|| {
        let near = nearest_name(class, entries.iter().filter_map(name));
        let help = near.map_or_else(
            || "classes are 0 to 31, or names of tradewind class policy".to_owned(),
            |near| format!("did you mean {near:?}?"),
        );
        UsageError(format!("there is no class {class:?}; {help}"))
    })
}

/// A value as printed. An asterisk marks one that differs from the settings.
fn value_text(entry: &Json, key: &str) -> String {
    let shown = match &entry[key] {
        Json::Null => "-".to_owned(),
        Json::String(text) => Names::for_stdout().show(text).into_owned(),
        Json::Bool(true) => "yes".to_owned(),
        Json::Bool(false) => "no".to_owned(),
        _ if key == "priority" && entry["by_reuse"] == true => "by reuse".to_owned(),
        other => other.to_string(),
    };
    if entry["overridden"].get(key).is_some() { shown + "*" } else { shown }
}

/// All classes, a line for each.
fn table(entries: &[Json]) -> String {
    let head = std::iter::once("class").chain(KEYS).map(str::to_owned).collect();
    let row = |entry: &Json| {
        let values = KEYS.iter().map(|key| value_text(entry, key));
        std::iter::once(entry["class"].to_string()).chain(values).collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(entries.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=KEYS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<String>>().join("  ").trim_end();
        text.push('\n');
    }
    let is_overridden =
        |entry: &Json| entry["overridden"].as_object().is_some_and(|overridden| !overridden.is_empty());
    if entries.iter().any(is_overridden) {
        text += "* differs from the settings, until the next reload or restart\n";
    }
    text
}

/// One class, a line for each key.
fn lines(entry: &Json) -> String {
    let mut text = format!("class      {}\n", entry["class"]);
    for key in KEYS {
        let in_settings = match entry["overridden"].get(key) {
            None => String::new(),
            Some(Json::Null) => " (not set in the settings)".to_owned(),
            Some(Json::String(value)) => format!(" (settings: {})", Names::for_stdout().show(value)),
            Some(value) => format!(" (settings: {value})"),
        };
        text += &format!("{key:9}  {}{in_settings}\n", value_text(entry, key));
    }
    if let Some(lasts) = entry["lasts"].as_str() {
        text += &format!("lasts      {lasts}\n");
    }
    text
}

pub(in super::super) fn reload(arguments: &Reload) -> anyhow::Result<CommandOutcome> {
    let server = arguments.server.find()?;
    block_on(async move {
        let reloaded = server.change("/v1/reload", &json!({})).await?;
        let mut stdout = io::stdout().lock();
        match arguments.server.json {
            true => writeln!(stdout, "{}", printable_json(&format!("{reloaded:#}")))?,
            false => write!(stdout, "{}", reload_text(&reloaded))?,
        }
        Ok(CommandOutcome::Done)
    })
}

/// The outcome of a reload in words.
fn reload_text(reloaded: &Json) -> String {
    let numbers = |key: &str| -> Vec<String> {
        reloaded[key].as_array().into_iter().flatten().map(Json::to_string).collect()
    };
    let classes = numbers("classes");
    let classes = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
    let mut text =
        format!("reloaded   classes with a policy: {classes}; rules: {}\n", reloaded["class_rules"]);
    let ended = numbers("ended_overrides");
    if !ended.is_empty() {
        text += &format!("ended      changes of the classes {}\n", ended.join(", "));
    }
    if reloaded["restart_needed"] == true {
        text += "restart    other settings have changed; they take effect at a restart\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_a_key_and_a_value_of_its_type() {
        let parsed = |text: &str| text.parse::<Change>().map(|change| (change.key, change.value));
        for (text, value) in [
            ("priority=2", json!(2)),
            ("pin=true", json!(true)),
            ("pin=false", json!(false)),
            ("occupancy=20%", json!("20%")),
            ("write=through", json!("through")),
            ("name=true", json!("true")),
            ("name=a=b", json!("a=b")),
            ("pin=", Json::Null),
        ] {
            let key = text.split_once('=').unwrap().0.to_owned();
            assert_eq!(parsed(text), Ok((key, value)), "{text}");
        }
        for text in ["", "pin", "=2", "="] {
            assert!(parsed(text).unwrap_err().contains("is not KEY=VALUE"), "{text}");
        }
    }

    #[test]
    fn class_is_found_by_number_by_name_and_by_default_name() {
        let all = json!({ "classes": [{ "class": 2, "name": null }, { "class": 25, "name": "mail" }] });
        let number = |text: &str| find_entry(&all, text).map(|entry| entry["class"].as_u64());
        for (text, expected) in [("2", 2), ("25", 25), ("MAIL", 25), ("files", 25)] {
            assert_eq!(number(text).unwrap(), Some(expected), "{text}");
        }
        for (text, help) in
            [("32", "0 to 31"), ("-1", "0 to 31"), ("", "no class \"\""), ("mial", "\"mail\"?")]
        {
            let failed = number(text).unwrap_err();
            assert!(failed.0.contains(help), "{text}: {}", failed.0);
        }
    }

    #[test]
    fn overridden_values_are_marked() {
        let entry = json!({
            "class": 12, "name": "size-16k", "priority": 1, "by_reuse": true, "occupancy": "10%", "pin": true,
            "overridden": { "occupancy": null, "pin": false },
        });
        let one = lines(&entry);
        for line in [
            "class      12",
            "priority   by reuse",
            "occupancy  10%* (not set in the settings)",
            "pin        yes* (settings: false)",
            "encrypt    -",
        ] {
            assert!(one.lines().any(|shown| shown == line), "{line}: {one}");
        }
        let all = table(&[entry]);
        assert!(all.ends_with("* differs from the settings, until the next reload or restart\n"), "{all}");
        let plain = table(&[json!({ "class": 1, "overridden": {} })]);
        assert!(plain.starts_with("class  name") && !plain.contains('*'), "{plain}");
    }
}
