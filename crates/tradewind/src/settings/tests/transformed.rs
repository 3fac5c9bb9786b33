//! The layer `transformed` in the settings.

use super::*;
use crate::settings::{ClassChoice, KeySource, Secret};

const STORES: &str = "[store.a]\ntype = \"local\"\npath = \"p\"\n\
    [store.far]\ntype = \"s3\"\nendpoint = \"http://127.0.0.1:1\"\n";

fn volume(stack: &str) -> String {
    format!("{STORES}[volume.v]\nstack = [{stack}]\n")
}

fn with_key_variable(text: &str) -> Inputs {
    let mut inputs = inputs(text);
    inputs.environment.insert("TRADEWIND_OLD_KEY".into(), "secret".into());
    inputs
}

#[test]
fn transformed_layers_are_read_and_shown_without_secrets() {
    let layer = "{ transformed = { compress = [0, 31], encrypt = true, key = \"main\", keys = { main = \"k/main\", old = \
                 \"env:TRADEWIND_OLD_KEY\" } } }";
    let settings = Settings::read(&with_key_variable(&volume(&format!("{layer}, \"a\"")))).unwrap();
    let set = settings.named.volumes[0].layers[0].transformed().unwrap();
    let classes = [0, 31].map(|class| tradewind_core::Class::new(class).unwrap());
    assert_eq!(
        (&set.compress, &set.encrypt),
        (&ClassChoice::Of(classes.to_vec()), &ClassChoice::Every(true))
    );
    assert_eq!(set.key.as_ref().unwrap().value, "main");
    assert_eq!(set.keys["main"].value, KeySource::File("etc/k/main".into()), "relative to the file");
    let (name, value) = ("TRADEWIND_OLD_KEY".to_owned(), Secret::new("secret"));
    assert_eq!(set.keys["old"].value, KeySource::Environment { name, value });
    let shown = settings.to_string();
    let stack = "[{ transformed = { compress = [0, 31], encrypt = true, key = \"main\", keys = { \"main\" = \"etc/k/main\", \
                 \"old\" = \"env:TRADEWIND_OLD_KEY\" } } }, \"a\"]";
    assert!(shown.contains(stack) && !shown.contains("secret"), "{shown}");
    let shown = settings.named.volumes[0].stack_text();
    let again = format!("{STORES}[volume.v]\nstack = {shown}\n");
    let again = Settings::read(&with_key_variable(&again)).unwrap();
    assert!(again.named.volumes[0].stack_text().contains("\"old\" = \"env:TRADEWIND_OLD_KEY\""));
}

#[test]
fn invalid_transformed_layers_are_rejected_with_line_and_remedy() {
    let layer = |fields: &str| volume(&format!("{{ transformed = {{ {fields} }} }}, \"a\""));
    let cached = "{ cached = { disk = \"c\", size = \"1GiB\" } }";
    let compress = "{ transformed = { compress = true } }";
    let encrypt = "{ transformed = { encrypt = [25], key = \"main\", keys = { main = \"f\" } } }";
    let routed = "{ routed = { tiers = [\"far\"], classes = { far = [25] } } }";
    for (text, expected) in [
        (layer(""), "volume.v.transformed needs compress, for example compress = true"),
        (
            layer("compress = 3"),
            "volume.v.transformed.compress must be true, false or a list of classes, not a number",
        ),
        (layer("encrypt = [32]"), "volume.v.transformed.encrypt must list classes, numbers from 0 to 31"),
        (layer("encrypt = [\"mail\"]"), "must list classes, numbers from 0 to 31"),
        (layer("encrypt = [25]"), "volume.v.transformed needs key to encrypt, for example key = \"main\""),
        (
            layer("encrypt = true, key = \"main\""),
            "volume.v.transformed.keys has no key \"main\"; add it to keys",
        ),
        (layer("encrypt = true, key = \"maim\", keys = { main = \"f\" }"), "did you mean \"main\"?"),
        (layer("compress = true, keys = \"f\""), "volume.v.transformed.keys must be a table, not text"),
        (
            layer("compress = true, keys = { a = 1 }"),
            "volume.v.transformed.keys.a must be the path of a key file",
        ),
        (
            layer("compress = true, keys = { a = \"env:NONE\" }"),
            "volume.v.transformed.keys.a: the environment variable \"NONE\" is not set",
        ),
        (layer("compress = true, level = 3"), "unknown key \"volume.v.transformed.level\""),
        (volume("{ transformed = 7 }, \"a\""), "volume.v.transformed must be a table, not a number"),
        (
            volume(&format!("{compress}, {cached}, \"a\"")),
            "volume.v.transformed must be directly above the store",
        ),
        (
            volume(&format!("{compress}, {compress}, \"a\"")),
            "volume.v.transformed must be directly above the store",
        ),
        (
            volume(&format!("{compress}, \"far\"")),
            "volume.v.transformed: an S3 service lists the size and ETag",
        ),
        (
            volume(&format!("{routed}, {encrypt}, \"a\"")),
            "where they would be plain text: remove encrypt, or the layer routed",
        ),
        (
            volume(&format!("{routed}, {cached}, {encrypt}, \"a\"")),
            "where they would be plain text: remove encrypt, or the layer routed",
        ),
    ] {
        let problems = problem(&text);
        assert!(problems.starts_with("etc/tw.toml:8: ") && problems.contains(expected), "{text}: {problems}");
        assert_eq!(problems.lines().count(), 1, "{text}: {problems}");
    }
    let none = "{ transformed = { compress = true, encrypt = [] } }";
    // Problems of a table of a class, which is after the stack.
    let keyed = "{ transformed = { key = \"main\", keys = { main = \"f\" } } }";
    let class =
        |stack: &str, keys: &str| format!("{}[class.25]\n{keys}\n", volume(&format!("{stack}, \"a\"")));
    for (text, expected) in [
        (
            class(compress, "encrypt = true"),
            "class.25.encrypt: volume.v.transformed has no key to encrypt with",
        ),
        (
            class(&format!("{routed}, {keyed}"), "encrypt = true"),
            "class.25.encrypt: volume.v.transformed encrypts only the store at the bottom",
        ),
        (class(cached, "encrypt = true"), "class.25.encrypt has no effect"),
        (class(cached, "compress = false"), "class.25.compress has no effect"),
    ] {
        let problems = problem(&text);
        assert!(
            problems.starts_with("etc/tw.toml:10: ") && problems.contains(expected),
            "{text}: {problems}"
        );
        assert_eq!(problems.lines().count(), 1, "{text}: {problems}");
    }
    for text in [
        class(keyed, "encrypt = true"),
        class(compress, "encrypt = false\ncompress = false"),
        class(&format!("{routed}, {compress}"), "compress = true"),
    ] {
        read(&text);
    }
    for stack in
        [format!("{cached}, {compress}"), format!("{routed}, {compress}"), format!("{routed}, {none}")]
    {
        read(&volume(&format!("{stack}, \"a\"")));
    }
}
