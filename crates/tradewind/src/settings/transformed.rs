//! The layer `transformed`: which classes are compressed and encrypted, and the keys.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use tradewind_core::Class;
use tradewind_layers::transformed::{ClassSet, MAX_KEY_NAME_BYTES};

use super::document::{Item, Value as TomlValue};
use super::fields::Fields;
use super::problem::{Problems, nearest_name};
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::{Secret, SettingValue as _};
use super::{Inputs, StoreKind};

/// Prefix of a key in an environment variable.
const ENVIRONMENT_PREFIX: &str = "env:";

/// A `{ transformed = { ... } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransformedSettings {
    /// Origin of the layer.
    pub source: SettingSource,
    /// Classes to compress.
    pub compress: ClassChoice,
    /// Classes to encrypt.
    pub encrypt: ClassChoice,
    /// The name of the key of new objects.
    pub key: Option<Sourced<String>>,
    /// The keys by name.
    pub keys: BTreeMap<String, Sourced<KeySource>>,
}

/// A choice of classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassChoice {
    /// All of them (`true`), or none.
    Every(bool),
    /// These; 0 is that of objects without a class.
    Of(Vec<Class>),
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In a file that only its owner can read.
    File(PathBuf),
    /// In an environment variable.
    Environment {
        /// The name of the variable.
        name: String,
        /// Its value.
        value: Secret,
    },
}

impl ClassChoice {
    /// The classes as a set.
    #[must_use]
    pub fn set(&self) -> ClassSet {
        match self {
            Self::Every(true) => ClassSet::ALL,
            Self::Every(false) => ClassSet::NONE,
            Self::Of(classes) => classes.iter().copied().collect(),
        }
    }

    pub(super) fn read(name: &str, item: Item, problems: &mut Problems) -> Option<Self> {
        let classes = match item.value {
            TomlValue::Boolean(every) => return Some(Self::Every(every)),
            TomlValue::List(items) => items,
            other => {
                let message =
                    format!("{name} must be true, false or a list of classes, not {}", other.kind());
                problems.add(&item.source, message);
                return None;
            }
        };
        let class = |item: Item| {
            let number = match item.value {
                TomlValue::Integer(number) => u8::try_from(number).ok(),
                _ => None,
            };
            let class = number.and_then(|number| Class::new(number).ok());
            if class.is_none() {
                let message = format!("{name} must list classes, numbers from 0 to {}", Class::MAX);
                problems.add(&item.source, message);
            }
            class
        };
        classes.into_iter().map(class).collect::<Option<_>>().map(Self::Of)
    }
}

impl fmt::Display for ClassChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(every) => every.fmt(f),
            Self::Of(classes) => f.debug_list().entries(classes.iter().map(|class| class.value())).finish(),
        }
    }
}

impl KeySource {
    fn read(name: &str, item: Item, inputs: &Inputs, problems: &mut Problems) -> Option<Sourced<Self>> {
        let Item { source, value } = item;
        let text = match value {
            TomlValue::Text(text) if !text.is_empty() => text,
            other => {
                let message = format!(
                    "{name} must be the path of a key file or \"env:TRADEWIND_NAME\", not {}",
                    other.kind()
                );
                problems.add(&source, message);
                return None;
            }
        };
        let Some(variable) = text.strip_prefix(ENVIRONMENT_PREFIX) else {
            let path = PathBuf::from(text);
            let path = inputs.file_directory().into_iter().fold(path, PathBuf::relative_to);
            return Some(Sourced { value: Self::File(path), source });
        };
        let Some(value) = inputs.environment(variable) else {
            let message = format!(
                "{name}: the environment variable {variable:?} is not set; its name must begin with TRADEWIND_"
            );
            problems.add(&source, message);
            return None;
        };
        let value = Self::Environment { name: variable.to_owned(), value: Secret::new(value) };
        Some(Sourced { value, source })
    }
}

/// Formats the source as in a settings file.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(&path.to_text()),
            Self::Environment { name, .. } => write!(f, "{ENVIRONMENT_PREFIX}{name}"),
        }
    }
}

impl TransformedSettings {
    pub(super) const EXAMPLE: &str = "{ transformed = { compress = true } }";

    pub(super) fn read(
        volume: &str,
        source: SettingSource,
        mut fields: Fields,
        inputs: &Inputs,
        problems: &mut Problems,
    ) -> Option<Self> {
        let path = format!("volume.{volume}.transformed");
        let mut choice = |key: &'static str, fields: &mut Fields| match fields.take(key) {
            Some(item) => ClassChoice::read(&format!("{path}.{key}"), item, problems),
            None => Some(ClassChoice::Every(false)),
        };
        let compress = choice("compress", &mut fields);
        let encrypt = choice("encrypt", &mut fields);
        let key = fields.text("key", problems);
        let keys = match fields.take("keys") {
            None => Some(BTreeMap::new()),
            Some(item) => read_keys(&path, item, inputs, problems),
        };
        // With keys alone, the tables of classes decide.
        if !["compress", "encrypt", "key", "keys"].iter().any(|key| fields.has_taken(key)) {
            fields.missing("compress", "true", problems);
        }
        fields.finish(&[], problems);
        let read = Self { source, compress: compress?, encrypt: encrypt?, key, keys: keys? };
        read.check_keys(&path, problems);
        Some(read)
    }

    fn check_keys(&self, path: &str, problems: &mut Problems) {
        match &self.key {
            None if !self.encrypt.set().is_empty() => {
                let example = "key = \"main\", keys = { main = \"/etc/tradewind/main.key\" }";
                problems.add(&self.source, format!("{path} needs key to encrypt, for example {example}"));
            }
            Some(key) if !self.keys.contains_key(&key.value) => {
                let help = nearest_name(&key.value, self.keys.keys().map(String::as_str))
                    .map_or_else(|| "add it to keys".to_owned(), |near| format!("did you mean {near:?}?"));
                problems.add(&key.source, format!("{path}.keys has no key {:?}; {help}", key.value));
            }
            _ => {}
        }
    }

    /// Rejects the layer over a store that cannot report the size and ETag of the plain bytes.
    pub(super) fn check_store(&self, volume: &str, kind: &StoreKind, problems: &mut Problems) {
        let service = match kind {
            StoreKind::Local { .. } => return,
            StoreKind::S3(_) => "an S3 service",
            StoreKind::Swift(_) => "a Swift service",
        };
        let message = format!(
            "volume.{volume}.transformed: {service} lists the size and ETag of the stored bytes, not those of the \
             object; use transformed over a local store only"
        );
        problems.add(&self.source, message);
    }

    /// The declarations, with the defaults.
    pub(super) fn declarations() -> Vec<Declaration> {
        let declared = |key, default: Option<&'static str>, text| Declaration {
            key,
            default: default.map(Into::into),
            text,
        };
        vec![
            declared(
                "compress",
                Some("false"),
                "The classes of objects to compress, if a sample of 64 KiB shrinks by 10 %: `true`, `false` or a list such \
                 as `[0, 25]`, where 0 is that of objects without a class. `[class.N]` overrides it for a class.",
            ),
            declared(
                "encrypt",
                Some("false"),
                "The classes of objects to encrypt, in the same form. `[class.N]` overrides it for a class.",
            ),
            declared("key", None, "The name of the key of new objects. Required to encrypt."),
            declared(
                "keys",
                None,
                "Keys by name: `{ main = \"FILE\", old = \"env:TRADEWIND_NAME\" }`. A key is 32 bytes in hexadecimal or \
                 Base64. A file must have mode 0600.",
            ),
        ]
    }
}

fn read_keys(
    path: &str,
    item: Item,
    inputs: &Inputs,
    problems: &mut Problems,
) -> Option<BTreeMap<String, Sourced<KeySource>>> {
    let TomlValue::Table(table) = item.value else {
        let message = format!("{path}.keys must be a table, not {}", item.value.kind());
        problems.add(&item.source, message);
        return None;
    };
    let mut keys = BTreeMap::new();
    for (name, item) in table.entries {
        if name.is_empty() || name.len() > MAX_KEY_NAME_BYTES {
            let message = format!("{path}.keys: a name must have 1 to {MAX_KEY_NAME_BYTES} bytes");
            problems.add(&item.source, message);
            return None;
        }
        let source = KeySource::read(&format!("{path}.keys.{name}"), item, inputs, problems)?;
        keys.insert(name, source);
    }
    Some(keys)
}

/// Formats the layer in the syntax of a settings file.
impl fmt::Display for TransformedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ transformed = {{ compress = {}, encrypt = {}", self.compress, self.encrypt)?;
        if let Some(key) = &self.key {
            write!(f, ", key = {:?}", key.value)?;
        }
        if !self.keys.is_empty() {
            let keys = self.keys.iter().map(|(name, key)| format!("{name:?} = {:?}", key.value.to_string()));
            write!(f, ", keys = {{ {} }}", keys.collect::<Vec<_>>().join(", "))?;
        }
        f.write_str(" } }")
    }
}
