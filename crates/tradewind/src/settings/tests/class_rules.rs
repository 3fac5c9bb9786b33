//! The rules by which a server classifies objects.

use super::*;

#[test]
fn server_rules_are_read_in_order_and_shown() {
    let settings = read(
        "[[access_key]]\nid = \"camera\"\nsecret = \"12345678\"\n\
         [[class_rule]]\nclass = \"large\"\nmin_size = \"10MB\"\n\
         [[class_rule]]\nclass = 26\nbucket = \"b\"\nprefix = \"p/\"\nglob = \"*.jpg\"\ncontent_type = \"image/*\"\n\
         max_size = \"1MiB\"\nstorage_class = \"STANDARD_IA\"\ntag = \"a=b\"\naccess_key = \"camera\"\n",
    );
    assert_eq!(settings.named.class_rules.len(), 2);
    let lines: Vec<String> = settings
        .named
        .lines()
        .into_iter()
        .filter(|(key, ..)| key.starts_with("class_rule"))
        .map(|(key, value, source)| format!("{key} {value} {source}"))
        .collect();
    assert_eq!(
        lines,
        [
            "class_rule.1 { class = \"large\", min_size = \"10MB\" } etc/tw.toml:4",
            "class_rule.2 { class = \"pictures\", bucket = \"b\", prefix = \"p/\", glob = \"*.jpg\", content_type = \
             \"image/*\", max_size = \"1MiB\", storage_class = \"STANDARD_IA\", tag = \"a=b\", access_key = \"camera\" } \
             etc/tw.toml:7",
        ]
    );
}

#[test]
fn wrong_server_rules_are_rejected_with_their_line() {
    for (text, expected) in [
        ("[class_rule]\nclass = 1", "etc/tw.toml:1: rules are written as tables: [[class_rule]]"),
        ("[[class_rule]]\nprefix = \"a\"", "etc/tw.toml:1: class_rule needs class"),
        ("[[class_rule]]\nclass = 1\nsuffix = \"a\"", "etc/tw.toml:3: unknown key \"class_rule.suffix\""),
        ("[[class_rule]]\nclass = 1\nstorage_class = \"COLD\"", "\"COLD\" is not one of STANDARD, "),
        ("[[class_rule]]\nclass = 1\ntag = \"=a\"", "must be KEY=VALUE, or KEY for any value"),
        ("[[class_rule]]\nclass = 1\naccess_key = \"nobody\"", "there is no access key \"nobody\""),
        (
            "[[class_rule]]\nclass = 1\nmin_size = \"2B\"\nmax_size = \"1B\"",
            "class_rule.max_size is less than min_size",
        ),
        ("[[class_rules]]\nclass = 1", "did you mean \"class_rule\"?"),
    ] {
        let found = problem(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
    let many = "[[class_rule]]\nclass = 1\n".repeat(1001);
    assert!(problem(&many).contains("more than 1000 rules"));
}
