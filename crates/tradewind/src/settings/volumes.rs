//! Volumes: a `[volume.NAME]` is a stack of layers over a store. A layer is a table in the list `stack`, which ends with
//! the name of a store.

use std::fmt;

use super::Inputs;
use super::cached::CachedSettings;
use super::deduplicated::DeduplicatedSettings;
use super::document::{Item, Table, Value as TomlValue};
use super::fields::Fields;
use super::problem::Problems;
use super::routed::{RoutedSettings, RoutedTier};
use super::source::Sourced;
use super::transformed::TransformedSettings;
use super::volume_checks::check_stack;

/// A `[volume.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name.
    pub name: Sourced<String>,
    /// The layers, the top one first.
    pub layers: Vec<VolumeLayer>,
    /// The store at the bottom of the stack.
    pub store: Sourced<String>,
}

/// A layer of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeLayer {
    /// `cached`: a cache in memory and on a fast disk.
    Cached(Box<CachedSettings>),
    /// `routed`: objects of some classes are in other stores.
    Routed(RoutedSettings),
    /// `transformed`: compression and encryption.
    Transformed(TransformedSettings),
    /// `deduplicated`: equal chunks are stored once.
    Deduplicated(DeduplicatedSettings),
}

impl VolumeLayer {
    /// The cache, if the layer is one.
    #[must_use]
    pub const fn cached(&self) -> Option<&CachedSettings> {
        match self {
            Self::Cached(set) => Some(set),
            Self::Routed(_) | Self::Transformed(_) | Self::Deduplicated(_) => None,
        }
    }

    /// The stores that the layer has besides the one below it.
    pub fn tiers(&self) -> impl Iterator<Item = &RoutedTier> {
        let tiers = match self {
            Self::Cached(_) | Self::Transformed(_) | Self::Deduplicated(_) => &[],
            Self::Routed(set) => set.tiers.as_slice(),
        };
        tiers.iter()
    }

    /// The settings of a layer that compresses and encrypts.
    #[must_use]
    pub const fn transformed(&self) -> Option<&TransformedSettings> {
        match self {
            Self::Cached(_) | Self::Routed(_) | Self::Deduplicated(_) => None,
            Self::Transformed(set) => Some(set),
        }
    }

    /// The settings of a layer that deduplicates.
    #[must_use]
    pub const fn deduplicated(&self) -> Option<&DeduplicatedSettings> {
        match self {
            Self::Cached(_) | Self::Routed(_) | Self::Transformed(_) => None,
            Self::Deduplicated(set) => Some(set),
        }
    }
}

const PLANNED_LAYERS: [&str; 3] = ["striped", "observed", "scheduled"];
const STACK_EXAMPLE: &str = "stack = [\"disk\"]";
/// Formats the layer in the syntax of a settings file, with its defaults.
impl fmt::Display for VolumeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached(set) => set.fmt(f),
            Self::Routed(set) => set.fmt(f),
            Self::Transformed(set) => set.fmt(f),
            Self::Deduplicated(set) => set.fmt(f),
        }
    }
}

impl Volume {
    pub(super) fn read(
        name: Sourced<String>,
        mut fields: Fields,
        inputs: &Inputs,
        problems: &mut Problems,
    ) -> Option<Self> {
        let stack = fields.take("stack");
        let Some(stack) = stack else {
            fields.missing("stack", "[\"disk\"]", problems);
            return None;
        };
        fields.finish(&[], problems);
        let not_a_stack = "a stack must be a list of layers that ends with a store";
        let TomlValue::List(mut items) = stack.value else {
            problems.add(&stack.source, format!("{not_a_stack}: {STACK_EXAMPLE}"));
            return None;
        };
        let store = match items.pop() {
            Some(Item { value: TomlValue::Text(text), source }) => Some(Sourced { value: text, source }),
            other => {
                let source = other.as_ref().map_or(&stack.source, |item| &item.source);
                problems.add(source, format!("{not_a_stack}: {STACK_EXAMPLE}"));
                items.extend(other.filter(|item| matches!(item.value, TomlValue::Table(_))));
                None
            }
        };
        let count = items.len();
        let layers: Vec<VolumeLayer> =
            items.into_iter().filter_map(|item| read_layer(&name.value, item, inputs, problems)).collect();
        if layers.len() < count {
            return None;
        }
        check_stack(&name.value, &layers, problems);
        Some(Self { name, layers, store: store? })
    }

    /// The stores of the volume: the one at the bottom, then the tiers of its layers.
    pub fn stores(&self) -> impl Iterator<Item = &Sourced<String>> {
        let tiers = self.layers.iter().flat_map(|layer| layer.tiers().map(|tier| &tier.store));
        std::iter::once(&self.store).chain(tiers)
    }

    /// The stack in the syntax of a settings file.
    #[must_use]
    pub fn stack_text(&self) -> String {
        stack_text(&self.layers, &self.store.value)
    }
}

/// A stack in the syntax of a settings file.
pub(super) fn stack_text(layers: &[VolumeLayer], store: &str) -> String {
    let layers: String = layers.iter().map(|layer| format!("{layer}, ")).collect();
    format!("[{layers}{store:?}]")
}

fn read_layer(volume: &str, item: Item, inputs: &Inputs, problems: &mut Problems) -> Option<VolumeLayer> {
    let mut layer = match item.value {
        TomlValue::Table(layer) => layer.entries,
        TomlValue::Text(name) => {
            let message = format!("the store {name:?} must be the last of its stack; a volume has one store");
            problems.add(&item.source, message);
            return None;
        }
        other => {
            let message = format!(
                "a stack must contain tables of layers and the name of a store, not {}",
                other.kind()
            );
            problems.add(&item.source, message);
            return None;
        }
    };
    let Some((kind, Item { source, value })) = layer.pop().filter(|_| layer.is_empty()) else {
        problems.add(
            &item.source,
            "a layer must be a table with one key, the kind of the layer: { cached = { ... } }",
        );
        return None;
    };
    let example = match kind.as_str() {
        "cached" => CachedSettings::EXAMPLE,
        "routed" => RoutedSettings::EXAMPLE,
        "transformed" => TransformedSettings::EXAMPLE,
        "deduplicated" => DeduplicatedSettings::EXAMPLE,
        kind if PLANNED_LAYERS.contains(&kind) => {
            problems.add(&source, format!("the layer {kind:?} is planned but not built yet; remove it"));
            return None;
        }
        kind => {
            let message = format!(
                "unknown layer {kind:?}; the known layers are \"cached\", \"routed\", \"transformed\" and \"deduplicated\""
            );
            problems.add(&source, message);
            return None;
        }
    };
    let path = format!("volume.{volume}.{kind}");
    let TomlValue::Table(table) = value else {
        problems.add(&source, format!("{path} must be a table, not {}: {example}", value.kind()));
        return None;
    };
    let fields = Fields::new(path.clone(), Table { source: source.clone(), entries: table.entries });
    match kind.as_str() {
        "cached" => {
            CachedSettings::read(fields, inputs, problems).map(|set| VolumeLayer::Cached(Box::new(set)))
        }
        "routed" => RoutedSettings::read(&path, fields, problems).map(VolumeLayer::Routed),
        "transformed" => {
            TransformedSettings::read(volume, source, fields, inputs, problems).map(VolumeLayer::Transformed)
        }
        _ => DeduplicatedSettings::read(volume, source, fields, problems).map(VolumeLayer::Deduplicated),
    }
}
