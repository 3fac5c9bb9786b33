//! The layer `routed`: objects of some classes are stored in other stores than the one at the bottom of the stack.

use std::fmt;

use tradewind_core::Class;
use tradewind_core::quantity::ByteSize;

use super::document::{Item, Value as TomlValue};
use super::fields::Fields;
use super::problem::{Problems, nearest_name};
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::SettingValue;

/// A `{ routed = { ... } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedSettings {
    /// The stores above the bottom of the stack, by precedence.
    pub tiers: Vec<RoutedTier>,
    /// Bytes per second at which objects are moved to the tier of their class; 0 moves none.
    pub move_rate: Sourced<ByteSize>,
}

const DEFAULT_MOVE_RATE: ByteSize = ByteSize(32 << 20);

/// A store that has the objects of some classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedTier {
    /// The store.
    pub store: Sourced<String>,
    /// Its classes.
    pub classes: Vec<ClassSpan>,
}

/// Classes of consecutive numbers: one, or a range such as `11-14`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassSpan {
    first: Class,
    last: Class,
}

impl ClassSpan {
    /// The classes.
    pub fn classes(self) -> impl Iterator<Item = Class> {
        (self.first.value()..=self.last.value()).filter_map(|value| Class::new(value).ok())
    }
}

impl SettingValue for ClassSpan {
    fn parse(text: &str) -> Result<Self, String> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (first, last) = match text.split_once('-') {
            Some((first, last)) if is_number(first) && is_number(last) => {
                (Class::parse(first)?, Class::parse(last)?)
            }
            _ => {
                let class = Class::parse(text)?;
                (class, class)
            }
        };
        if first > last {
            return Err(format!("{text:?} ends before it begins; write the lower class first"));
        }
        Ok(Self { first, last })
    }

    fn to_text(&self) -> String {
        match self.first == self.last {
            true => self.first.to_text(),
            false => format!("{}-{}", self.first.value(), self.last.value()),
        }
    }
}

impl RoutedSettings {
    /// An example of the layer.
    pub(super) const EXAMPLE: &str =
        "{ routed = { tiers = [\"ssd\"], classes = { ssd = [\"11-14\", \"files\"] } } }";

    pub(super) fn read(path: &str, mut fields: Fields, problems: &mut Problems) -> Option<Self> {
        let tiers = fields.take("tiers");
        let classes = fields.take("classes");
        let move_rate = fields.single("move_rate", problems);
        for (key, item, example) in
            [("tiers", &tiers, "[\"ssd\"]"), ("classes", &classes, "{ ssd = [\"11-14\", \"files\"] }")]
        {
            if item.is_none() {
                fields.missing(key, example, problems);
            }
        }
        fields.finish(&[], problems);
        let (tiers, classes) = (tiers?, classes?);
        let before = problems.0.len();
        let mut tiers = read_tiers(path, tiers, problems);
        read_classes(path, classes, &mut tiers, problems);
        let default = Sourced { value: DEFAULT_MOVE_RATE, source: SettingSource::Default };
        let move_rate = move_rate.unwrap_or(default);
        (problems.0.len() == before).then_some(Self { tiers, move_rate })
    }

    /// The declarations.
    pub(super) fn declarations() -> Vec<Declaration> {
        let declared =
            |key, default: Option<String>, text| Declaration { key, default: default.map(Into::into), text };
        vec![
            declared(
                "tiers",
                None,
                "Stores above the one at the bottom of the stack: `[\"ssd\"]`. If an interrupted change left an \
                 object in several stores, the first one counts. Required.",
            ),
            declared(
                "classes",
                None,
                "The classes of each tier, by number, name or range: `{ ssd = [\"11-14\", \"files\"] }`. Objects of \
                 all other classes are in the store at the bottom. An object without a label has the class of its size. \
                 Required.",
            ),
            declared(
                "move_rate",
                Some(DEFAULT_MOVE_RATE.to_string()),
                "Bytes per second at which objects are moved after a change of their class or of `classes`. `0B` moves \
                 none.",
            ),
        ]
    }
}

fn read_tiers(path: &str, item: Item, problems: &mut Problems) -> Vec<RoutedTier> {
    let Item { source, value: TomlValue::List(items) } = item else {
        problems.add(&item.source, format!("{path}.tiers must be a list of stores: tiers = [\"ssd\"]"));
        return Vec::new();
    };
    if items.is_empty() {
        problems.add(&source, format!("{path}.tiers names no store; remove the layer, or name one"));
    }
    let mut tiers: Vec<RoutedTier> = Vec::new();
    for item in items {
        let TomlValue::Text(value) = item.value else {
            problems.add(
                &item.source,
                format!("{path}.tiers must have names of stores, not {}", item.value.kind()),
            );
            continue;
        };
        tiers.push(RoutedTier { store: Sourced { value, source: item.source }, classes: Vec::new() });
    }
    tiers
}

/// Adds the classes to their tiers.
fn read_classes(path: &str, item: Item, tiers: &mut [RoutedTier], problems: &mut Problems) {
    let TomlValue::Table(table) = item.value else {
        let message = format!("{path}.classes must be a table: classes = {{ ssd = [\"11-14\", \"files\"] }}");
        problems.add(&item.source, message);
        return;
    };
    let before = problems.0.len();
    let mut taken: Vec<(Class, String)> = Vec::new();
    let named: Vec<String> = table.entries.iter().map(|(name, _)| name.clone()).collect();
    for (name, item) in table.entries {
        let spans = read_spans(&format!("{path}.classes.{name}"), &item, problems);
        for class in spans.iter().flat_map(|span| span.classes()) {
            match taken.iter().find(|(other, _)| *other == class) {
                Some((_, tier)) => {
                    let message =
                        format!("{path}.classes: class {} is in {tier:?} already; remove one", class.value());
                    problems.add(&item.source, message);
                }
                None => taken.push((class, name.clone())),
            }
        }
        match tiers.iter_mut().find(|tier| tier.store.value == name) {
            Some(tier) => tier.classes = spans,
            None => {
                let names = tiers.iter().map(|tier| tier.store.value.as_str());
                let help = match nearest_name(&name, names) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("add it to {path}.tiers"),
                };
                problems.add(&item.source, format!("{path}.classes.{name}: {name:?} is no tier; {help}"));
            }
        }
    }
    let is_valid = problems.0.len() == before;
    for tier in tiers.iter().filter(|tier| is_valid && !named.contains(&tier.store.value)) {
        let name = &tier.store.value;
        let message = format!(
            "the tier {name:?} has no classes; add {path}.classes.{name}, with an empty list to move its objects away"
        );
        problems.add(&tier.store.source, message);
    }
}

fn read_spans(path: &str, item: &Item, problems: &mut Problems) -> Vec<ClassSpan> {
    let TomlValue::List(items) = &item.value else {
        problems.add(&item.source, format!("{path} must be a list of classes: [\"11-14\", \"files\"]"));
        return Vec::new();
    };
    let mut spans = Vec::new();
    for item in items {
        let parsed = match item.value.as_text() {
            Ok(text) => ClassSpan::parse(&text),
            Err(kind) => Err(format!("a class must be a number, a name or a range, not {kind}")),
        };
        match parsed {
            Ok(span) => spans.push(span),
            Err(why) => problems.add(&item.source, format!("{path}: {why}")),
        }
    }
    spans
}

/// Formats the layer in the syntax of a settings file.
impl fmt::Display for RoutedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiers: Vec<String> = self.tiers.iter().map(|tier| format!("{:?}", tier.store.value)).collect();
        let classes = self.tiers.iter().map(|tier| {
            let spans: Vec<String> =
                tier.classes.iter().map(|span| format!("{:?}", span.to_text())).collect();
            format!("{:?} = [{}]", tier.store.value, spans.join(", "))
        });
        let classes: Vec<String> = classes.collect();
        write!(
            f,
            "{{ routed = {{ tiers = [{}], classes = {{ {} }}, move_rate = {:?} }} }}",
            tiers.join(", "),
            classes.join(", "),
            self.move_rate.value.to_text(),
        )
    }
}
