//! The settings reference: every key with its default and meaning, from the declarations that are also read.

use std::borrow::Cow;

use super::cached::CachedSettings;
use super::class_policies::ClassSettings;
use super::class_rules;
use super::deduplicated::DeduplicatedSettings;
use super::local::LocalOptions;
use super::routed::RoutedSettings;
use super::scalars::{Scalars, environment_variable};
use super::transformed::TransformedSettings;

/// One key.
pub(super) struct Declaration {
    pub key: &'static str,
    /// Text of the default; `None` if the key is unset by default.
    pub default: Option<Cow<'static, str>>,
    pub text: &'static str,
}

/// The keys of one table.
pub(super) struct Section {
    /// The table as written in the file; empty for keys before the first table.
    pub table: String,
    pub text: &'static str,
    pub settings: Vec<Declaration>,
}

const PROXY_TEXT: &str = "URL of the HTTP proxy of this store, or `none`, instead of `HTTP_PROXY` and `HTTPS_PROXY`. \
                          It applies to loopback endpoints, too, and `NO_PROXY` does not.";

/// The default of `part_size`; a test compares it with the options of the store.
const DEFAULT_PART_SIZE: &str = "8MiB";
/// Like [`DEFAULT_PART_SIZE`], of `segment_size` of a Swift store.
const DEFAULT_SWIFT_SEGMENT_SIZE: &str = "1GiB";

const MAX_CONNECTIONS_TEXT: &str = "Maximum number of connections. Default of `serve`: 8/7 of the plan's concurrency, \
                                    at least 80. Default of commands: their maximum concurrency.";

const fn declared(key: &'static str, text: &'static str) -> Declaration {
    Declaration { key, default: None, text }
}

const fn with_default(key: &'static str, default: &'static str, text: &'static str) -> Declaration {
    Declaration { key, default: Some(Cow::Borrowed(default)), text }
}

/// The tables with a name, and lists.
fn named_tables() -> Vec<Section> {
    let section = |table: &str, text, settings| Section { table: table.to_owned(), text, settings };
    let mut local = vec![declared("type", "`\"local\"`."), declared("path", "The directory. Required.")];
    local.extend(LocalOptions::declarations());
    vec![
        section("[store.NAME]", "A directory.", local),
        section(
            "[store.NAME]",
            "A remote S3 service. Endpoint, region and credentials default to those of the AWS CLI.",
            vec![
                declared("type", "`\"s3\"`."),
                declared("endpoint", "URL of the service."),
                declared("region", "Region."),
                declared("profile", "Profile in `~/.aws` with its credentials."),
                declared("proxy", PROXY_TEXT),
                declared("max_connections", MAX_CONNECTIONS_TEXT),
                with_default(
                    "part_size",
                    DEFAULT_PART_SIZE,
                    "Part size of writes of unknown length, 5MiB to 5GiB.",
                ),
                declared(
                    "storage_classes",
                    "Storage classes for classes of data: `{ 28 = \"STANDARD_IA\", 31 = \"GLACIER_IR\" }`.",
                ),
                declared(
                    "class_tag",
                    "Key of a tag with the number of an object's class, for the lifecycle rules of the service.",
                ),
            ],
        ),
        section(
            "[store.NAME]",
            "A remote Swift service. Credentials are in the variables `OS_*` or `ST_*`.",
            vec![
                declared("type", "`\"swift\"`."),
                declared(
                    "openrc",
                    "A file that sets `ST_*` or `OS_*` variables, used instead of those of the process.",
                ),
                declared("region", "Region in the catalog of Keystone."),
                declared("storage_url", "URL of the account, used instead of the one issued with the token."),
                declared("proxy", PROXY_TEXT),
                declared("max_connections", MAX_CONNECTIONS_TEXT),
                with_default(
                    "segment_size",
                    DEFAULT_SWIFT_SEGMENT_SIZE,
                    "Segment size of large objects, 1MiB to 5GiB.",
                ),
            ],
        ),
        section(
            "[volume.NAME]",
            "A stack of layers over a store.",
            vec![declared(
                "stack",
                "Layers from top to bottom, then a store: `[LAYER, ..., \"STORE\"]`. Required.",
            )],
        ),
        section(
            "{ cached = { ... } }",
            "A layer of a stack: a cache in memory and on a fast disk.",
            CachedSettings::declarations(),
        ),
        section(
            "{ routed = { ... } }",
            "A layer of a stack: objects of some classes are in other stores.",
            RoutedSettings::declarations(),
        ),
        section(
            "{ transformed = { ... } }",
            "A layer of a stack, directly above a local store: compression and encryption.",
            TransformedSettings::declarations(),
        ),
        section(
            "{ deduplicated = { ... } }",
            "A layer of a stack, directly above a local store: equal chunks of objects are stored once.",
            DeduplicatedSettings::declarations(),
        ),
        section(
            "[bucket.NAME]",
            "Settings of one bucket.",
            vec![
                with_default(
                    "anonymous_read",
                    "false",
                    "True if requests without a key may read the bucket's objects and their tags, not list them.",
                ),
                declared("volume", "The volume that stores the bucket. Default: `default_volume`."),
            ],
        ),
        section(
            "[class.N]",
            "The policy of a class of data, 0 to 31. What is not set is as in the default policy. SIGHUP reloads these tables.",
            ClassSettings::declarations(),
        ),
        section(
            "[[access_key]]",
            "A further access key.",
            vec![
                declared("id", "Access key id. Required."),
                declared("secret", "Secret key. Required."),
                with_default("permissions", "read-write", "`read` (get, head and list) or `read-write`."),
                declared("buckets", "The buckets that the key may access; all by default."),
            ],
        ),
        section(
            "[[class_rule]]",
            "A rule that gives objects a class of data if they are written without one. The first rule whose conditions \
             all hold decides. `SIGHUP` reads the rules again.",
            class_rules::declarations(),
        ),
        section(
            "[root_key]",
            "The root key. `TRADEWIND_ACCESS_KEY` and `TRADEWIND_SECRET_KEY` override it; without either it is generated.",
            vec![declared("id", "Access key id."), declared("secret", "Secret key.")],
        ),
    ]
}

/// All settings, as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut out = String::from(
        "# Settings reference\n\nThe output of `tradewind settings reference`. Flags override environment variables, which override the file, \
         which overrides the\ndefaults. Sizes are written as `64KiB` or `5GB`, times as `30s`, `5m` or `7d`.\n",
    );
    for Section { table, text, settings } in Scalars::declarations().into_iter().chain(named_tables()) {
        let is_single = !table.contains('.') && !table.starts_with("[[") && table != "[root_key]";
        let title = if table.is_empty() { "Top level".to_owned() } else { format!("`{table}`") };
        out += &format!("\n## {title}\n\n{text}\n\n");
        out += if is_single {
            "| key | default | meaning | variable |\n|---|---|---|---|\n"
        } else {
            "| key | default | meaning |\n|---|---|---|\n"
        };
        for Declaration { key, default, text } in settings {
            let default = default.map_or_else(String::new, |default| format!("`{default}`"));
            out += &format!("| `{key}` | {default} | {} |", text.replace('|', "\\|"));
            if is_single {
                let section = table.trim_matches(['[', ']']);
                let name = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
                out += &format!(" `{}` |", environment_variable(&name));
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options};
    use tradewind_backend::swift::{Auth, SwiftOptions};
    use tradewind_core::quantity::ByteSize;

    use super::super::document::Table;
    use super::super::fields::Fields;
    use super::super::problem::Problems;
    use super::super::remote::S3Settings;
    use super::super::source::SettingSource;
    use super::super::swift::SwiftSettings;
    use super::super::tests::inputs;
    use super::*;

    /// The keys that a reader takes from an empty table.
    fn keys_of(read: impl FnOnce(&mut Fields)) -> Vec<&'static str> {
        let table = Table { source: SettingSource::Default, entries: Vec::new() };
        let mut fields = Fields::new("store.name".to_owned(), table);
        read(&mut fields);
        fields.known_keys().to_vec()
    }

    #[test]
    fn stores_have_the_keys_that_are_read() {
        let mut problems = Problems::default();
        let read = [
            keys_of(|fields| drop(LocalOptions::read(fields, &mut problems))),
            keys_of(|fields| drop(S3Settings::read(fields, &mut problems))),
            keys_of(|fields| drop(SwiftSettings::read(fields, &inputs(""), &mut problems))),
        ];
        let documented = named_tables().into_iter().filter(|section| section.table == "[store.NAME]");
        for (read, section) in read.into_iter().zip(documented) {
            let keys: Vec<_> = section.settings.iter().map(|setting| setting.key).collect();
            let own = keys.iter().filter(|key| !["type", "path"].contains(*key));
            assert!(own.eq(&read), "{keys:?} {read:?}");
        }
    }

    #[test]
    fn defaults_of_remote_stores_match_their_options() {
        let endpoint = Endpoint::parse("http://127.0.0.1:9000", AddressingStyle::Path).unwrap();
        let s3 = S3Options::new(endpoint, String::new(), None);
        assert_eq!(ByteSize(s3.part_bytes as u64).to_string(), DEFAULT_PART_SIZE);
        let auth = Auth::V1 { url: String::new(), user: String::new(), key: String::new() };
        assert_eq!(ByteSize(SwiftOptions::new(auth).segment_bytes).to_string(), DEFAULT_SWIFT_SEGMENT_SIZE);
    }

    #[test]
    fn reference_has_defaults_and_variables() {
        let text = reference();
        assert!(
            text.contains("| `listen` | `127.0.0.1:9000` |") && text.contains("`TRADEWIND_SERVER_LISTEN`"),
            "{text}"
        );
        assert!(text.contains("## `[store.NAME]`"), "{text}");
    }
}
