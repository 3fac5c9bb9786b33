//! The file of `--class-rules`: tables `[[rule]]` that give objects a class of data. It has the form of a settings file:
//! unknown keys are rejected, and problems name their line.

use std::path::Path;

use tradewind_core::Class;
use tradewind_core::quantity::ByteSize;
use tradewind_model::class_policy;
use tradewind_transfer::class_rules::{ClassRule, ClassRules};
use tradewind_transfer::filter::Pattern;

use super::document::{self, Item, Value as TomlValue};
use super::fields::Fields;
use super::problem::{Problems, nearest_name};
use super::source::SettingSource;
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

/// Reads the rules in the text of a file.
pub(crate) fn read_class_rules(path: &Path, text: &str) -> Result<ClassRules, Problems> {
    let mut root = document::parse(path, text)?;
    let mut problems = Problems::default();
    let mut rules = Vec::new();
    match root.take("rule") {
        None => {}
        Some(Item { value: TomlValue::List(items), .. }) => {
            for item in items {
                rules.extend(read_rule(item, &mut problems));
            }
        }
        Some(Item { source, .. }) => problems.add(&source, "rules are written as tables: [[rule]]"),
    }
    if rules.is_empty() && problems.0.is_empty() {
        let source = SettingSource::File { path: path.to_owned(), line: 1 };
        problems.add(&source, "there is no rule; write for example [[rule]] and class = \"files\"");
    }
    root.reject_unknown_keys("", &["rule"], &[], &mut problems);
    problems.into_result(ClassRules(rules))
}

fn read_rule(item: Item, problems: &mut Problems) -> Option<ClassRule> {
    let Item { source, value } = item;
    let TomlValue::Table(table) = value else {
        problems.add(&source, format!("a rule must be a table, [[rule]], not {}", value.kind()));
        return None;
    };
    let mut fields = Fields::new("rule".to_owned(), table);
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
    fields.finish(&[], problems);
    if let (Some(min), Some(max)) = (&min_size, &max_size)
        && min.value.0 > max.value.0
    {
        problems.add(&max.source, "rule.max_size is less than min_size: the rule matches nothing");
    }
    Some(ClassRule {
        class: class?.value,
        bucket: bucket.map(|bucket| bucket.value),
        prefix: prefix.map(|prefix| prefix.value),
        glob: glob.map(|glob| glob.value),
        content_type: content_type.map(|pattern| pattern.value),
        min_size: min_size.map(|size| size.value.0),
        max_size: max_size.map(|size| size.value.0),
    })
}

#[cfg(test)]
mod tests {
    use tradewind_transfer::class_rules::ClassifiedObject;

    use super::*;

    fn read(text: &str) -> Result<ClassRules, String> {
        read_class_rules(Path::new("rules.toml"), text).map_err(|problems| problems.to_string())
    }

    fn class_of(rules: &ClassRules, key: &str, size: u64) -> Option<u8> {
        let object = ClassifiedObject { bucket: "b", key, size: Some(size), content_type: Some("image/png") };
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
            ("[[rules]]\nclass = 1", "did you mean \"rule\"?"),
            ("[[rule]\n", "this is not TOML"),
        ] {
            let problems = read(text).map(|_| ()).unwrap_err();
            assert!(problems.contains(expected), "{text}: {problems}");
        }
    }
}
