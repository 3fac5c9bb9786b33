//! Rules that give objects a class of data: the tables `[[class_rule]]` of the settings, which `serve` applies, and
//! `[[rule]]` in the file of `--class-rules`. That file has the form of a settings file: unknown keys are rejected, and
//! problems name their line. Conditions that only a server can check are rejected in it.

use std::path::Path;

use tradewind_core::Class;
use tradewind_core::quantity::ByteSize;
use tradewind_gateway::s3::STORAGE_CLASSES;
use tradewind_model::class_policy;
use tradewind_transfer::class_rules::{ClassRule, ClassRules, TagCondition};
use tradewind_transfer::filter::Pattern;

use super::document::{self, Item, Table, Value as TomlValue};
use super::fields::Fields;
use super::problem::{Problems, nearest_name};
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::SettingValue;

impl SettingValue for Class {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) {
            let class = text.parse().ok().and_then(|value| Self::new(value).ok());
            return class.ok_or_else(|| format!("{text:?} is not a class from 0 to {}", Self::MAX));
        }
        class_policy::class_by_name(text).ok_or_else(|| match nearest_name(text, class_policy::names()) {
            Some(near) => format!("there is no class {text:?}; did you mean {near:?}?"),
            None => format!("{text:?} is neither a class from 0 to {} nor the name of one", Self::MAX),
        })
    }

    fn to_text(&self) -> String {
        class_policy::name(*self).map_or_else(|| self.value().to_string(), str::to_owned)
    }
}

impl SettingValue for Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }

    fn to_text(&self) -> String {
        self.text().to_owned()
    }
}

impl SettingValue for TagCondition {
    fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        match key.is_empty() {
            true => Err(format!("{text:?} must be KEY=VALUE, or KEY for any value")),
            false => Ok(Self { key: key.to_owned(), value }),
        }
    }

    fn to_text(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={value}", self.key),
            None => self.key.clone(),
        }
    }
}

/// A storage class of S3.
struct StorageClass(String);

impl SettingValue for StorageClass {
    fn parse(text: &str) -> Result<Self, String> {
        match STORAGE_CLASSES.contains(&text) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{text:?} is not one of {}", STORAGE_CLASSES.join(", "))),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Where rules are read from, which decides what they can know of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleSet {
    /// The file of `--class-rules`.
    Client,
    /// The settings of a server.
    Server,
}

impl RuleSet {
    /// The key of the tables.
    const fn key(self) -> &'static str {
        match self {
            Self::Client => "rule",
            Self::Server => "class_rule",
        }
    }
}

/// The maximum number of rules of a server: each write without a label is compared with all of them.
const MAX_SERVER_RULES: usize = 1000;

/// Reads the `[[class_rule]]` list of the settings.
pub(super) fn server_rules(root: &mut Table, problems: &mut Problems) -> Vec<Sourced<ClassRule>> {
    let rules = read_rules(root, RuleSet::Server, problems);
    if let Some(first) = rules.get(MAX_SERVER_RULES) {
        let message = format!("there are more than {MAX_SERVER_RULES} rules; combine some of them");
        problems.add(&first.source, message);
    }
    rules
}

/// Reads the rules in the text of a file.
pub(crate) fn read_class_rules(path: &Path, text: &str) -> Result<ClassRules, Problems> {
    let mut root = document::parse(path, text)?;
    let mut problems = Problems::default();
    let rules = read_rules(&mut root, RuleSet::Client, &mut problems);
    if rules.is_empty() && problems.0.is_empty() {
        let source = SettingSource::File { path: path.to_owned(), line: 1 };
        problems.add(&source, "there is no rule; write for example [[rule]] and class = \"files\"");
    }
    root.reject_unknown_keys("", &["rule"], &[], &mut problems);
    problems.into_result(ClassRules(rules.into_iter().map(|rule| rule.value).collect()))
}

fn read_rules(root: &mut Table, set: RuleSet, problems: &mut Problems) -> Vec<Sourced<ClassRule>> {
    match root.take(set.key()) {
        None => Vec::new(),
        Some(Item { value: TomlValue::List(items), .. }) => {
            items.into_iter().filter_map(|item| read_rule(item, set, problems)).collect()
        }
        Some(Item { source, .. }) => {
            problems.add(&source, format!("rules are written as tables: [[{}]]", set.key()));
            Vec::new()
        }
    }
}

fn read_rule(item: Item, set: RuleSet, problems: &mut Problems) -> Option<Sourced<ClassRule>> {
    let Item { source, value } = item;
    let TomlValue::Table(table) = value else {
        problems.add(&source, format!("a rule must be a table, [[{}]], not {}", set.key(), value.kind()));
        return None;
    };
    let mut fields = Fields::new(set.key().to_owned(), table);
    let before = problems.0.len();
    let class = fields.single::<Class>("class", problems);
    if class.is_none() && problems.0.len() == before {
        fields.missing("class", "\"files\"", problems);
    }
    let bucket = fields.text("bucket", problems);
    let prefix = fields.text("prefix", problems);
    let glob = fields.single::<Pattern>("glob", problems);
    let content_type = fields.single::<Pattern>("content_type", problems);
    let min_size = fields.single::<ByteSize>("min_size", problems);
    let max_size = fields.single::<ByteSize>("max_size", problems);
    let known = ServerConditions::read(&mut fields, set, problems);
    fields.finish(&[], problems);
    if let (Some(min), Some(max)) = (&min_size, &max_size)
        && min.value.0 > max.value.0
    {
        let message = format!("{}.max_size is less than min_size: the rule matches nothing", set.key());
        problems.add(&max.source, message);
    }
    let rule = ClassRule {
        class: class?.value,
        bucket: bucket.map(|bucket| bucket.value),
        prefix: prefix.map(|prefix| prefix.value),
        glob: glob.map(|glob| glob.value),
        content_type: content_type.map(|pattern| pattern.value),
        min_size: min_size.map(|size| size.value.0),
        max_size: max_size.map(|size| size.value.0),
        storage_class: known.storage_class,
        tag: known.tag,
        access_key: known.access_key,
    };
    Some(Sourced { value: rule, source })
}

/// The conditions of a rule that only a server can check.
#[derive(Default)]
struct ServerConditions {
    storage_class: Option<String>,
    tag: Option<TagCondition>,
    access_key: Option<String>,
}

impl ServerConditions {
    fn read(fields: &mut Fields, set: RuleSet, problems: &mut Problems) -> Self {
        if set == RuleSet::Client {
            for key in ["storage_class", "tag", "access_key"] {
                let Some(Item { source, .. }) = fields.take(key) else { continue };
                let message = format!(
                    "only a server can check rule.{key}; write this rule as [[class_rule]] in its settings"
                );
                problems.add(&source, message);
            }
            return Self::default();
        }
        Self {
            storage_class: fields.single::<StorageClass>("storage_class", problems).map(|set| set.value.0),
            tag: fields.single("tag", problems).map(|set| set.value),
            access_key: fields.text("access_key", problems).map(|set| set.value),
        }
    }
}

/// A rule in one line, as in an inline table of TOML.
pub(super) fn rule_text(rule: &ClassRule) -> String {
    let size = |bytes: Option<u64>| bytes.map(|bytes| ByteSize(bytes).to_string());
    let conditions = [
        ("bucket", rule.bucket.clone()),
        ("prefix", rule.prefix.clone()),
        ("glob", rule.glob.as_ref().map(Pattern::to_text)),
        ("content_type", rule.content_type.as_ref().map(Pattern::to_text)),
        ("min_size", size(rule.min_size)),
        ("max_size", size(rule.max_size)),
        ("storage_class", rule.storage_class.clone()),
        ("tag", rule.tag.as_ref().map(TagCondition::to_text)),
        ("access_key", rule.access_key.clone()),
    ];
    let given = conditions.iter().filter_map(|(key, value)| Some(format!(", {key} = {:?}", value.as_ref()?)));
    format!("{{ class = {:?}{} }}", rule.class.to_text(), given.collect::<String>())
}

/// The keys of a `[[class_rule]]`.
pub(super) fn declarations() -> Vec<Declaration> {
    let declared = |key, text| Declaration { key, default: None, text };
    vec![
        declared("class", "Class of the object: 0 to 31, or a name. Required."),
        declared("bucket", "The object is in this bucket."),
        declared("prefix", "Its key begins with this."),
        declared("glob", "Its whole key matches this pattern; `*` and `?` also match slashes."),
        declared(
            "content_type",
            "Its content type, in lower case and without parameters, matches this pattern.",
        ),
        declared(
            "min_size",
            "It has at least this size. Does not hold in a multipart upload, whose size is not known.",
        ),
        declared("max_size", "It has at most this size. Does not hold in a multipart upload."),
        declared(
            "storage_class",
            "It is written with this storage class of S3; `STANDARD` is the default of S3.",
        ),
        declared("tag", "It has this tag: `KEY=VALUE`, or `KEY` for any value."),
        declared("access_key", "The id of the access key that writes it."),
    ]
}

#[cfg(test)]
mod tests {
    use tradewind_transfer::class_rules::ClassifiedObject;

    use super::*;

    fn read(text: &str) -> Result<ClassRules, String> {
        read_class_rules(Path::new("rules.toml"), text).map_err(|problems| problems.to_string())
    }

    fn class_of(rules: &ClassRules, key: &str, size: u64) -> Option<u8> {
        let content_type = Some("image/png");
        let object = ClassifiedObject {
            bucket: "b",
            key,
            size: Some(size),
            content_type,
            ..ClassifiedObject::default()
        };
        rules.class_of(&object).map(Class::value)
    }

    #[test]
    fn rules_are_read_in_order() {
        let text = r#"
            [[rule]]
            class = "large"
            min_size = "10MB"

            [[rule]]
            class = 26
            bucket = "b"
            prefix = "photos/"
            glob = "*.png"
            content_type = "image/*"
            max_size = "1MiB"

            [[rule]]
            class = "files"
        "#;
        let rules = read(text).unwrap();
        assert_eq!(class_of(&rules, "photos/a.png", 10_000_000), Some(31));
        assert_eq!(class_of(&rules, "photos/a.png", 100), Some(26));
        assert_eq!(class_of(&rules, "a.txt", 100), Some(25));
    }

    #[test]
    fn problems_name_their_line() {
        for (text, expected) in [
            ("", "rules.toml:1: there is no rule"),
            ("[rule]\nclass = 1", "written as tables: [[rule]]"),
            ("[[rule]]\nglob = \"*\"", "rule needs class"),
            ("[[rule]]\nclass = 32", "rules.toml:2: rule.class: \"32\" is not a class from 0 to 31"),
            ("[[rule]]\nclass = \"file\"", "did you mean \"files\"?"),
            ("[[rule]]\nclass = \"mail\"", "neither a class from 0 to 31 nor the name of one"),
            ("[[rule]]\nclass = 1\nsuffix = \"a\"", "rules.toml:3: unknown key \"rule.suffix\""),
            ("[[rule]]\nclass = 1\nglob = \"a[\"", "rules.toml:3: rule.glob: invalid pattern"),
            ("[[rule]]\nclass = 1\nmin_size = \"2B\"\nmax_size = \"1B\"", "matches nothing"),
            ("[[rule]]\nclass = 1\nmax_size = \"big\"", "rules.toml:3: rule.max_size"),
            ("[[rule]]\nclass = 1\ntag = \"a=b\"", "rules.toml:3: only a server can check rule.tag"),
            (
                "[[rule]]\nclass = 1\nstorage_class = \"STANDARD\"",
                "only a server can check rule.storage_class",
            ),
            ("[[rule]]\nclass = 1\naccess_key = \"a\"", "write this rule as [[class_rule]]"),
            ("[[rules]]\nclass = 1", "did you mean \"rule\"?"),
            ("[[rule]\n", "this is not TOML"),
        ] {
            let problems = read(text).map(|_| ()).unwrap_err();
            assert!(problems.contains(expected), "{text}: {problems}");
        }
    }
}
