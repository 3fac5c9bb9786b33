//! The single-valued settings: each is declared once here, and the declaration feeds the struct, the
//! reader of the file, the environment variables, the check for unknown keys and `settings show`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::Inputs;
use super::document::{Item, Table, Value as TomlValue};
use super::problem::Problems;
use super::source::{Source, Sourced};
use super::value::{Beginnings, ETag, HostName, KeyIds, LogFilter, LogFormat, Value};
use tradewind_core::quantity::{ByteSize, Span};

macro_rules! scalars {
    ($($(#[$section_doc:meta])* $section:ident: $type:ident {
        $($(#[$doc:meta])* $key:ident: $value:ty = $default:expr,)*
    })*) => {
        $(
            $(#[$section_doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $type { $($(#[$doc])* pub $key: Sourced<$value>,)* }
        )*

        /// All single-valued settings, a field for each section of the file.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Scalars { $($(#[$section_doc])* pub $section: $type,)* }

        impl Scalars {
            /// Takes every known key out of `root`. Top-level keys are the section "top".
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
                        let name = whole_name(section_name, stringify!($key));
                        read_one::<$value>(&name, item, $default, inputs, problems)
                    },)* };
                    if let Some(table) = table {
                        table.refuse_rest(section_name, &[$(stringify!($key)),*], &[], problems);
                    }
                    read
                },)* }
            }

            /// Every setting's name, value as text, and source.
            pub(super) fn lines(&self) -> Vec<(String, String, Source)> {
                vec![$($((
                    whole_name(stringify!($section), stringify!($key)),
                    self.$section.$key.value.show(),
                    self.$section.$key.source.clone(),
                ),)*)*]
            }

            /// The names that may stand at the top level.
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

/// The section whose keys stand at the top level of the file.
const TOP: &str = "top";

scalars! {
    /// Keys before the first table.
    top: Top {
        /// The directory of the embedded store and of the generated root key.
        data: PathBuf = "data",
        /// Which entity tag a write gets.
        etag: ETag = "md5",
    }
    /// The listeners.
    server: Server {
        /// Where S3 is served.
        listen: SocketAddr = "127.0.0.1:9000",
        /// Where health and metrics are served.
        admin: SocketAddr = "127.0.0.1:9001",
        /// Which of several `[store.NAME]` is served.
        store: Option<String> = "",
        /// The region; signatures for another one are refused. Not set, any region is taken and answers
        /// name us-east-1.
        region: Option<String> = "",
        /// A host name, `s3.example.com`: a request to `BUCKET.s3.example.com` is one to that bucket. Not set,
        /// buckets are named by the path alone.
        domain: Option<HostName> = "",
        /// The certificate chain in PEM; with `tls_key`, S3 is served over TLS.
        tls_cert: Option<PathBuf> = "",
        /// The certificate's private key in PEM.
        tls_key: Option<PathBuf> = "",
        /// Threads that run requests; by default one a processor.
        workers: Option<NonZeroUsize> = "",
        /// Connections at once. A new one takes the place of an idle one, or is answered 503.
        max_connections: NonZeroUsize = "10000",
        /// How long requests in flight may take to finish at shutdown.
        shutdown_grace: Span = "30s",
    }
    /// What one client may take of the server.
    limits: Limits {
        /// A request's line and headers together.
        header_size: ByteSize = "32KiB",
        /// Headers of a request.
        headers: NonZeroUsize = "100",
        /// A request's body.
        body_size: ByteSize = "5GiB",
        /// From a request's first byte to the last of its headers.
        header_time: Span = "15s",
        /// A connection without a request.
        idle_time: Span = "2m",
        /// A client that is waited for must move `slow_client_size` in this time; 1 MiB, where that is
        /// more, if all the while other clients wait for its memory. Then it must move `slow_client_size` each second
        /// if they need it.
        slow_client_time: Span = "30s",
        /// See `slow_client_time`.
        slow_client_size: ByteSize = "4KiB",
        /// How long a request waits for memory before it is answered 503 SlowDown.
        admission_time: Span = "20s",
        /// The deadline of requests that carry no object's bytes.
        request_time: Span = "5m",
        /// The deadline of requests that do.
        transfer_time: Span = "12h",
    }
    /// Memory.
    memory: Memory {
        /// All request buffers together.
        budget: ByteSize = "128MiB",
    }
    /// Requests that wait so that others need not.
    lanes: LanesSettings {
        /// Requests take turns: small ones and those of high priority go first.
        enabled: bool = "false",
        /// Keys of high priority: `orders, photos/thumbnails/` is a bucket and what begins so in another.
        first: Beginnings = "",
        /// Clients of high priority, by the ids of their access keys: `TWSHOP, TWTILL`.
        first_clients: KeyIds = "",
        /// Requests that wait in a lane; more are answered 503 SlowDown.
        most_waiting: NonZeroUsize = "1024",
    }
    /// Logs.
    log: Log {
        /// What is logged.
        level: LogFilter = "info",
        /// How a line looks.
        format: LogFormat = "auto",
    }
    /// Multipart uploads.
    uploads: Uploads {
        /// Unfinished uploads older than this are aborted; 0 keeps them.
        expire_after: Span = "7d",
    }
}

fn whole_name(section: &str, key: &str) -> String {
    if section == TOP { key.to_owned() } else { format!("{section}.{key}") }
}

/// The variable that sets a setting: `server.listen` is `TRADEWIND_SERVER_LISTEN`.
#[must_use]
pub fn variable(name: &str) -> String {
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

/// The highest source wins: flag, environment, file, default.
fn read_one<T: Value>(
    name: &str,
    item: Option<Item>,
    default: &str,
    inputs: &Inputs,
    problems: &mut Problems,
) -> Sourced<T> {
    // Every source is read, so that a wrong line of the file is found although a flag covers it.
    let mut read = |source: Source, text: Result<&str, &str>, directory: Option<&Path>| {
        let value = match text {
            Ok(text) => T::parse(text),
            Err(kind) => Err(format!("{kind} cannot stand here; one value is needed")),
        };
        match value {
            Ok(value) => Some(Sourced { value: directory.into_iter().fold(value, T::within), source }),
            Err(why) => {
                problems.add(&source, format!("{name}: {why}"));
                None
            }
        }
    };
    let variable = variable(name);
    let from_file = item.and_then(|item| {
        let text = item.value.as_text();
        read(item.source, text.as_deref().map_err(|kind| *kind), inputs.file_directory())
    });
    let from_environment = inputs
        .environment(&variable)
        .and_then(|text| read(Source::Environment(variable.clone()), Ok(text), None));
    let from_flag = inputs
        .flags
        .iter()
        .find(|given| given.setting == name)
        .and_then(|given| read(Source::Flag(given.flag), Ok(&given.value), None));
    let value = from_flag.or(from_environment).or(from_file);
    value.unwrap_or_else(|| match T::parse(default) {
        Ok(value) => Sourced { value, source: Source::Default },
        Err(why) => panic!("the default of {name} is wrong: {why}"),
    })
}

impl TomlValue {
    /// The value as text, where it is a single one.
    pub(super) fn as_text(&self) -> Result<String, &'static str> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Integer(integer) => Ok(integer.to_string()),
            Self::Boolean(boolean) => Ok(boolean.to_string()),
            Self::List(_) | Self::Table(_) => Err(self.kind()),
        }
    }
}
