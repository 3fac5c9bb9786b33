//! The settings that have a name or form a list: stores, volumes, buckets and access keys. Keys of planned features are
//! rejected by a message of their own.

use std::path::{Component, Path, PathBuf};

use tradewind_core::{BucketName, Class};
use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_transfer::class_rules::ClassRule;

use super::Inputs;
use super::access::{self, AccessKey};
use super::cached::CachedSettings;
use super::class_policies::{self, ClassSettings};
use super::class_rules;
use super::class_transforms;
use super::document::Table;
use super::fields::{Fields, take_named_tables};
use super::local::LocalOptions;
use super::problem::{Problems, nearest_name};
use super::remote::S3Settings;
use super::source::{SettingSource, Sourced};
use super::swift::SwiftSettings;
use super::value::SettingValue;
use super::volume_checks;
use super::volumes::{Volume, VolumeLayer};

/// A `[store.NAME]`: a leaf that stores bytes locally or in a remote service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Name.
    pub name: Sourced<String>,
    /// Type of the store, with its settings.
    pub kind: StoreKind,
}

impl Store {
    /// The type as written in the settings.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self.kind {
            StoreKind::Local { .. } => "local",
            StoreKind::S3(_) => "s3",
            StoreKind::Swift(_) => "swift",
        }
    }
}

/// The type of a store, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// `local`: a directory.
    Local {
        /// The directory.
        path: Sourced<PathBuf>,
        /// Further options.
        options: LocalOptions,
    },
    /// `s3`: a remote S3 service.
    S3(S3Settings),
    /// `swift`: a remote Swift service.
    Swift(SwiftSettings),
}

/// The journals of a volume, with descriptions.
fn journals(volume: &Volume) -> Vec<(String, Sourced<PathBuf>)> {
    let writing_back = volume.layers.iter().filter_map(VolumeLayer::cached).filter(|set| set.writes_back());
    let journal = |set: &CachedSettings| {
        let source = set.journal.as_ref().map_or(&set.disk.source, |set| &set.source).clone();
        let owner = format!("the journal of the volume {:?}", volume.name.value);
        (owner, Sourced { value: set.journal_directory(), source })
    };
    writing_back.map(journal).collect()
}

impl StoreKind {
    /// True if a store of this type may have conditional writes. Of an S3 service, requests find out.
    pub(super) const fn has_conditional_writes(&self) -> bool {
        !matches!(self, Self::Swift(_))
    }
}

/// A `[bucket.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Name.
    pub name: Sourced<BucketName>,
    /// True if requests without a key may read it.
    pub anonymous_read: Option<Sourced<bool>>,
    /// The volume that stores it.
    pub volume: Option<Sourced<String>>,
}

/// All named settings, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedSettings {
    /// Stores.
    pub stores: Vec<Store>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Buckets.
    pub buckets: Vec<Bucket>,
    /// Access keys, without the root key.
    pub access_keys: Vec<AccessKey>,
    /// Rules that classify objects on the server, the first one first.
    pub class_rules: Vec<Sourced<ClassRule>>,
    /// Changes of the default policy of classes.
    pub classes: Vec<ClassSettings>,
}

/// Their top-level keys.
pub(super) const TOP_LEVEL_KEYS: [&str; 7] =
    ["store", "volume", "bucket", "access_key", "class", "class_rule", "root_key"];
/// Top-level keys of features that are planned but not built yet.
pub(super) const PLANNED_TOP_LEVEL_KEYS: [&str; 5] = ["policy", "cache", "mount", "tune", "balance"];

const PLANNED_BUCKET_KEYS: [&str; 6] = ["versioning", "cors", "policy", "acl", "lifecycle", "class"];
const PLANNED_STORE_KEYS: [&str; 2] = ["bucket", "class"];

impl NamedSettings {
    pub(super) fn read(root: &mut Table, inputs: &Inputs, problems: &mut Problems) -> Self {
        Self {
            stores: take_named_tables(root, "store", problems)
                .into_iter()
                .filter_map(|(name, fields)| read_store(name, fields, inputs, problems))
                .collect(),
            volumes: take_named_tables(root, "volume", problems)
                .into_iter()
                .filter_map(|(name, fields)| Volume::read(name, fields, inputs, problems))
                .collect(),
            buckets: take_named_tables(root, "bucket", problems)
                .into_iter()
                .filter_map(|(name, fields)| read_bucket(name, fields, problems))
                .collect(),
            access_keys: access::access_keys(root, problems),
            class_rules: class_rules::server_rules(root, problems),
            classes: take_named_tables(root, "class", problems)
                .into_iter()
                .filter_map(|(number, fields)| ClassSettings::read(number, fields, problems))
                .collect(),
        }
    }

    /// Checks references between settings, and that ids are unique.
    pub(super) fn check(&self, problems: &mut Problems) {
        let stores: Vec<&str> = self.stores.iter().map(|store| store.name.value.as_str()).collect();
        for store in self.volumes.iter().flat_map(Volume::stores) {
            check_reference("store", store, &stores, problems);
        }
        for volume in &self.volumes {
            let store = self.stores.iter().find(|store| store.name.value == volume.store.value);
            let transformed = volume.layers.iter().find_map(VolumeLayer::transformed);
            if let (Some(set), Some(store)) = (transformed, store) {
                set.check_store(&volume.name.value, &store.kind, problems);
            }
            let deduplicated = volume.layers.iter().find_map(VolumeLayer::deduplicated);
            if let (Some(set), Some(store)) = (deduplicated, store) {
                set.check_store(&volume.name.value, &store.kind, problems);
            }
        }
        volume_checks::check(&self.volumes, &self.stores, problems);
        self.check_classes(problems);
        self.check_directories(problems);
        self.check_cache_directories(problems);
        let volumes: Vec<&str> = self.volumes.iter().map(|volume| volume.name.value.as_str()).collect();
        for volume in self.buckets.iter().filter_map(|bucket| bucket.volume.as_ref()) {
            check_reference("volume", volume, &volumes, problems);
        }
        for (index, key) in self.access_keys.iter().enumerate() {
            if self.access_keys[..index].iter().any(|other| other.id.value == key.id.value) {
                let message = format!("access key id {:?} is used twice; ids must be unique", key.id.value);
                problems.add(&key.id.source, message);
            }
        }
    }

    /// Checks the policies of classes against each other, the stores and the layers of the volumes.
    pub(super) fn check_classes(&self, problems: &mut Problems) {
        let stores: Vec<&str> = self.stores.iter().map(|store| store.name.value.as_str()).collect();
        class_policies::check(&self.classes, &stores, problems);
        class_transforms::check(&self.classes, &self.volumes, problems);
    }

    /// The table of a class.
    #[must_use]
    pub fn class_settings(&self, class: Class) -> Option<&ClassSettings> {
        self.classes.iter().find(|set| set.class.value == class)
    }

    /// Settings that are valid and have no effect, one sentence each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        volume_checks::notes(&self.volumes, &self.classes)
    }

    /// The caches for which this machine lacks space, a sentence each. `serve` rejects them at its start.
    #[must_use]
    pub fn caches_without_space(&self) -> Vec<String> {
        volume_checks::caches_without_space(&self.volumes)
    }

    /// The policies of classes: the default ones with the changes of these settings.
    #[must_use]
    pub fn class_policies(&self) -> ClassPolicyTable {
        class_policies::class_policies(&self.classes)
    }

    /// Rejects a directory of a store or a cache that also belongs to another.
    fn check_directories(&self, problems: &mut Problems) {
        let stores = self.stores.iter().filter_map(|store| match &store.kind {
            StoreKind::Local { path, .. } => Some((format!("the store {:?}", store.name.value), path)),
            StoreKind::S3(_) | StoreKind::Swift(_) => None,
        });
        let caches = self.volumes.iter().flat_map(|volume| {
            volume
                .layers
                .iter()
                .filter_map(VolumeLayer::cached)
                .map(|set| (format!("a cache of the volume {:?}", volume.name.value), &set.disk))
        });
        let journals: Vec<(String, Sourced<PathBuf>)> = self.volumes.iter().flat_map(journals).collect();
        let journals = journals.iter().map(|(owner, path)| (owner.clone(), path));
        let owned: Vec<(String, &Sourced<PathBuf>)> = stores.chain(caches).chain(journals).collect();
        for (index, (owner, path)) in owned.iter().enumerate() {
            if let Some((other, _)) =
                owned[..index].iter().find(|(_, other)| is_same(&other.value, &path.value))
            {
                let shown = path.value.display();
                let message =
                    format!("{owner} has the directory {shown}, which belongs to {other}; choose another");
                problems.add(&path.source, message);
            }
        }
    }

    /// Rejects a store or a journal in the directory of a cache, which may be deleted.
    fn check_cache_directories(&self, problems: &mut Problems) {
        let stores = self.stores.iter().filter_map(|store| match &store.kind {
            StoreKind::Local { path, .. } => {
                Some((format!("the store {:?}", store.name.value), path.clone()))
            }
            StoreKind::S3(_) | StoreKind::Swift(_) => None,
        });
        let durable = stores.chain(self.volumes.iter().flat_map(journals));
        let caches = || {
            let layers = self.volumes.iter().flat_map(|volume| &volume.layers);
            layers.filter_map(VolumeLayer::cached).map(|set| &set.disk.value)
        };
        for (owner, path) in durable {
            let holds = |cache: &&PathBuf| {
                !is_same(cache, &path.value) && resolved(&path.value).starts_with(resolved(cache))
            };
            if let Some(cache) = caches().find(holds) {
                let message = format!(
                    "{owner} has the directory {}, which is in that of a cache, {}: a cache may be deleted; choose another, and \
                     move what is there while the server is stopped",
                    path.value.display(),
                    cache.display()
                );
                problems.add(&path.source, message);
            }
        }
    }

    /// Name, value as text, and source of every setting. Secrets are hidden.
    pub(super) fn lines(&self) -> Vec<(String, String, SettingSource)> {
        let mut lines = Vec::new();
        let mut add =
            |name: String, value: String, source: &SettingSource| lines.push((name, value, source.clone()));
        for store in &self.stores {
            let name = &store.name.value;
            let lines = match &store.kind {
                StoreKind::Local { path, options } => {
                    add(format!("store.{name}.path"), path.value.to_text(), &path.source);
                    options.lines()
                }
                StoreKind::S3(set) => set.lines(),
                StoreKind::Swift(set) => set.lines(),
            };
            add(format!("store.{name}.type"), store.type_name().to_owned(), &store.name.source);
            for (option, value, source) in lines {
                add(format!("store.{name}.{option}"), value, &source);
            }
        }
        for volume in &self.volumes {
            add(format!("volume.{}.stack", volume.name.value), volume.stack_text(), &volume.store.source);
        }
        for bucket in &self.buckets {
            let name = &bucket.name.value;
            if let Some(anonymous) = &bucket.anonymous_read {
                add(format!("bucket.{name}.anonymous_read"), anonymous.value.to_string(), &anonymous.source);
            }
            if let Some(volume) = &bucket.volume {
                add(format!("bucket.{name}.volume"), volume.value.clone(), &volume.source);
            }
        }
        lines.extend(self.access_keys.iter().flat_map(AccessKey::lines));
        for (number, rule) in (1..).zip(&self.class_rules) {
            let text = class_rules::rule_text(&rule.value);
            lines.push((format!("class_rule.{number}"), text, rule.source.clone()));
        }
        lines.extend(self.classes.iter().flat_map(ClassSettings::lines));
        lines
    }
}

/// Compares paths without `.` components and with symbolic links resolved, as far as the directories exist.
fn is_same(one: &Path, other: &Path) -> bool {
    resolved(one) == resolved(other)
}

/// The path without links, as far as it exists, and without `..`.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let path = absolute.as_path();
    let known =
        path.ancestors().find_map(|known| Some((known.canonicalize().ok()?, path.strip_prefix(known).ok()?)));
    let (mut resolved, rest) = known.unwrap_or((PathBuf::new(), path));
    for part in rest.components() {
        match part {
            Component::ParentDir if resolved.file_name().is_some() => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    resolved
}

pub(super) fn check_reference(what: &str, name: &Sourced<String>, known: &[&str], problems: &mut Problems) {
    if known.contains(&name.value.as_str()) {
        return;
    }
    let help = match nearest_name(&name.value, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("add [{what}.{}]", name.value),
    };
    problems.add(&name.source, format!("there is no {what} {:?}; {help}", name.value));
}

fn read_store(
    name: Sourced<String>,
    mut fields: Fields,
    inputs: &Inputs,
    problems: &mut Problems,
) -> Option<Store> {
    let kind = fields.text("type", problems);
    match kind {
        Some(kind) if kind.value == "local" => {}
        Some(kind) if kind.value == "s3" => {
            let set = S3Settings::read(&mut fields, problems);
            set.check(&name.value, problems);
            fields.finish(&PLANNED_STORE_KEYS, problems);
            return Some(Store { name, kind: StoreKind::S3(set) });
        }
        Some(kind) if kind.value == "swift" => {
            let set = SwiftSettings::read(&mut fields, inputs, problems);
            set.check(&name.value, problems);
            fields.finish(&PLANNED_STORE_KEYS, problems);
            return Some(Store { name, kind: StoreKind::Swift(set) });
        }
        Some(kind) => {
            problems.add(
                &kind.source,
                format!("unknown store type {:?}; use \"local\", \"s3\" or \"swift\"", kind.value),
            );
            return None;
        }
        None => fields.missing("type", "\"local\"", problems),
    }
    let path = fields.text("path", problems);
    if path.is_none() {
        fields.missing("path", "\"/var/lib/tradewind\"", problems);
    }
    let options = LocalOptions::read(&mut fields, problems);
    options.check(&name.value, problems);
    fields.finish(&PLANNED_STORE_KEYS, problems);
    let path = path?;
    let value = inputs.file_directory().into_iter().fold(PathBuf::from(path.value), |p, d| d.join(p));
    let path = Sourced { value, source: path.source };
    Some(Store { name, kind: StoreKind::Local { path, options } })
}

fn read_bucket(name: Sourced<String>, mut fields: Fields, problems: &mut Problems) -> Option<Bucket> {
    let anonymous_read = fields.boolean("anonymous_read", problems);
    let volume = fields.text("volume", problems);
    fields.finish(&PLANNED_BUCKET_KEYS, problems);
    match BucketName::new(&name.value) {
        Ok(value) => Some(Bucket { name: Sourced { value, source: name.source }, anonymous_read, volume }),
        Err(error) => {
            problems.add(&name.source, error.to_string());
            None
        }
    }
}
