//! Volumes: a `[volume.NAME]` is a stack of layers over a store. A layer is a table in the list `stack`, which ends with
//! the name of a store.

use std::fmt;
use std::path::PathBuf;

use super::Inputs;
use super::class_policies::ClassSettings;
use super::deduplicated::DeduplicatedSettings;
use super::document::{Item, Table, Value as TomlValue};
use super::fields::Fields;
use super::named::Store;
use super::problem::Problems;
use super::reference::Declaration;
use super::routed::{RoutedSettings, RoutedTier};
use super::source::{SettingSource, Sourced};
use super::transformed::TransformedSettings;
use super::value::SettingValue;
use tradewind_cache::{DEFAULT_VERIFY_BYTES_PER_SECOND, Eviction, MAX_SSD_BYTES};
use tradewind_core::quantity::{ByteSize, TimeSpan};

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

/// A `{ cached = { ... } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedSettings {
    /// Directory of the cache on the fast disk.
    pub disk: Sourced<PathBuf>,
    /// Size of the cache in that directory.
    pub size: Sourced<ByteSize>,
    /// Size of the cache in memory.
    pub memory: Sourced<ByteSize>,
    /// When cached data is compared with the store below.
    pub validate: Sourced<Validate>,
    /// The eviction policy.
    pub policy: Sourced<Eviction>,
    /// Bytes of the cache on the fast disk that are verified per second; 0 for none.
    pub verify_rate: Sourced<ByteSize>,
    /// The limit of bytes that reads write to the fast disk per second.
    pub max_write_rate: Option<Sourced<ByteSize>>,
    /// The event that completes a write.
    pub write: Sourced<CacheWrite>,
    /// Write-back: the writes that may fill the journal.
    pub write_admission: Sourced<WriteAdmissionBy>,
    /// Write-back: the limit of data that only the journal has.
    pub max_dirty: Sourced<ByteSize>,
    /// Write-back: directory of the journal on the fast disk. See [`Self::journal_directory`].
    pub journal: Option<Sourced<PathBuf>>,
    /// Write-back: no other server writes the store below.
    pub sole_writer: Sourced<bool>,
}

/// When cached data is compared with the store below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validate {
    /// Never over a local store, which no other process writes; at each read over a service.
    Auto,
    /// Never: nothing else writes the store below.
    Never,
    /// At each read.
    Always,
    /// At a read after this time since the last comparison. Longer than 0.
    After(TimeSpan),
}

/// The event that completes a write to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheWrite {
    /// The write to the store below: the cache has no data that the store does not have.
    Through,
    /// The write to the journal.
    Back,
    /// None: changes are rejected.
    ReadOnly,
}

/// The order in which writes may fill the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAdmissionBy {
    /// The priority of their class; without a label, their size.
    Class,
    /// None: each enters while there is room.
    Room,
}

const LAYERS: [&str; 7] =
    ["cached", "routed", "striped", "transformed", "deduplicated", "observed", "scheduled"];
const STACK_EXAMPLE: &str = "stack = [\"disk\"]";
const MIN_CACHE_SIZE: ByteSize = ByteSize(64 << 20);
const MAX_CACHE_SIZE: ByteSize = ByteSize(MAX_SSD_BYTES);
const MIN_CACHE_MEMORY: ByteSize = ByteSize(1 << 20);
const DEFAULT_CACHE_MEMORY: ByteSize = ByteSize(64 << 20);
const DEFAULT_VERIFY_RATE: ByteSize = ByteSize(DEFAULT_VERIFY_BYTES_PER_SECOND);
const MIN_MAX_WRITE_RATE: ByteSize = ByteSize(64 << 10);
const MIN_MAX_DIRTY: ByteSize = ByteSize(64 << 20);
const DEFAULT_MAX_DIRTY: ByteSize = ByteSize(1 << 30);

impl SettingValue for Validate {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "never" => return Ok(Self::Never),
            "always" => return Ok(Self::Always),
            _ => {}
        }
        match TimeSpan::parse(text) {
            Ok(time) if time.0.is_zero() => {
                Err("to validate at each read, write \"always\" instead of 0".to_owned())
            }
            Ok(time) => Ok(Self::After(time)),
            Err(why) => Err(format!("{why}, or \"always\", \"never\" or \"auto\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Never => "never".to_owned(),
            Self::Always => "always".to_owned(),
            Self::After(time) => time.to_string(),
        }
    }
}

impl SettingValue for CacheWrite {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "through" => Ok(Self::Through),
            "back" => Ok(Self::Back),
            "read-only" => Ok(Self::ReadOnly),
            _ => Err(format!("{text:?} is none of \"through\", \"back\" and \"read-only\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Through => "through".to_owned(),
            Self::Back => "back".to_owned(),
            Self::ReadOnly => "read-only".to_owned(),
        }
    }
}

impl SettingValue for Eviction {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "adaptive-window" => Ok(Self::AdaptiveWindow),
            "lru" => Ok(Self::Lru),
            "s3-fifo" => Ok(Self::S3Fifo),
            _ => Err(format!("{text:?} is none of \"adaptive-window\", \"lru\" and \"s3-fifo\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::AdaptiveWindow => "adaptive-window".to_owned(),
            Self::Lru => "lru".to_owned(),
            Self::S3Fifo => "s3-fifo".to_owned(),
        }
    }
}

impl SettingValue for WriteAdmissionBy {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "class" => Ok(Self::Class),
            "room" => Ok(Self::Room),
            _ => Err(format!("{text:?} is neither \"class\" nor \"room\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Class => "class".to_owned(),
            Self::Room => "room".to_owned(),
        }
    }
}

impl CachedSettings {
    fn read(mut fields: Fields, inputs: &Inputs, problems: &mut Problems) -> Option<Self> {
        fn or_default<T>(set: Option<Sourced<T>>, default: T) -> Sourced<T> {
            set.unwrap_or(Sourced { value: default, source: SettingSource::Default })
        }
        let absolute = |set: Sourced<PathBuf>| {
            let value = inputs.file_directory().into_iter().fold(set.value, PathBuf::relative_to);
            Sourced { value, source: set.source }
        };
        let disk = fields.single::<PathBuf>("disk", problems).map(absolute);
        let size = fields.single("size", problems);
        let memory = fields.single("memory", problems);
        let validate = fields.single("validate", problems);
        let policy = fields.single("policy", problems);
        let verify_rate = fields.single("verify_rate", problems);
        let max_write_rate = fields.single("max_write_rate", problems);
        let write = fields.single("write", problems);
        let write_admission = fields.single("write_admission", problems);
        let max_dirty = fields.single("max_dirty", problems);
        let journal = fields.single::<PathBuf>("journal", problems).map(absolute);
        let sole_writer = fields.boolean("sole_writer", problems);
        for (key, is_given, example) in [
            ("disk", fields.has_taken("disk"), "\"/ssd/cache\""),
            ("size", fields.has_taken("size"), "\"1GiB\""),
        ] {
            if !is_given {
                fields.missing(key, example, problems);
            }
        }
        fields.finish(&[], problems);
        Some(Self {
            disk: disk?,
            size: size?,
            memory: or_default(memory, DEFAULT_CACHE_MEMORY),
            validate: or_default(validate, Validate::Auto),
            policy: or_default(policy, Eviction::default()),
            verify_rate: or_default(verify_rate, DEFAULT_VERIFY_RATE),
            max_write_rate,
            write: or_default(write, CacheWrite::Through),
            write_admission: or_default(write_admission, WriteAdmissionBy::Class),
            max_dirty: or_default(max_dirty, DEFAULT_MAX_DIRTY),
            journal,
            sole_writer: or_default(sole_writer, false),
        })
    }

    /// True if a write is complete when it is in the journal.
    #[must_use]
    pub fn writes_back(&self) -> bool {
        self.write.value == CacheWrite::Back
    }

    /// True if changes are rejected.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.write.value == CacheWrite::ReadOnly
    }

    /// The directory of the journal: beside that of the cache, unless it is set.
    #[must_use]
    pub fn journal_directory(&self) -> PathBuf {
        self.journal.as_ref().map_or_else(
            || {
                let mut path = self.disk.value.clone().into_os_string();
                path.push("-journal");
                path.into()
            },
            |set| set.value.clone(),
        )
    }

    fn check(&self, volume: &str, problems: &mut Problems) {
        for (key, set, min) in
            [("size", &self.size, MIN_CACHE_SIZE), ("memory", &self.memory, MIN_CACHE_MEMORY)]
        {
            if set.value < min {
                problems.add(&set.source, format!("volume.{volume}.cached.{key} must be at least {min}"));
            }
        }
        if self.size.value > MAX_CACHE_SIZE {
            let message = format!(
                "volume.{volume}.cached.size must be at most {MAX_CACHE_SIZE}, which the index of a cache can hold"
            );
            problems.add(&self.size.source, message);
        }
        if let Some(rate) = &self.max_write_rate
            && rate.value < MIN_MAX_WRITE_RATE
        {
            let message =
                format!("volume.{volume}.cached.max_write_rate must be at least {MIN_MAX_WRITE_RATE}");
            problems.add(&rate.source, message);
        }
        if self.max_dirty.value < MIN_MAX_DIRTY {
            let message = format!("volume.{volume}.cached.max_dirty must be at least {MIN_MAX_DIRTY}");
            problems.add(&self.max_dirty.source, message);
        }
    }

    /// The declarations, with the defaults.
    pub(super) fn declarations() -> Vec<Declaration> {
        let declared =
            |key, default: Option<String>, text| Declaration { key, default: default.map(Into::into), text };
        vec![
            declared("disk", None, "Directory of the cache on a fast disk. Required."),
            declared("size", None, "Size of the cache in that directory, 64MiB to 7TiB. Required."),
            declared(
                "memory",
                Some(DEFAULT_CACHE_MEMORY.to_string()),
                "Size of the cache in memory, at least 1MiB. A part of `memory.budget`.",
            ),
            declared(
                "validate",
                Some(Validate::Auto.to_text()),
                "When cached data is compared with the store below: `always`, at each read; a time such as `60s`, at \
                 the first read after that time, until which a change made elsewhere is not seen; `never`, if nothing \
                 else writes the store; `auto`, `never` over a local store and `always` over a service.",
            ),
            declared(
                "policy",
                Some(Eviction::default().to_text()),
                "The eviction policy of memory and disk. `lru` and `s3-fifo` are baselines for comparison: they ignore \
                 priority, occupancy and pins of classes, and pins of prefixes.",
            ),
            declared(
                "verify_rate",
                Some(DEFAULT_VERIFY_RATE.to_string()),
                "Bytes of the cache on the fast disk that are read and verified per second, while that disk is idle. With \
                 the default, 100GiB take about a week. 0 turns it off.",
            ),
            declared(
                "max_write_rate",
                None,
                "Limit of the bytes per second that reads write to the fast disk on average, at least 64KiB. Bursts of five \
                 minutes are allowed. What exceeds it is cached in memory only, unless it is missed a second time. \
                 Default: no limit.",
            ),
            declared(
                "write",
                Some(CacheWrite::Through.to_text()),
                "`through`: a write waits for the store below. `back`: it waits for the journal, and the store below gets it \
                 later. Then nothing else may write that store. `read-only`: writes and all other changes are rejected with 403.",
            ),
            declared(
                "write_admission",
                Some(WriteAdmissionBy::Class.to_text()),
                "With `write = \"back\"`: the writes that may fill the journal. `class`: the fuller it is, the higher the priority \
                 that a write needs, among those that arrive; without a label, small objects come first. `room`: all, \
                 while there is room, and the oldest are written back first.",
            ),
            declared(
                "max_dirty",
                Some(DEFAULT_MAX_DIRTY.to_string()),
                "With `write = \"back\"`: the limit of data that only the journal has, at least 64MiB. Beyond it, and for \
                 objects larger than an eighth of it, writes wait for the store below.",
            ),
            declared(
                "journal",
                None,
                "With `write = \"back\"`: directory of the journal on a fast disk. Default: `disk` with `-journal` appended.",
            ),
            declared(
                "sole_writer",
                Some("false".to_owned()),
                "`true` confirms that no other server writes the store below. Required for `write = \"back\"` over a \
                 service without conditional writes, which cannot detect it.",
            ),
        ]
    }
}

/// Formats the layer in the syntax of a settings file, with its defaults.
impl fmt::Display for VolumeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Routed(set) => set.fmt(f),
            Self::Cached(set) => {
                write!(
                    f,
                    "{{ cached = {{ disk = {:?}, size = {:?}, memory = {:?}, validate = {:?}, write = {:?}",
                    set.disk.value.to_text(),
                    set.size.value.to_text(),
                    set.memory.value.to_text(),
                    set.validate.value.to_text(),
                    set.write.value.to_text(),
                )?;
                if set.policy.value != Eviction::default() {
                    write!(f, ", policy = {:?}", set.policy.value.to_text())?;
                }
                if set.verify_rate.value != DEFAULT_VERIFY_RATE {
                    write!(f, ", verify_rate = {:?}", set.verify_rate.value.to_text())?;
                }
                if let Some(rate) = &set.max_write_rate {
                    write!(f, ", max_write_rate = {:?}", rate.value.to_text())?;
                }
                if set.write_admission.value != WriteAdmissionBy::Class {
                    write!(f, ", write_admission = {:?}", set.write_admission.value.to_text())?;
                }
                if set.writes_back() || set.max_dirty.value != DEFAULT_MAX_DIRTY {
                    write!(f, ", max_dirty = {:?}", set.max_dirty.value.to_text())?;
                }
                if set.writes_back() || set.journal.is_some() {
                    write!(f, ", journal = {:?}", set.journal_directory().to_text())?;
                }
                if set.sole_writer.value {
                    f.write_str(", sole_writer = true")?;
                }
                f.write_str(" } }")
            }
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
        for set in layers.iter().filter_map(VolumeLayer::cached) {
            set.check(&name.value, problems);
        }
        check_order(&name.value, &layers, problems);
        check_read_only(&name.value, &layers, problems);
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
    match (kind.as_str(), value) {
        ("cached", TomlValue::Table(table)) => {
            let table = Table { source, entries: table.entries };
            let fields = Fields::new(format!("volume.{volume}.cached"), table);
            CachedSettings::read(fields, inputs, problems).map(|set| VolumeLayer::Cached(Box::new(set)))
        }
        ("routed", TomlValue::Table(table)) => {
            let path = format!("volume.{volume}.routed");
            let fields = Fields::new(path.clone(), Table { source, entries: table.entries });
            RoutedSettings::read(&path, fields, problems).map(VolumeLayer::Routed)
        }
        ("routed", other) => {
            let example = RoutedSettings::EXAMPLE;
            let message = format!("volume.{volume}.routed must be a table, not {}: {example}", other.kind());
            problems.add(&source, message);
            None
        }
        ("transformed", TomlValue::Table(table)) => {
            let table = Table { source: source.clone(), entries: table.entries };
            let fields = Fields::new(format!("volume.{volume}.transformed"), table);
            let read = TransformedSettings::read(volume, source, fields, inputs, problems);
            read.map(VolumeLayer::Transformed)
        }
        ("transformed", other) => {
            let example = "{ transformed = { compress = true } }";
            let message =
                format!("volume.{volume}.transformed must be a table, not {}: {example}", other.kind());
            problems.add(&source, message);
            None
        }
        ("deduplicated", TomlValue::Table(table)) => {
            let table = Table { source: source.clone(), entries: table.entries };
            let fields = Fields::new(format!("volume.{volume}.deduplicated"), table);
            let read = DeduplicatedSettings::read(volume, source, fields, problems);
            read.map(VolumeLayer::Deduplicated)
        }
        ("deduplicated", other) => {
            let example = DeduplicatedSettings::EXAMPLE;
            let message =
                format!("volume.{volume}.deduplicated must be a table, not {}: {example}", other.kind());
            problems.add(&source, message);
            None
        }
        ("cached", other) => {
            let example = "{ cached = { disk = \"/ssd/cache\", size = \"1GiB\" } }";
            let message = format!("volume.{volume}.cached must be a table, not {}: {example}", other.kind());
            problems.add(&source, message);
            None
        }
        (kind, _) if LAYERS.contains(&kind) => {
            problems.add(&source, format!("the layer {kind:?} is planned but not built yet; remove it"));
            None
        }
        (kind, _) => {
            problems.add(
                &source,
                format!(
                    "unknown layer {kind:?}; the known layers are \"cached\", \"routed\", \"transformed\" and \
                     \"deduplicated\""
                ),
            );
            None
        }
    }
}

/// Rejects `transformed` or `deduplicated` over another layer, which would take the stored bytes for those of the object.
/// Rejects `transformed`
/// with `encrypt` below `routed`, whose tiers would have classes to be encrypted as plain text.
fn check_order(volume: &str, layers: &[VolumeLayer], problems: &mut Problems) {
    let [upper @ .., last] = layers else { return };
    let transformed = layers.iter().find_map(VolumeLayer::transformed);
    if let (Some(set), Some(_)) = (transformed, layers.iter().find_map(VolumeLayer::deduplicated)) {
        let message = format!(
            "volume.{volume}: transformed and deduplicated cannot be in one stack, because each must be directly above the \
             store: remove one"
        );
        problems.add(&set.source, message);
        return;
    }
    if let Some(set) = upper.iter().find_map(VolumeLayer::deduplicated) {
        let message = format!(
            "volume.{volume}.deduplicated must be directly above the store: write it last, before the name of the store"
        );
        problems.add(&set.source, message);
    }
    if let Some(set) = upper.iter().find_map(VolumeLayer::transformed) {
        let message = format!(
            "volume.{volume}.transformed must be directly above the store: write it last, before the name of the store"
        );
        problems.add(&set.source, message);
    }
    let has_tiers = upper.iter().any(|layer| layer.tiers().next().is_some());
    if let Some(set) = last.transformed().filter(|set| has_tiers && !set.encrypt.set().is_empty()) {
        let message = format!(
            "volume.{volume}.transformed encrypts only the store at the bottom, but volume.{volume}.routed stores objects in \
             other stores, where they would be plain text: remove encrypt, or the layer routed"
        );
        problems.add(&set.source, message);
    }
}

/// Rejects `read-only` in a volume with another layer that changes stores on its own: tiers move objects, and write-back
/// writes its journal.
fn check_read_only(volume: &str, layers: &[VolumeLayer], problems: &mut Problems) {
    let caches = || layers.iter().filter_map(VolumeLayer::cached);
    let Some(set) = caches().find(|set| set.is_read_only()) else { return };
    let read_only = format!("volume.{volume}.cached.write is \"read-only\"");
    if layers.iter().any(|layer| layer.tiers().next().is_some()) {
        let message = format!(
            "{read_only}, but volume.{volume}.routed writes and moves objects in the stores of its tiers: remove routed, or \
             write \"through\""
        );
        problems.add(&set.write.source, message);
    }
    if caches().any(CachedSettings::writes_back) {
        let message = format!(
            "{read_only}, but another cache of the volume writes back: write \"read-only\" in both, or in neither"
        );
        problems.add(&set.write.source, message);
    }
}

/// Checks volumes against each other: a store below layers that have a state of their own, or know the tier of each
/// object, is below those of no other volume. A store that is written back is in one volume only.
pub(super) fn check(volumes: &[Volume], known: &[Store], problems: &mut Problems) {
    for (index, volume) in volumes.iter().enumerate() {
        let stores: Vec<&Sourced<String>> = volume.stores().collect();
        for (count, store) in stores.iter().enumerate() {
            if stores[..count].iter().any(|other| other.value == store.value) {
                let (name, store_name) = (&volume.name.value, &store.value);
                let message = format!("the volume {name:?} has the store {store_name:?} twice; remove one");
                problems.add(&store.source, message);
            }
        }
        check_write_back(volume, volumes, known, problems);
        check_deduplicated(volume, volumes, problems);
        let Some(layer) = volume.layers.first() else { continue };
        let shared = volumes[..index].iter().filter(|other| !other.layers.is_empty()).find_map(|other| {
            let store = stores.iter().find(|store| other.stores().any(|own| own.value == store.value))?;
            Some((other, *store))
        });
        let Some((other, store)) = shared else { continue };
        let is_cached = |volume: &Volume| volume.layers.iter().all(|layer| layer.cached().is_some());
        let (layers, one) = match is_cached(volume) && is_cached(other) {
            true => ("a cache", "one cache"),
            false => ("layers", "the layers of one volume"),
        };
        let message = format!(
            "the volumes {:?} and {:?} both have {layers} over the store {:?}; a store can be below {one} only: map the \
             buckets of both to one volume",
            other.name.value, volume.name.value, store.value
        );
        let source = layer.cached().map_or(&store.source, |set| &set.disk.source);
        problems.add(source, message);
    }
}

/// Settings that are valid and have no effect: policies of classes in caches that ignore them.
pub(super) fn notes(volumes: &[Volume], classes: &[ClassSettings]) -> Vec<String> {
    let is_for_caches =
        |set: &&ClassSettings| set.priority.is_some() || set.occupancy.is_some() || set.pin.is_some();
    let classes: Vec<String> =
        classes.iter().filter(is_for_caches).map(|set| set.class.value.value().to_string()).collect();
    if classes.is_empty() {
        return Vec::new();
    }
    let caches = volumes.iter().flat_map(|volume| {
        let caches = volume.layers.iter().filter_map(VolumeLayer::cached);
        caches.map(|set| (&volume.name.value, &set.policy))
    });
    let ignoring = caches.filter(|(_, policy)| !policy.value.obeys_classes());
    let note = |(volume, policy): (&String, &Sourced<Eviction>)| {
        format!(
            "{}: the cache policy {:?} of the volume {volume:?} ignores priority, occupancy and pin; they are set for the \
             classes {}",
            policy.source,
            policy.value.to_text(),
            classes.join(", ")
        )
    };
    ignoring.map(note).collect()
}

/// Checks that no other volume without layers uses a store with chunks, whose bucket it would show.
fn check_deduplicated(volume: &Volume, volumes: &[Volume], problems: &mut Problems) {
    let Some(set) = volume.layers.iter().find_map(VolumeLayer::deduplicated) else { return };
    let store = &volume.store.value;
    let uses_it = |other: &&Volume| {
        other.name.value != volume.name.value
            && other.layers.is_empty()
            && other.stores().any(|own| own.value == *store)
    };
    for other in volumes.iter().filter(uses_it) {
        let message = format!(
            "the volume {:?} deduplicates the store {store:?}, which the volume {:?} uses too; map the buckets of both to \
             one volume",
            volume.name.value, other.name.value
        );
        problems.add(&set.source, message);
    }
}

/// Checks that a volume which writes back is the only writer of its store, as far as the settings say.
fn check_write_back(volume: &Volume, volumes: &[Volume], stores: &[Store], problems: &mut Problems) {
    let mut writing_back =
        volume.layers.iter().filter_map(VolumeLayer::cached).filter(|set| set.writes_back());
    let Some(set) = writing_back.next() else { return };
    if let Some(second) = writing_back.next() {
        let message = format!(
            "the volume {:?} writes back in two layers; write \"through\" in one of them",
            volume.name.value
        );
        problems.add(&second.write.source, message);
    }
    if matches!(set.validate.value, Validate::Always | Validate::After(_)) {
        let message = format!(
            "volume.{}.cached.validate is {:?}, but write = \"back\" means that nothing else writes the store; remove it",
            volume.name.value,
            set.validate.value.to_text()
        );
        problems.add(&set.validate.source, message);
    }
    for name in volume.stores() {
        let store = stores.iter().find(|store| store.name.value == name.value);
        if store.is_some_and(|store| !store.kind.has_conditional_writes()) && !set.sole_writer.value {
            let message = format!(
                "volume.{}.cached.write is \"back\", but the store {:?} has no conditional writes, so that a second server \
                 would not be detected; if no other server writes it, set sole_writer = true",
                volume.name.value, name.value
            );
            problems.add(&set.write.source, message);
        }
        let uses_it = |other: &&Volume| {
            other.name.value != volume.name.value && other.stores().any(|own| own.value == name.value)
        };
        for other in volumes.iter().filter(uses_it) {
            let message = format!(
                "the volume {:?} writes back to the store {:?}, which the volume {:?} uses too and would find old data \
                 in; map the buckets of both to one volume",
                volume.name.value, name.value, other.name.value
            );
            problems.add(&set.write.source, message);
        }
    }
}
