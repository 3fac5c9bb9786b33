//! The types of single-valued settings. Each parses text (of a flag, a variable or the file) and prints text that
//! parses to the same value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use tracing_subscriber::EnvFilter;

use tradewind_backend::remote::{Proxy, ProxyRules};
use tradewind_core::BucketName;
use tradewind_core::quantity::{ByteSize, TimeSpan};

/// The type of a single-valued setting.
pub trait SettingValue: Sized {
    /// Parses a value. The error states the problem and a valid example.
    fn parse(text: &str) -> Result<Self, String>;

    /// The text that parses to this value.
    fn to_text(&self) -> String;

    /// The value as read from a file in `directory`: resolves a relative path against it.
    #[must_use]
    fn relative_to(self, directory: &Path) -> Self {
        let _ = directory;
        self
    }
}

impl SettingValue for SocketAddr {
    fn parse(text: &str) -> Result<Self, String> {
        let text =
            text.strip_prefix("localhost:").map_or(text.to_owned(), |port| format!("127.0.0.1:{port}"));
        text.parse().map_err(|_| {
            format!(
                "{text:?} is not an address and port; write for example \"127.0.0.1:9000\" or \"[::]:9000\""
            )
        })
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a path is required".to_owned()) } else { Ok(Self::from(text)) }
    }

    fn to_text(&self) -> String {
        self.display().to_string()
    }

    fn relative_to(self, directory: &Path) -> Self {
        directory.join(self)
    }
}

/// The proxy of one store, used instead of that in the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreProxy {
    /// The store is reached directly.
    Direct,
    /// The store is reached through this proxy, also on loopback.
    Through(Proxy),
}

impl StoreProxy {
    /// The rules for the store's requests.
    #[must_use]
    pub fn rules(&self) -> ProxyRules {
        match self {
            Self::Direct => ProxyRules::direct(),
            Self::Through(proxy) => ProxyRules::always(proxy.clone()),
        }
    }
}

impl SettingValue for StoreProxy {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Direct);
        }
        Proxy::parse(text).map(Self::Through).map_err(|why| format!("the value {why}, or none"))
    }

    /// Without the credentials of the proxy.
    fn to_text(&self) -> String {
        match self {
            Self::Direct => "none".to_owned(),
            Self::Through(proxy) => proxy.to_string(),
        }
    }
}

impl SettingValue for String {
    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() { Err("it must not be empty".to_owned()) } else { Ok(text.to_owned()) }
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::parse(text).map(Some) }
    }

    fn to_text(&self) -> String {
        self.as_ref().map(T::to_text).unwrap_or_default()
    }

    fn relative_to(self, directory: &Path) -> Self {
        self.map(|value| value.relative_to(directory))
    }
}

macro_rules! displayed {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            fn parse(text: &str) -> Result<Self, String> {
                <$type>::parse(text)
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
displayed!(ByteSize, TimeSpan);

macro_rules! counted {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{text:?} is not a whole number above 0"))
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
counted!(NonZeroUsize, NonZeroU32, NonZeroU16);

impl SettingValue for bool {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// A list of buckets and key prefixes, each `BUCKET` or `BUCKET/PREFIX`. May be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPrefixes(pub Vec<String>);

impl SettingValue for KeyPrefixes {
    fn parse(text: &str) -> Result<Self, String> {
        let each = text.split(',').map(str::trim).filter(|each| !each.is_empty());
        let checked = each.map(|each| {
            let bucket = each.split_once('/').map_or(each, |(bucket, _)| bucket);
            BucketName::new(bucket)
                .map_err(|error| format!("{error}; write for example \"orders, photos/thumbnails/\""))?;
            Ok(each.to_owned())
        });
        Ok(Self(checked.collect::<Result<_, String>>()?))
    }

    fn to_text(&self) -> String {
        self.0.join(", ")
    }
}

/// A list of access key ids. May be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessKeyIds(pub Vec<String>);

impl SettingValue for AccessKeyIds {
    fn parse(text: &str) -> Result<Self, String> {
        let each = text.split(',').map(str::trim).filter(|each| !each.is_empty());
        Ok(Self(each.map(str::to_owned).collect()))
    }

    fn to_text(&self) -> String {
        self.0.join(", ")
    }
}

/// A percentage from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub u8);

impl SettingValue for Percent {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match number {
            Some(number) if number <= 100 => Ok(Self(number)),
            _ => Err(format!("{text:?} is not a percentage; write for example \"60%\"")),
        }
    }

    fn to_text(&self) -> String {
        format!("{}%", self.0)
    }
}

/// The id of an AWS account: 12 digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountId(pub String);

impl SettingValue for AccountId {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() != 12 || !text.bytes().all(|c| c.is_ascii_digit()) {
            return Err(format!(
                "{text:?} is not an account id; write 12 digits, for example \"123456789012\""
            ));
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A host name without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(pub String);

impl SettingValue for HostName {
    fn parse(text: &str) -> Result<Self, String> {
        let is_label = |label: &str| {
            let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            let is_inner = label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            label.len() <= 63 && is_edge(label.chars().next()) && is_edge(label.chars().last()) && is_inner
        };
        let is_address = text.parse::<IpAddr>().is_ok();
        if is_address || text.len() > 253 || !text.split('.').all(is_label) {
            return Err(format!(
                "{text:?} is not a host name; write for example \"s3.example.com\", without a port"
            ));
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

macro_rules! choices {
    ($($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$each])* $variant,)* }

        impl SettingValue for $type {
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(format!("{text:?} is not one of {}", [$(concat!("\"", $text, "\"")),*].join(", "))),
                }
            }

            fn to_text(&self) -> String {
                match self { $(Self::$variant => $text,)* }.to_owned()
            }
        }
    )*};
}

choices! {
    /// Format of log lines.
    LogFormat {
        /// Text on a terminal, JSON otherwise.
        Auto = "auto",
        /// Human-readable text.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
    /// The kind of ETag assigned to a write.
    ETag {
        /// The MD5 of the bytes, like AWS.
        Md5 = "md5",
        /// Unique to each write and with a dash; needs no MD5.
        Unique = "unique",
    }
    /// The permissions of an access key.
    Permissions {
        /// Get, head and list.
        Read = "read",
        /// Everything.
        ReadWrite = "read-write",
    }
}

/// A log level ("info"), or directives per module ("info,tradewind_gateway=debug").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The directives in the syntax of [`EnvFilter`].
    #[must_use]
    pub fn directives(&self) -> &str {
        &self.0
    }
}

impl SettingValue for LogFilter {
    fn parse(text: &str) -> Result<Self, String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
        let is_plain_word = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
        // `EnvFilter` accepts any word as a module name; a mistyped level must not pass as one.
        let mistyped = text.split(',').map(str::trim).find(|part| is_plain_word(part) && !is_level(part));
        if text.is_empty() || mistyped.is_some() || EnvFilter::try_new(text).is_err() {
            return Err(format!("{text:?} is not a log level; write one of {}", LEVELS.join(", ")));
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Text that must never be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`, which can then only be read by [`reveal`](Self::reveal).
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Not to be logged or printed.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
