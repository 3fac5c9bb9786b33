//! Overrides of `[class.N]` by calls.

use serde_json::json;
use tradewind_core::Class;

use super::*;

const STORE: &str = "[store.ssd]\ntype = \"local\"\npath = \"p\"\n";
const CLASSES: &str = "[class.25]\nname = \"mail\"\npriority = 2\noccupancy = \"60%\"\ntier = \"ssd\"\n\
    [class.26]\noccupancy = \"20%\"\n";

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

fn named() -> NamedSettings {
    read(&format!("{STORE}{CLASSES}")).named
}

fn change(overrides: &ClassOverrides, number: u8, body: &str) -> ChangedClasses {
    overrides.change(&named(), class(number), body.as_bytes()).unwrap_or_else(|it| panic!("{body}: {it}"))
}

#[test]
fn overrides_replace_values_of_the_settings_and_keep_the_others() {
    let changed = change(&ClassOverrides::default(), 25, r#"{"priority": 1, "pin": true}"#);
    let set = changed.named.class_settings(class(25)).unwrap().values();
    let expected = json!({ "name": "mail", "priority": 1, "occupancy": "60%", "pin": true, "tier": "ssd" });
    assert_eq!(serde_json::Value::Object(set), expected);
    let overridden = changed.overrides.overridden(&named(), class(25));
    assert_eq!(serde_json::Value::Object(overridden), json!({ "priority": 2, "pin": null }));
    let second = change(&changed.overrides, 30, r#"{"write": "through", "share": 4}"#);
    assert_eq!(second.overrides.classes().map(Class::value).collect::<Vec<_>>(), [25, 30]);
    assert_eq!(second.named.class_policies().priority(class(25)).value(), 1);
}

#[test]
fn every_key_can_be_overridden_and_removed() {
    let text = "[store.d]\ntype = \"local\"\npath = \"d\"\n[volume.v]\n\
        stack = [{ transformed = { key = \"k\", keys = { k = \"k.key\" } } }, \"d\"]\n";
    let named = read(text).named;
    for (body, key) in [
        (json!({ "name": "post" }), "name"),
        (json!({ "priority": 0 }), "priority"),
        (json!({ "occupancy": "5%" }), "occupancy"),
        (json!({ "write": "back" }), "write"),
        (json!({ "pin": false }), "pin"),
        (json!({ "share": 1000 }), "share"),
        (json!({ "compress": true }), "compress"),
        (json!({ "encrypt": true }), "encrypt"),
    ] {
        let before = ClassOverrides::default();
        let set = before.change(&named, class(30), body.to_string().as_bytes()).unwrap();
        assert_eq!(set.overrides.overridden(&named, class(30)).keys().collect::<Vec<_>>(), [key], "{body}");
        let removal = json!({ key: null }).to_string();
        let removed = set.overrides.change(&named, class(30), removal.as_bytes()).unwrap();
        assert_eq!((removed.overrides, removed.named), (before, named.clone()), "{body}");
    }
}

#[test]
fn value_of_the_settings_is_no_override() {
    let changed = change(&ClassOverrides::default(), 25, r#"{"priority": 1, "name": "post"}"#);
    let back = change(&changed.overrides, 25, r#"{"priority": 2, "name": null}"#);
    assert_eq!(back.overrides, ClassOverrides::default());
    assert_eq!(back.named, named());
}

#[test]
fn limits_hold_for_settings_and_overrides_together() {
    let over = |overrides: &ClassOverrides, number, body: &str| {
        overrides.change(&named(), class(number), body.as_bytes()).unwrap_err().to_string()
    };
    let none = ClassOverrides::default();
    let sum = "the occupancies of classes are 110% in sum; they must be at most 100%";
    assert!(over(&none, 30, r#"{"occupancy": "30%"}"#).contains(sum));
    let lower = change(&none, 25, r#"{"occupancy": "50%"}"#).overrides;
    let full = change(&lower, 30, r#"{"occupancy": "30%"}"#).overrides;
    assert!(
        over(&full, 25, r#"{"occupancy": null}"#).contains(sum),
        "the value of the settings is checked too"
    );
    assert!(over(&none, 26, r#"{"name": "MAIL"}"#).contains("is already the name of class 25"));
}

#[test]
fn too_many_keys_are_rejected_before_they_are_kept() {
    let body: Vec<String> = (0..5_000).map(|number| format!("\"k{number}\":1")).collect();
    let body = format!("{{{}}}", body.join(","));
    let problems = ClassOverrides::default().change(&named(), class(25), body.as_bytes()).unwrap_err();
    assert!(problems.to_string().contains("more than 32 keys"), "{problems}");
    assert_eq!(problems.0.len(), 1);
}

#[test]
fn values_of_another_type_or_length_are_rejected() {
    let rejected = |body: serde_json::Value| {
        let body = body.to_string();
        ClassOverrides::default().change(&named(), class(30), body.as_bytes()).unwrap_err().to_string()
    };
    for (body, why) in [
        (json!({ "priority": "2" }), "class.30.priority must be a number, not text"),
        (json!({ "share": "4" }), "class.30.share must be a number, not text"),
        (json!({ "occupancy": 5 }), "class.30.occupancy must be text, not a number"),
        (json!({ "write": true }), "class.30.write must be text, not true or false"),
        (json!({ "pin": "true" }), "class.30.pin must be true or false, not text"),
        (json!({ "compress": 1 }), "class.30.compress must be true or false, not a number"),
        (json!({ "name": 7 }), "class.30.name must be text, not a number"),
        (json!({ "name": ["a"] }), "class.30.name must be text, not a list"),
        (json!({ "name": {} }), "class.30.name must be text, not an object"),
        (json!({ "name": "a".repeat(129) }), "class.30.name has 129 bytes; it may have at most 128"),
        (json!({ "name": "a".repeat(60_000) }), "class.30.name has 60000 bytes; it may have at most 128"),
    ] {
        let problems = rejected(body);
        assert!(problems.contains(why), "{why:?} is not in {problems:?}");
    }
    let max_length = json!({ "name": "a".repeat(128) }).to_string();
    change(&ClassOverrides::default(), 30, &max_length);
}
