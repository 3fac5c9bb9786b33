//! The tables `[class.N]`: what this server does with a class of data. They change the default policy.

use std::num::NonZeroU16;

use serde_json::{Map, Value as Json, json};
use tradewind_core::Class;
use tradewind_model::class_policy::{
    self, ClassChanges, ClassPolicyTable, ClassPriority, ClassWrite, is_store_metadata,
};

use super::fields::Fields;
use super::named::check_reference;
use super::problem::Problems;
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::{Percent, SettingValue};

/// Keys of later versions.
const PLANNED_KEYS: [&str; 1] = ["replicas"];
/// The largest share of a class.
const MAX_SHARE: u16 = 1_000;
/// The longest name of a class, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// A `[class.N]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSettings {
    /// The class.
    pub class: Sourced<Class>,
    /// Name.
    pub name: Option<Sourced<String>>,
    /// Priority.
    pub priority: Option<Sourced<ClassPriority>>,
    /// The most of a cache that the class may fill.
    pub occupancy: Option<Sourced<Percent>>,
    /// The event that completes a write to a cache.
    pub write: Option<Sourced<ClassWrite>>,
    /// True if caches keep it.
    pub pin: Option<Sourced<bool>>,
    /// The store of the class.
    pub tier: Option<Sourced<String>>,
    /// The share of disks.
    pub share: Option<Sourced<NonZeroU16>>,
    /// True if layers `transformed` compress new objects of the class.
    pub compress: Option<Sourced<bool>>,
    /// True if layers `transformed` encrypt new objects of the class.
    pub encrypt: Option<Sourced<bool>>,
}

impl SettingValue for ClassPriority {
    fn parse(text: &str) -> Result<Self, String> {
        let priority = text.parse().ok().and_then(Self::new);
        priority
            .ok_or_else(|| format!("{text:?} is not a priority from 0 (highest) to {}", Self::LOWEST.value()))
    }

    fn to_text(&self) -> String {
        self.value().to_string()
    }
}

impl SettingValue for ClassWrite {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "through" => Ok(Self::Through),
            "back" => Ok(Self::Back),
            _ => Err(format!("{text:?} is neither \"through\" nor \"back\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Through => "through".to_owned(),
            Self::Back => "back".to_owned(),
        }
    }
}

impl ClassSettings {
    pub(super) fn read(number: Sourced<String>, mut fields: Fields, problems: &mut Problems) -> Option<Self> {
        let Sourced { value, source } = number;
        let class = value.parse().ok().and_then(|number| Class::new(number).ok());
        let class = class.filter(|class| class.value().to_string() == value);
        if class.is_none() {
            let message = format!(
                "[class.{value}] does not name a class from 0 to {}; write for example [class.25] and name = \"mail\"",
                Class::MAX
            );
            problems.add(&source, message);
        }
        let read = Self {
            class: Sourced { value: class?, source },
            name: fields.text("name", problems),
            priority: fields.single("priority", problems),
            occupancy: fields.single("occupancy", problems),
            write: fields.single("write", problems),
            pin: fields.boolean("pin", problems),
            tier: fields.text("tier", problems),
            share: fields.single("share", problems),
            compress: fields.boolean("compress", problems),
            encrypt: fields.boolean("encrypt", problems),
        };
        fields.finish(&PLANNED_KEYS, problems);
        read.check(problems);
        Some(read)
    }

    /// A table without a value.
    pub(super) const fn empty(class: Sourced<Class>) -> Self {
        Self {
            class,
            name: None,
            priority: None,
            occupancy: None,
            write: None,
            pin: None,
            tier: None,
            share: None,
            compress: None,
            encrypt: None,
        }
    }

    /// The values of this table, and those of `base` for the keys that this one lacks.
    pub(super) fn or(self, base: &Self) -> Self {
        Self {
            class: self.class,
            name: self.name.or_else(|| base.name.clone()),
            priority: self.priority.or_else(|| base.priority.clone()),
            occupancy: self.occupancy.or_else(|| base.occupancy.clone()),
            write: self.write.or_else(|| base.write.clone()),
            pin: self.pin.or_else(|| base.pin.clone()),
            tier: self.tier.or_else(|| base.tier.clone()),
            share: self.share.or_else(|| base.share.clone()),
            compress: self.compress.or_else(|| base.compress.clone()),
            encrypt: self.encrypt.or_else(|| base.encrypt.clone()),
        }
    }

    /// Removes the value of a key. Returns false if there is no such key.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        match key {
            "name" => self.name = None,
            "priority" => self.priority = None,
            "occupancy" => self.occupancy = None,
            "write" => self.write = None,
            "pin" => self.pin = None,
            "tier" => self.tier = None,
            "share" => self.share = None,
            "compress" => self.compress = None,
            "encrypt" => self.encrypt = None,
            _ => return false,
        }
        true
    }

    /// The values that are set, in the form of the settings.
    #[must_use]
    pub fn values(&self) -> Map<String, Json> {
        let text = |value: Option<String>| value.map(Json::String);
        let values = [
            ("name", text(self.name.as_ref().map(|set| set.value.clone()))),
            ("priority", self.priority.as_ref().map(|set| json!(set.value.value()))),
            ("occupancy", text(self.occupancy.as_ref().map(|set| set.value.to_text()))),
            ("write", text(self.write.as_ref().map(|set| set.value.to_text()))),
            ("pin", self.pin.as_ref().map(|set| json!(set.value))),
            ("tier", text(self.tier.as_ref().map(|set| set.value.clone()))),
            ("share", self.share.as_ref().map(|set| json!(set.value.get()))),
            ("compress", self.compress.as_ref().map(|set| json!(set.value))),
            ("encrypt", self.encrypt.as_ref().map(|set| json!(set.value))),
        ];
        values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    fn check(&self, problems: &mut Problems) {
        let class = self.class.value;
        if let Some(name) = &self.name {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let is_number = name.value.bytes().all(|byte| byte.is_ascii_digit());
            if name.value.len() > MAX_NAME_BYTES {
                let message = format!(
                    "class.{}.name has {} bytes; it may have at most {MAX_NAME_BYTES}",
                    class.value(),
                    name.value.len()
                );
                problems.add(&name.source, message);
            } else if !name.value.chars().all(is_plain) || is_number {
                let message = format!(
                    "class.{class}.name: {:?} must have letters, digits, - and _, and not only digits",
                    name.value,
                    class = class.value()
                );
                problems.add(&name.source, message);
            }
            if let Some(other) = class_policy::class_by_name(&name.value).filter(|other| *other != class) {
                let message =
                    format!("{:?} is the name of class {}; choose another", name.value, other.value());
                problems.add(&name.source, message);
            }
        }
        if let Some(share) = self.share.as_ref().filter(|share| share.value.get() > MAX_SHARE) {
            let message = format!("class.{}.share must be 1 to {MAX_SHARE}", class.value());
            problems.add(&share.source, message);
        }
        let decided = [
            ("priority", self.priority.as_ref().map(|set| &set.source)),
            ("pin", self.pin.as_ref().map(|set| &set.source)),
        ];
        for (key, source) in decided {
            if let Some(source) = source.filter(|_| is_store_metadata(class)) {
                let message = format!(
                    "class.{}.{key}: classes 1 to 10 are the store's own metadata; a client's label of them is treated \
                     like class 0, so set it in [class.0]",
                    class.value()
                );
                problems.add(source, message);
            }
        }
    }

    /// Name, value as text, and source of each setting.
    pub(super) fn lines(&self) -> Vec<(String, String, SettingSource)> {
        fn line<T: SettingValue>(
            key: &str,
            set: Option<&Sourced<T>>,
        ) -> Option<(String, String, SettingSource)> {
            set.map(|set| (key.to_owned(), set.value.to_text(), set.source.clone()))
        }
        let lines = [
            line("name", self.name.as_ref()),
            line("priority", self.priority.as_ref()),
            line("occupancy", self.occupancy.as_ref()),
            line("write", self.write.as_ref()),
            line("pin", self.pin.as_ref()),
            line("tier", self.tier.as_ref()),
            line("share", self.share.as_ref()),
            line("compress", self.compress.as_ref()),
            line("encrypt", self.encrypt.as_ref()),
        ];
        let full =
            |(key, value, source)| (format!("class.{}.{key}", self.class.value.value()), value, source);
        lines.into_iter().flatten().map(full).collect()
    }

    /// The declarations.
    pub(super) fn declarations() -> Vec<Declaration> {
        [
            ("name", "Name of the class in output and for `--class`; at most 128 letters, digits, `-` and `_`."),
            (
                "priority",
                "0 (highest) to 11. Default: that of the default policy. Classes 11 to 22, which objects without a label \
                 have, are ranked by their observed reuse unless they have a priority here.",
            ),
            ("occupancy", "The most of each tier of a cache that the class may fill, such as `20%`. At most 100% in sum."),
            ("write", "`through`: writes of the class wait for the store below, although the volume writes back. `back`: as the volume says."),
            ("pin", "`true`: caches do not evict the class. All pins together fill at most half of a cache."),
            ("tier", "The `[store.NAME]` of the class in volumes that have this store as a tier or at the bottom of the stack. Read at start."),
            ("share", "The share of a disk with `slices` that reads and writes of large objects of the class get together, 1 to 1000. All classes without one have the share 1 together."),
            ("compress", "`true` or `false`: layers `transformed` compress new objects of the class, or do not. Default: as the layer says."),
            ("encrypt", "`true` or `false`: layers `transformed` encrypt new objects of the class, or do not. Default: as the layer says."),
        ]
        .map(|(key, text)| Declaration { key, default: None, text })
        .into()
    }
}

/// Checks the tables against each other and the stores.
pub(super) fn check(classes: &[ClassSettings], stores: &[&str], problems: &mut Problems) {
    let mut sum = 0_u32;
    for (index, set) in classes.iter().enumerate() {
        if let Some(tier) = &set.tier {
            check_reference("store", tier, stores, problems);
        }
        let is_same_name = |other: &&ClassSettings| match (&other.name, &set.name) {
            (Some(other), Some(name)) => other.value.eq_ignore_ascii_case(&name.value),
            _ => false,
        };
        if let (Some(other), Some(name)) = (classes[..index].iter().find(is_same_name), &set.name) {
            let message = format!(
                "{:?} is already the name of class {}; names must be unique",
                name.value,
                other.class.value.value()
            );
            problems.add(&name.source, message);
        }
        if let Some(occupancy) = &set.occupancy {
            let before = sum;
            sum += u32::from(occupancy.value.0);
            if before <= 100 && sum > 100 {
                let message =
                    format!("the occupancies of classes are {sum}% in sum; they must be at most 100%");
                problems.add(&occupancy.source, message);
            }
        }
    }
}

/// The default policy with the changes of the tables.
pub(super) fn class_policies(classes: &[ClassSettings]) -> ClassPolicyTable {
    fn value<T: Clone>(set: Option<&Sourced<T>>) -> Option<T> {
        set.map(|set| set.value.clone())
    }
    let mut table = ClassPolicyTable::default();
    for set in classes {
        let changes = ClassChanges {
            name: value(set.name.as_ref()),
            priority: value(set.priority.as_ref()),
            max_occupancy_percent: set.occupancy.as_ref().map(|percent| percent.value.0),
            write: value(set.write.as_ref()),
            is_pinned: set.pin.as_ref().is_some_and(|pin| pin.value),
            tier: value(set.tier.as_ref()),
            share: value(set.share.as_ref()),
            compress: value(set.compress.as_ref()),
            encrypt: value(set.encrypt.as_ref()),
        };
        table.set(set.class.value, changes);
    }
    table
}
