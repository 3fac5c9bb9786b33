//! The single-valued settings. Each is declared once here. The declaration generates the struct, the file reader, the
//! environment variables, the check for unknown keys and `settings show`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::Inputs;
use super::document::{Item, Table, Value as TomlValue};
use super::problem::Problems;
use super::reference::{Declaration, Section};
use super::source::{SettingSource, Sourced};
use super::value::{
    AccessKeyIds, AccountId, ETag, HostName, KeyPrefixes, LogFilter, LogFormat, SettingValue,
};
use tradewind_core::quantity::{ByteSize, TimeSpan};

macro_rules! scalars {
    ($($(#[doc = $section_doc:literal])* $section:ident: $type:ident {
        $($(#[doc = $doc:literal])* $key:ident: $value:ty = $default:expr,)*
    })*) => {
        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $type { $($(#[doc = $doc])* pub $key: Sourced<$value>,)* }
        )*

        /// All single-valued settings, with a field for each section of the file.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Scalars { $($(#[doc = $section_doc])* pub $section: $type,)* }

        impl Scalars {
            /// Takes all known keys out of `root`. Top-level keys form the section "top".
            pub(super) fn read(root: &mut Table, inputs: &Inputs, problems: &mut Problems) -> Self {
                Self { $($section: {
                    let section_name = stringify!($section);
                    let mut table = take_section(root, section_name, problems);
                    let read = $type { $($key: {
                        let item = match &mut table {
                            Some(table) => table.take(stringify!($key)),
                            None if section_name == TOP => root.take(stringify!($key)),
                            None => None,
                        };
                        let name = full_key(section_name, stringify!($key));
                        read_one::<$value>(&name, item, $default, inputs, problems)
                    },)* };
                    if let Some(table) = table {
                        table.reject_unknown_keys(section_name, &[$(stringify!($key)),*], &[], problems);
                    }
                    read
                },)* }
            }

            /// Name, value as text, and source of every setting.
            pub(super) fn lines(&self) -> Vec<(String, String, SettingSource)> {
                vec![$($((
                    full_key(stringify!($section), stringify!($key)),
                    self.$section.$key.value.to_text(),
                    self.$section.$key.source.clone(),
                ),)*)*]
            }

            /// The declarations, section by section.
            pub(super) fn declarations() -> Vec<Section> {
                vec![$(Section {
                    table: if stringify!($section) == TOP {
                        String::new()
                    } else {
                        concat!("[", stringify!($section), "]").to_owned()
                    },
                    text: concat!($($section_doc),*).trim(),
                    settings: vec![$(Declaration {
                        key: stringify!($key),
                        default: Some($default).filter(|default: &&str| !default.is_empty()).map(Into::into),
                        text: concat!($($doc),*).trim(),
                    },)*],
                },)*]
            }

            /// The keys that are allowed at the top level.
            pub(super) fn top_names() -> Vec<&'static str> {
                let mut names = Vec::new();
                $(
                    if stringify!($section) == TOP {
                        names.extend([$(stringify!($key)),*]);
                    } else {
                        names.push(stringify!($section));
                    }
                )*
                names
            }
        }
    };
}

/// The section whose keys are at the top level of the file.
const TOP: &str = "top";

scalars! {
    /// Keys before the first table.
    top: TopLevelSettings {
        /// The directory of the local store and of the generated root key.
        data: PathBuf = "data",
        /// The kind of ETag assigned to a write: `md5`, the MD5 of the bytes, or `unique`, which needs no MD5.
        etag: ETag = "md5",
        /// The `[volume.NAME]` of buckets whose `[bucket.NAME]` names none, if there are several.
        default_volume: Option<String> = "",
    }
    /// The listeners.
    server: ServerSettings {
        /// Listen address of the S3 API.
        listen: SocketAddr = "127.0.0.1:9000",
        /// Listen address of health checks and metrics.
        admin: SocketAddr = "127.0.0.1:9001",
        /// The `[store.NAME]` to serve, if there are several and no volumes.
        store: Option<String> = "",
        /// The region. Signatures for another region are rejected. If not set, any region is accepted and responses
        /// name us-east-1.
        region: Option<String> = "",
        /// Host name for virtual-hosted-style requests: with `s3.example.com`, the host `BUCKET.s3.example.com` names
        /// the bucket. If not set, only the path names it.
        domain: Option<HostName> = "",
        /// Accepts presigned URLs of Signature Version 2 for GET, HEAD and PUT. boto3 and `aws s3 presign` create them by
        /// default in us-east-1.
        presigned_sigv2: bool = "true",
        /// The account that owns all buckets: 12 digits. A request whose `x-amz-expected-bucket-owner` differs is
        /// rejected.
        account_id: AccountId = "000000000000",
        /// The certificate chain in PEM. With `tls_key`, S3 is served over TLS.
        tls_cert: Option<PathBuf> = "",
        /// The certificate's private key in PEM.
        tls_key: Option<PathBuf> = "",
        /// Threads that run requests; by default one per CPU.
        workers: Option<NonZeroUsize> = "",
        /// Maximum number of connections. Beyond it, a new connection replaces an idle one, or gets a 503.
        max_connections: NonZeroUsize = "10000",
        /// Time that requests in flight get to finish at shutdown.
        shutdown_grace: TimeSpan = "30s",
    }
    /// Limits for a single client.
    limits: LimitSettings {
        /// Size of the request line and all headers.
        header_size: ByteSize = "32KiB",
        /// Number of headers in a request.
        headers: NonZeroUsize = "200",
        /// Size of a request body.
        body_size: ByteSize = "5GiB",
        /// Time from the first byte of a request to the last of its headers.
        header_time: TimeSpan = "15s",
        /// Time that a connection may be idle.
        idle_time: TimeSpan = "2m",
        /// Time in which a client that the server waits for must transfer `slow_client_size`. If other requests wait
        /// for its memory throughout, it must transfer at least 1 MiB in this time, and `slow_client_size` in each
        /// second.
        slow_client_time: TimeSpan = "30s",
        /// See `slow_client_time`.
        slow_client_size: ByteSize = "4KiB",
        /// Time that a request waits for memory before it gets a 503 SlowDown.
        admission_time: TimeSpan = "20s",
        /// Deadline of requests that transfer no object data.
        request_time: TimeSpan = "5m",
        /// Deadline of requests that transfer object data.
        transfer_time: TimeSpan = "12h",
    }
    /// Memory.
    memory: MemorySettings {
        /// Memory for all request buffers together.
        budget: ByteSize = "128MiB",
    }
    /// Scheduling of requests in lanes.
    lanes: LanesSettings {
        /// Enables lanes: small and high-priority requests have priority over large ones.
        enabled: bool = "false",
        /// Buckets and key prefixes of high priority, for example `orders, photos/thumbnails/`.
        priority_prefixes: KeyPrefixes = "",
        /// Access key ids of high priority, for example `TWSHOP, TWTILL`.
        priority_access_keys: AccessKeyIds = "",
        /// Maximum number of queued requests per lane. Further ones get a 503 SlowDown.
        max_queue_depth: NonZeroUsize = "1024",
    }
    /// Logs.
    log: LogSettings {
        /// Log level (`off`, `error`, `warn`, `info`, `debug` or `trace`), or directives per module, for example
        /// `info,tradewind_gateway=debug`.
        level: LogFilter = "info",
        /// Format of log lines: `text`, `json`, or `auto`, which is text on a terminal and JSON otherwise.
        format: LogFormat = "auto",
    }
    /// Multipart uploads.
    uploads: UploadSettings {
        /// Age at which unfinished uploads are aborted; 0 disables that. Uploads in stores of services: only if it is set.
        expire_after: TimeSpan = "7d",
    }
}

fn full_key(section: &str, key: &str) -> String {
    if section == TOP { key.to_owned() } else { format!("{section}.{key}") }
}

/// The environment variable of a setting: `TRADEWIND_SERVER_LISTEN` for `server.listen`.
#[must_use]
pub fn environment_variable(name: &str) -> String {
    format!("TRADEWIND_{}", name.replace('.', "_").to_ascii_uppercase())
}

fn take_section(root: &mut Table, name: &str, problems: &mut Problems) -> Option<Table> {
    if name == TOP {
        return None;
    }
    match root.take(name)? {
        Item { value: TomlValue::Table(table), .. } => Some(table),
        Item { value, source } => {
            problems.add(&source, format!("{name:?} must be a table, [{name}], not {}", value.kind()));
            None
        }
    }
}

/// Reads one setting from the source of highest priority: flag, environment, file, default.
fn read_one<T: SettingValue>(
    name: &str,
    item: Option<Item>,
    default: &str,
    inputs: &Inputs,
    problems: &mut Problems,
) -> Sourced<T> {
    // All sources are parsed, so that an invalid line in the file is reported even if a flag overrides it.
    let mut read = |source: SettingSource, text: Result<&str, &str>, directory: Option<&Path>| {
        let value = match text {
            Ok(text) => T::parse(text),
            Err(kind) => Err(format!("must be a single value, not {kind}")),
        };
        match value {
            Ok(value) => Some(Sourced { value: directory.into_iter().fold(value, T::relative_to), source }),
            Err(why) => {
                problems.add(&source, format!("{name}: {why}"));
                None
            }
        }
    };
    let variable = environment_variable(name);
    let from_file = item.and_then(|item| {
        let text = item.value.as_text();
        read(item.source, text.as_deref().map_err(|kind| *kind), inputs.file_directory())
    });
    let from_environment = inputs
        .environment(&variable)
        .and_then(|text| read(SettingSource::Environment(variable.clone()), Ok(text), None));
    let from_flag = inputs
        .flags
        .iter()
        .find(|given| given.setting == name)
        .and_then(|given| read(SettingSource::Flag(given.flag), Ok(&given.value), None));
    let value = from_flag.or(from_environment).or(from_file);
    value.unwrap_or_else(|| match T::parse(default) {
        Ok(value) => Sourced { value, source: SettingSource::Default },
        Err(why) => panic!("the default of {name} is wrong: {why}"),
    })
}

impl TomlValue {
    /// The value as text. Fails with its kind if it is a list or a table.
    pub(super) fn as_text(&self) -> Result<String, &'static str> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Integer(integer) => Ok(integer.to_string()),
            Self::Boolean(boolean) => Ok(boolean.to_string()),
            Self::List(_) | Self::Table(_) => Err(self.kind()),
        }
    }
}
