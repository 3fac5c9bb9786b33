//! Overrides of `[class.N]` while a server runs. A call has the keys and values of the table as a JSON object; the code
//! that checks the settings checks the result. Overrides are never written to the settings file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value as Json};
use tradewind_core::Class;

use super::class_policies::ClassSettings;
use super::document::{Item, Table, Value as TomlValue};
use super::fields::Fields;
use super::named::NamedSettings;
use super::problem::Problems;
use super::source::{SettingSource, Sourced};

/// The JSON type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonType {
    Text,
    Number,
    Boolean,
}

impl JsonType {
    /// Checks that a value has this type.
    fn check(self, value: &Json) -> Result<(), String> {
        let (expected, is_expected) = match self {
            Self::Text => ("text", value.is_string()),
            Self::Number => ("a number", value.is_number()),
            Self::Boolean => ("true or false", value.is_boolean()),
        };
        let actual = match value {
            Json::Null => "null",
            Json::Bool(_) => "true or false",
            Json::Number(_) => "a number",
            Json::String(_) => "text",
            Json::Array(_) => "a list",
            Json::Object(_) => "an object",
        };
        if is_expected { Ok(()) } else { Err(format!("must be {expected}, not {actual}")) }
    }
}

/// The keys that can be overridden, with the types of their values.
const KEYS: [(&str, JsonType); 8] = [
    ("name", JsonType::Text),
    ("priority", JsonType::Number),
    ("occupancy", JsonType::Text),
    ("write", JsonType::Text),
    ("pin", JsonType::Boolean),
    ("share", JsonType::Number),
    ("compress", JsonType::Boolean),
    ("encrypt", JsonType::Boolean),
];
/// The keys that are read at the start.
const START_KEYS: [&str; 1] = ["tier"];

/// The maximum number of keys in a body. It bounds the problems of one call.
const MAX_BODY_KEYS: usize = 32;

/// Values of `[class.N]` that override those of the settings. Each differs from the value in the settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassOverrides {
    /// The overridden values, one table for each class.
    tables: Vec<ClassSettings>,
}

/// The result of a change of one class.
#[derive(Debug)]
pub struct ChangedClasses {
    /// All overrides, with the change.
    pub overrides: ClassOverrides,
    /// The settings with these overrides.
    pub named: NamedSettings,
}

impl ClassOverrides {
    /// These overrides with a change of one class. `body` is a JSON object of keys of `[class.N]`; `null` removes an
    /// override. `read` are the settings without overrides.
    ///
    /// # Errors
    /// All problems of the body, or of the settings with the change.
    pub fn change(
        &self,
        read: &NamedSettings,
        class: Class,
        body: &[u8],
    ) -> Result<ChangedClasses, Problems> {
        let ClassChange { set, removed } = ClassChange::parse(class, body)?;
        let mut table = match self.table(class) {
            Some(before) => set.or(before),
            None => set,
        };
        for key in removed {
            table.remove(key);
        }
        let in_settings = read.class_settings(class).map(ClassSettings::values).unwrap_or_default();
        for (key, value) in table.values() {
            if in_settings.get(&key) == Some(&value) {
                table.remove(&key);
            }
        }
        let others = self.tables.iter().filter(|table| table.class.value != class).cloned();
        let changed = (!table.values().is_empty()).then_some(table);
        let overrides = Self { tables: others.chain(changed).collect() };
        let named = overrides.apply(read);
        let mut problems = Problems::default();
        named.check_classes(&mut problems);
        problems.into_result(ChangedClasses { overrides, named })
    }

    /// The settings with these overrides. Overridden classes are the last ones, so that a problem names the override.
    #[must_use]
    pub fn apply(&self, read: &NamedSettings) -> NamedSettings {
        let kept = read.classes.iter().filter(|set| self.table(set.class.value).is_none()).cloned();
        let overridden = self.tables.iter().map(|table| match read.class_settings(table.class.value) {
            Some(base) => table.clone().or(base),
            None => table.clone(),
        });
        NamedSettings { classes: kept.chain(overridden).collect(), ..read.clone() }
    }

    /// The overridden keys of a class, each with its value in the settings, or `null`.
    #[must_use]
    pub fn overridden(&self, read: &NamedSettings, class: Class) -> Map<String, Json> {
        let mut in_settings = read.class_settings(class).map(ClassSettings::values).unwrap_or_default();
        let keys = self.table(class).map(ClassSettings::values).unwrap_or_default().into_iter();
        keys.map(|(key, _)| {
            let value = in_settings.remove(&key).unwrap_or_default();
            (key, value)
        })
        .collect()
    }

    /// The classes with overrides.
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.tables.iter().map(|table| table.class.value)
    }

    fn table(&self, class: Class) -> Option<&ClassSettings> {
        self.tables.iter().find(|table| table.class.value == class)
    }
}

/// The parsed body of a call.
struct ClassChange {
    set: ClassSettings,
    removed: Vec<&'static str>,
}

impl ClassChange {
    fn parse(class: Class, body: &[u8]) -> Result<Self, Problems> {
        const SOURCE: SettingSource = SettingSource::AdminApi;
        let mut problems = Problems::default();
        let parsed: Result<ObjectFields, _> = serde_json::from_slice(body);
        let fields = parsed.map(|ObjectFields(fields)| fields).unwrap_or_else(|error| {
            let form = "the body must be a JSON object with keys of [class.N], such as {\"priority\": 2}";
            problems.add(&SOURCE, format!("{form}: {error}"));
            Vec::new()
        });
        if fields.is_empty() && problems.0.is_empty() {
            let keys = KEYS.map(|(key, _)| key).join(", ");
            problems.add(&SOURCE, format!("the body changes nothing; its keys can be {keys}"));
        }
        let path = format!("class.{}", class.value());
        let (mut removed, mut entries) = (Vec::new(), Vec::new());
        for ObjectField { key, value } in fields {
            let known = KEYS.into_iter().find(|(known, _)| *known == key);
            if START_KEYS.contains(&key.as_str()) {
                let message =
                    format!("{path}.{key} is read at the start: change it in the settings file and restart");
                problems.add(&SOURCE, message);
            } else if let (Some((known, _)), Json::Null) = (known, &value) {
                removed.push(known);
            } else {
                if let Some((_, expected)) = known
                    && let Err(why) = expected.check(&value)
                {
                    problems.add(&SOURCE, format!("{path}.{key} {why}"));
                    continue;
                }
                match toml_value(value) {
                    Ok(value) => entries.push((key, Item { source: SOURCE, value })),
                    Err(why) => problems.add(&SOURCE, format!("{path}.{key}: {why}")),
                }
            }
        }
        let number = Sourced { value: class.value().to_string(), source: SOURCE };
        let fields = Fields::new(path, Table { source: SOURCE, entries });
        let set = ClassSettings::read(number, fields, &mut problems);
        let empty = || ClassSettings::empty(Sourced { value: class, source: SOURCE });
        problems.into_result(Self { set: set.unwrap_or_else(empty), removed })
    }
}

/// The value in the form of the settings file. Of lists and objects, which no key has, only the kind is kept.
fn toml_value(value: Json) -> Result<TomlValue, String> {
    Ok(match value {
        // Of an unknown key.
        Json::Null => TomlValue::Boolean(false),
        Json::Bool(boolean) => TomlValue::Boolean(boolean),
        Json::String(text) => TomlValue::Text(text),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => TomlValue::Integer(integer),
            None if number.is_u64() => return Err(format!("{number} is too large")),
            None => return Err(format!("{number} is not a whole number")),
        },
        Json::Array(_) => TomlValue::List(Vec::new()),
        Json::Object(_) => TomlValue::Table(Table { source: SettingSource::AdminApi, entries: Vec::new() }),
    })
}

/// A key of a JSON object, with its value.
struct ObjectField {
    key: String,
    value: Json,
}

/// A JSON object, in which no key occurs twice.
struct ObjectFields(Vec<ObjectField>);

impl<'de> Deserialize<'de> for ObjectFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = ObjectFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectFields, A::Error> {
        let mut fields: Vec<ObjectField> = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            if fields.iter().any(|field| field.key == key) {
                return Err(serde::de::Error::custom(format_args!("the key {key:?} occurs twice")));
            }
            if fields.len() == MAX_BODY_KEYS {
                return Err(serde::de::Error::custom(format_args!("more than {MAX_BODY_KEYS} keys")));
            }
            fields.push(ObjectField { key, value });
        }
        Ok(ObjectFields(fields))
    }
}
