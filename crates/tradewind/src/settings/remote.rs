//! The settings of a store of type `s3`. Credentials, and other values not set here, come from the usual configuration
//! of S3 clients; the settings file never contains them.

use std::collections::BTreeMap;

use super::document::{Item, Value as TomlValue};
use super::fields::Fields;
use super::problem::Problems;
use super::source::{SettingSource, Sourced};
use super::value::{SettingValue, StoreProxy};
use std::num::NonZeroUsize;
use tradewind_core::quantity::ByteSize;
use tradewind_core::{Class, Tags};

/// A `[store.NAME]` of type `s3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Settings {
    /// URL of the service.
    pub endpoint: Option<Sourced<String>>,
    /// Region.
    pub region: Option<Sourced<String>>,
    /// Profile in `~/.aws` with its credentials.
    pub profile: Option<Sourced<String>>,
    /// The proxy of this store.
    pub proxy: Option<Sourced<StoreProxy>>,
    /// Maximum number of connections.
    pub max_connections: Option<Sourced<NonZeroUsize>>,
    /// Part size of writes of unknown length.
    pub part_size: Option<Sourced<ByteSize>>,
    /// The storage classes that the service gets for classes of data.
    pub storage_classes: Option<Sourced<BTreeMap<Class, String>>>,
    /// The key of the tag that has the class of an object.
    pub class_tag: Option<Sourced<String>>,
}

impl S3Settings {
    pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Self {
        Self {
            endpoint: fields.text("endpoint", problems),
            region: fields.text("region", problems),
            profile: fields.text("profile", problems),
            proxy: fields.single("proxy", problems),
            max_connections: fields.single("max_connections", problems),
            part_size: fields.single("part_size", problems),
            storage_classes: read_storage_classes(fields, problems),
            class_tag: fields.text("class_tag", problems),
        }
    }

    /// False if both are certainly of different services. Accounts and profiles of one service may have the same buckets, and
    /// so may its regions, apart from those of another partition.
    pub(super) fn may_be_same_service(&self, other: &Self) -> bool {
        match (self.place(), other.place()) {
            (Some(one), Some(other)) => one == other,
            // An endpoint that the environment or a profile names is not known here.
            (None, None) => match (self.partition(), other.partition()) {
                (Some(one), Some(other)) => one == other,
                _ => true,
            },
            _ => false,
        }
    }

    /// The endpoint without its scheme and the default port.
    fn place(&self) -> Option<String> {
        let url = self.endpoint.as_ref()?.value.trim_end_matches('/');
        let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = host.to_ascii_lowercase();
        let default = if scheme.eq_ignore_ascii_case("http") { ":80" } else { ":443" };
        Some(format!("{}/{path}", host.strip_suffix(default).unwrap_or(&host)))
    }

    /// The begin of the names of the regions that have buckets in common. `None` without a region.
    fn partition(&self) -> Option<&'static str> {
        let region = self.region.as_ref()?.value.as_str();
        let begin = ["cn-", "us-gov-"].into_iter().find(|begin| region.starts_with(begin));
        Some(begin.unwrap_or_default())
    }

    /// Checks the part size and the tag against the limits of S3.
    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        if let Some(size) = &self.part_size
            && !(5 << 20..=5 << 30).contains(&size.value.0)
        {
            let message = format!("store.{name}.part_size must be 5MiB to 5GiB, the part sizes of S3");
            problems.add(&size.source, message);
        }
        if let Some(tag) = &self.class_tag
            && let Err(error) = Tags::new(vec![(tag.value.clone(), String::new())])
        {
            problems.add(&tag.source, format!("store.{name}.class_tag: {error}"));
        }
    }

    /// Name, value as text, and source of every setting that is set.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, SettingSource)> {
        let texts = [("endpoint", &self.endpoint), ("region", &self.region), ("profile", &self.profile)];
        let texts = texts
            .into_iter()
            .filter_map(|(name, set)| set.as_ref().map(|set| (name, set.value.clone(), set.source.clone())));
        let proxy = self.proxy.iter().map(|set| ("proxy", set.value.to_text(), set.source.clone()));
        let connections = self
            .max_connections
            .iter()
            .map(|set| ("max_connections", set.value.to_text(), set.source.clone()));
        let parts = self.part_size.iter().map(|set| ("part_size", set.value.to_text(), set.source.clone()));
        let storage_classes = self.storage_classes.iter().map(|set| {
            let pairs: Vec<String> =
                set.value.iter().map(|(class, name)| format!("{} = {name:?}", class.value())).collect();
            ("storage_classes", format!("{{ {} }}", pairs.join(", ")), set.source.clone())
        });
        let tag = self.class_tag.iter().map(|set| ("class_tag", set.value.clone(), set.source.clone()));
        texts.chain(proxy).chain(connections).chain(parts).chain(storage_classes).chain(tag).collect()
    }
}

/// Reads `storage_classes = { CLASS = "STORAGE_CLASS" }`. A class is a number or a name.
fn read_storage_classes(
    fields: &mut Fields,
    problems: &mut Problems,
) -> Option<Sourced<BTreeMap<Class, String>>> {
    const EXAMPLE: &str = "storage_classes = { 31 = \"GLACIER_IR\" }";
    let Item { source, value } = fields.take("storage_classes")?;
    let TomlValue::Table(table) = value else {
        problems.add(&source, format!("storage_classes must be a table, not {}: {EXAMPLE}", value.kind()));
        return None;
    };
    let mut classes = BTreeMap::new();
    for (key, item) in table.entries {
        let class = Class::parse(&key).map_err(|why| format!("storage_classes: {why}"));
        let name = match item.value {
            TomlValue::Text(name) if is_storage_class(&name) => Ok(name),
            TomlValue::Text(name) => Err(format!("{name:?} is not a storage class, for example {EXAMPLE}")),
            other => Err(format!("a storage class must be text, not {}: {EXAMPLE}", other.kind())),
        };
        match (class, name) {
            (Ok(class), Ok(name)) => {
                if classes.insert(class, name).is_some() {
                    problems.add(&item.source, format!("storage_classes: the class {key} is given twice"));
                }
            }
            (Err(why), _) | (_, Err(why)) => problems.add(&item.source, why),
        }
    }
    Some(Sourced { value: classes, source })
}

/// Returns true if this has the form of a storage class: capital letters, digits and `_`.
fn is_storage_class(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=64).contains(&name.len()) && name.bytes().all(is_legal)
}
