//! Access keys: the root key and the `[[access_key]]` list.

use tradewind_core::BucketName;

use super::Inputs;
use super::document::{Item, Table, Value as TomlValue};
use super::fields::Fields;
use super::problem::Problems;
use super::source::{SettingSource, Sourced};
use super::value::{Permissions, Secret, SettingValue};

const ROOT_ID_VARIABLE: &str = "TRADEWIND_ACCESS_KEY";
const ROOT_SECRET_VARIABLE: &str = "TRADEWIND_SECRET_KEY";

/// The root key, as set by the environment or `[root_key]`. It has all permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootKey {
    /// The public half.
    pub id: Sourced<String>,
    /// The secret half.
    pub secret: Sourced<Secret>,
}

impl RootKey {
    /// Reads the root key. The environment overrides the file.
    pub(super) fn read(root: &mut Table, inputs: &Inputs, problems: &mut Problems) -> Option<Self> {
        let from_file = root.take("root_key").and_then(|item| match item.value {
            TomlValue::Table(table) => read_root_table(Fields::new("root_key".to_owned(), table), problems),
            other => {
                problems
                    .add(&item.source, format!("root_key must be a table, [root_key], not {}", other.kind()));
                None
            }
        });
        let read = |name: &str| {
            let value = inputs.environment(name).filter(|text| !text.is_empty())?;
            Some(Sourced { value: value.to_owned(), source: SettingSource::Environment(name.to_owned()) })
        };
        match (read(ROOT_ID_VARIABLE), read(ROOT_SECRET_VARIABLE)) {
            (None, None) => from_file,
            (Some(id), Some(secret)) => checked(id, secret, problems),
            (Some(Sourced { source, .. }), None) => {
                problems.add(&source, format!("{ROOT_SECRET_VARIABLE} must be set, too"));
                None
            }
            (None, Some(Sourced { source, .. })) => {
                problems.add(&source, format!("{ROOT_ID_VARIABLE} must be set, too"));
                None
            }
        }
    }

    /// Name, value as text, and source of every setting. The secret is hidden.
    pub(super) fn lines(&self) -> Vec<(String, String, SettingSource)> {
        vec![
            ("root_key.id".to_owned(), self.id.value.clone(), self.id.source.clone()),
            ("root_key.secret".to_owned(), "(hidden)".to_owned(), self.secret.source.clone()),
        ]
    }
}

fn read_root_table(mut fields: Fields, problems: &mut Problems) -> Option<RootKey> {
    let id = fields.text("id", problems);
    let secret = fields.text("secret", problems);
    require(&fields, &[("id", id.is_some()), ("secret", secret.is_some())], problems);
    fields.finish(&[], problems);
    checked(id?, secret?, problems)
}

fn require(fields: &Fields, found: &[(&str, bool)], problems: &mut Problems) {
    for (key, _) in found.iter().filter(|(_, found)| !found) {
        fields.missing(key, "\"...\"", problems);
    }
}

fn checked(id: Sourced<String>, secret: Sourced<String>, problems: &mut Problems) -> Option<RootKey> {
    if let Err(why) = check_key(&id.value, &secret.value) {
        problems.add(&id.source, why);
        return None;
    }
    let secret = Sourced { value: Secret::new(secret.value), source: secret.source };
    Some(RootKey { id, secret })
}

/// An `[[access_key]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// The public half.
    pub id: Sourced<String>,
    /// The secret half.
    pub secret: Sourced<Secret>,
    /// The permissions of the key.
    pub permissions: Sourced<Permissions>,
    /// The buckets it may access; `None` is all buckets.
    pub buckets: Sourced<Option<Vec<BucketName>>>,
}

impl AccessKey {
    /// Name, value as text, and source of every setting. The secret is hidden.
    pub(super) fn lines(&self) -> Vec<(String, String, SettingSource)> {
        let name = |field: &str| format!("access_key.{}.{field}", self.id.value);
        let buckets = match &self.buckets.value {
            None => "*".to_owned(),
            Some(names) => names.iter().map(BucketName::as_str).collect::<Vec<_>>().join(", "),
        };
        vec![
            (name("secret"), "(hidden)".to_owned(), self.secret.source.clone()),
            (name("permissions"), self.permissions.value.to_text(), self.permissions.source.clone()),
            (name("buckets"), buckets, self.buckets.source.clone()),
        ]
    }
}

/// Reads the `[[access_key]]` list.
pub(super) fn access_keys(root: &mut Table, problems: &mut Problems) -> Vec<AccessKey> {
    let Some(Item { source, value }) = root.take("access_key") else { return Vec::new() };
    let TomlValue::List(items) = value else {
        problems.add(&source, "access keys are written as a list of tables: [[access_key]]");
        return Vec::new();
    };
    let mut keys = Vec::new();
    for item in items {
        match item.value {
            TomlValue::Table(table) => {
                keys.extend(read_access_key(Fields::new("access_key".to_owned(), table), problems));
            }
            other => {
                problems.add(&item.source, format!("an access key is a table, not {}", other.kind()));
            }
        }
    }
    keys
}

fn read_access_key(mut fields: Fields, problems: &mut Problems) -> Option<AccessKey> {
    let id = fields.text("id", problems);
    let secret = fields.text("secret", problems);
    let permissions = fields.text("permissions", problems);
    let buckets = fields.take("buckets");
    require(&fields, &[("id", id.is_some()), ("secret", secret.is_some())], problems);
    fields.finish(&[], problems);
    let permissions = match permissions {
        None => Sourced { value: Permissions::ReadWrite, source: SettingSource::Default },
        Some(text) => match Permissions::parse(&text.value) {
            Ok(value) => Sourced { value, source: text.source },
            Err(why) => {
                problems.add(&text.source, format!("access_key.permissions: {why}"));
                return None;
            }
        },
    };
    let buckets = read_buckets(buckets, problems)?;
    let RootKey { id, secret } = checked(id?, secret?, problems)?;
    Some(AccessKey { id, secret, permissions, buckets })
}

fn read_buckets(item: Option<Item>, problems: &mut Problems) -> Option<Sourced<Option<Vec<BucketName>>>> {
    let Some(Item { source, value }) = item else {
        return Some(Sourced { value: None, source: SettingSource::Default });
    };
    let help =
        "access_key.buckets must be a list of names, for example [\"photos\"], or [\"*\"] for all buckets";
    let TomlValue::List(items) = value else {
        problems.add(&source, help);
        return None;
    };
    let mut names = Vec::new();
    for item in &items {
        match &item.value {
            TomlValue::Text(star) if star == "*" && items.len() == 1 => {
                return Some(Sourced { value: None, source });
            }
            TomlValue::Text(name) => match BucketName::new(name) {
                Ok(name) => names.push(name),
                Err(error) => problems.add(&item.source, format!("access_key.buckets: {error}")),
            },
            _ => problems.add(&item.source, help),
        }
    }
    Some(Sourced { value: Some(names), source })
}

/// Checks that a key can be sent in a request.
fn check_key(id: &str, secret: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ',' | '=');
    if id.len() < 3 || id.len() > 128 || !id.chars().all(is_plain) {
        return Err(format!(
            "access key id {id:?} must have 3 to 128 plain characters without '/', ',' and '='"
        ));
    }
    if secret.len() < 8 || secret.len() > 256 {
        return Err("a secret key must have 8 to 256 characters".to_owned());
    }
    Ok(())
}
