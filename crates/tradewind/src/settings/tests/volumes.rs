//! Volumes in the settings: stacks, layers, and which volume serves a bucket.

use super::*;

/// Two local stores, without volumes.
const STORES: &str = "[store.a]\ntype = \"local\"\npath = \"p\"\n[store.b]\ntype = \"local\"\npath = \"q\"\n";

fn with_stores(text: &str) -> String {
    format!("{STORES}{text}")
}

/// The volumes to serve: `name=stack` with their buckets.
fn served(text: &str) -> Vec<String> {
    let settings = read(text);
    let volumes = settings.served_volumes().unwrap();
    let describe = |volume: &ServedVolume<'_>| {
        let buckets: Vec<&str> = volume.buckets.iter().map(|bucket| bucket.as_str()).collect();
        format!("{}={} {}", volume.name, volume.stack_text(), buckets.join(",")).trim_end().to_owned()
    };
    volumes.iter().map(describe).collect()
}

fn ambiguity(text: &str) -> String {
    read(text).served_volumes().unwrap_err().to_string()
}

#[test]
fn without_volumes_the_only_store_is_served() {
    assert_eq!(served("[store.a]\ntype = \"local\"\npath = \"p\"\n"), ["a=[\"a\"]"]);
    assert_eq!(served(&with_stores("[server]\nstore = \"b\"\n")), ["b=[\"b\"]"]);
}

#[test]
fn the_only_volume_is_the_default() {
    let text = with_stores("[volume.v]\nstack = [\"b\"]\n[bucket.photos]\nvolume = \"v\"\n");
    assert_eq!(served(&text), ["v=[\"b\"] photos"]);
    assert_eq!(read(&text).data_directory(), Path::new("etc/q"));
}

#[test]
fn the_default_volume_comes_first() {
    let volumes = "[volume.v]\nstack = [\"a\"]\n[volume.w]\nstack = [\"b\"]\n[volume.x]\nstack = [\"a\"]\n\
                   [bucket.photos]\nvolume = \"w\"\n[bucket.old]\nvolume = \"v\"\n[bucket.open]\nanonymous_read = true\n";
    let text = with_stores(volumes);
    assert_eq!(
        served(&format!("default_volume = \"w\"\n{text}")),
        ["w=[\"b\"] photos", "v=[\"a\"] old", "x=[\"a\"]"]
    );
    assert_eq!(
        ambiguity(&text),
        "etc/tw.toml:9: several volumes are configured; choose the one for buckets that name none: \
         default_volume = \"v\" at the top of the file"
    );
    let mut inputs = inputs(&text);
    inputs.environment.insert("TRADEWIND_DEFAULT_VOLUME".into(), "v".into());
    assert_eq!(Settings::read(&inputs).unwrap().served_volumes().unwrap()[0].name, "v");
    assert_eq!(
        problem(&format!("default_volume = \"vv\"\n{text}")),
        "etc/tw.toml:1: there is no volume \"vv\"; did you mean \"v\"?"
    );
}

#[test]
fn server_store_selects_one_store_unless_that_bypasses_volumes() {
    let volumes = with_stores("[volume.v]\nstack = [\"a\"]\n[volume.w]\nstack = [\"b\"]\n");
    let select = |text: &str| {
        let mut inputs = inputs(text);
        inputs.environment.insert("TRADEWIND_SERVER_STORE".into(), "b".into());
        let settings = Settings::read(&inputs).unwrap();
        let served = settings.served_volumes();
        served.map(|volumes| volumes[0].stack_text()).map_err(|problems| problems.to_string())
    };
    assert_eq!(select(&volumes).unwrap(), "[\"b\"]");
    assert_eq!(select(&format!("{volumes}[bucket.photos]\nvolume = \"w\"\n")).unwrap(), "[\"b\"]");
    for (more, expected) in [
        (
            "[bucket.photos]\nvolume = \"v\"\n",
            "etc/tw.toml:12: the bucket \"photos\" is in another store than the one that server.store = \"b\" \
             (TRADEWIND_SERVER_STORE) serves; remove that to serve the volumes",
        ),
        (
            "[volume.x]\nstack = [{ cached = { disk = \"c\", size = \"1GiB\" } }, \"b\"]\n",
            "etc/tw.toml:11: server.store = \"b\" (TRADEWIND_SERVER_STORE) serves the store without the layers of this \
             volume; remove it to serve the volumes",
        ),
    ] {
        assert_eq!(select(&format!("{volumes}{more}")).unwrap_err(), expected);
    }
    let error = select(&format!("default_volume = \"v\"\n{volumes}")).unwrap_err();
    assert!(error.starts_with("etc/tw.toml:1: server.store = \"b\""), "{error}");
}

#[test]
fn cached_layers_are_read_with_defaults() {
    let full = "{ cached = { disk = \"ssd\", size = \"1GiB\", memory = \"32MiB\", validate = \"60s\", write = \"through\" } }";
    let short = "{ cached = { disk = \"/nvme\", size = \"10GiB\", memory = \"8MiB\" } }";
    let settings = read(&with_stores(&format!("[volume.v]\nstack = [{full}, {short}, \"b\"]\n")));
    let [VolumeLayer::Cached(first), VolumeLayer::Cached(second)] =
        settings.named.volumes[0].layers.as_slice()
    else {
        panic!("two layers")
    };
    assert_eq!(first.disk.value, Path::new("etc/ssd"), "relative to the file");
    assert_eq!((first.size.value, first.memory.value), (ByteSize(1 << 30), ByteSize(32 << 20)));
    assert_eq!(first.validate.value, Validate::After(TimeSpan::parse("60s").unwrap()));
    assert_eq!(second.disk.value, Path::new("/nvme"));
    assert_eq!((second.validate.value, second.write.value), (Validate::Auto, CacheWrite::Through));
    assert_eq!(second.validate.source, SettingSource::Default);
    assert_eq!((second.verify_rate.value, &second.max_write_rate), (ByteSize(176 << 10), &None));
    let shown = settings.to_string();
    let stack = "[{ cached = { disk = \"etc/ssd\", size = \"1GiB\", memory = \"32MiB\", validate = \"1m\", write = \
                 \"through\" } }, { cached = { disk = \"/nvme\", size = \"10GiB\", memory = \"8MiB\", validate = \"auto\", \
                 write = \"through\" } }, \"b\"]";
    assert!(shown.contains(stack), "{shown}");
}

#[test]
fn a_shown_stack_parses_to_the_same_stack() {
    let text = |stack: &str| with_stores(&format!("[volume.v]\nstack = {stack}\n"));
    for more in [
        "",
        ", write = \"back\", sole_writer = true",
        ", write = \"back\", journal = \"/j\", max_dirty = \"2GiB\"",
        ", write = \"read-only\", policy = \"lru\"",
        ", policy = \"s3-fifo\"",
        ", verify_rate = \"0\", max_write_rate = \"5MiB\"",
    ] {
        let layer = format!("{{ cached = {{ disk = \"/a \\\"b\\\"\", size = \"1GiB\"{more} }} }}");
        let shown = read(&text(&format!("[{layer}, \"b\"]"))).named.volumes[0].stack_text();
        assert_eq!(read(&text(&shown)).named.volumes[0].stack_text(), shown);
    }
}

#[test]
fn class_policies_without_effect_are_noted() {
    let volume = |policy: &str| {
        format!("[volume.v]\nstack = [{{ cached = {{ disk = \"c\", size = \"1GiB\"{policy} }} }}, \"b\"]\n")
    };
    let notes = |text: String| read(&with_stores(&text)).named.notes();
    let class = "[class.25]\npin = true\n[class.26]\npriority = 1\n[class.27]\nname = \"mail\"\n";
    assert_eq!(
        notes(volume(", policy = \"lru\"") + class),
        [
            "etc/tw.toml:8: the cache policy \"lru\" of the volume \"v\" ignores priority, occupancy and pin; they are set \
          for the classes 25, 26"
        ]
    );
    assert_eq!(notes(volume("") + class).len(), 0);
    assert_eq!(notes(volume(", policy = \"adaptive-window\"") + class).len(), 0);
    assert_eq!(notes(volume(", policy = \"lru\"") + "[class.27]\nname = \"mail\"\n").len(), 0);
}

#[test]
fn invalid_stacks_are_rejected_with_line_and_remedy() {
    let layer = |fields: &str| format!("[volume.v]\nstack = [{{ cached = {{ {fields} }} }}, \"b\"]\n");
    let disk = "disk = \"c\", size = \"1GiB\"";
    for (text, expected) in [
        ("[volume.v]\nstack = []\n".to_owned(), "must be a list of layers that ends with a store"),
        ("[volume.v]\nstack = \"b\"\n".to_owned(), "must be a list of layers that ends with a store"),
        (
            "[volume.v]\nstack = [{ cached = { disk = \"c\", size = \"1GiB\" } }]\n".to_owned(),
            "must be a list of layers that ends with a store",
        ),
        ("[volume.v]\nstack = [\"a\", \"b\"]\n".to_owned(), "the store \"a\" must be the last of its stack"),
        ("[volume.v]\nstack = [7, \"b\"]\n".to_owned(), "not a number"),
        (
            "[volume.v]\nstack = [{ striped = {} }, \"b\"]\n".to_owned(),
            "\"striped\" is planned but not built yet",
        ),
        ("[volume.v]\nstack = [{ cache = {} }, \"b\"]\n".to_owned(), "unknown layer \"cache\""),
        ("[volume.v]\nstack = [{}, \"b\"]\n".to_owned(), "a table with one key"),
        (
            format!(
                "[volume.v]\nstack = [{{ cached = {{ {disk}, write = \"read-only\" }} }}, \
                 {{ routed = {{ tiers = [\"a\"], classes = {{ a = [25] }} }} }}, \"b\"]\n"
            ),
            "is \"read-only\", but volume.v.routed writes and moves objects in the stores of its tiers: remove routed",
        ),
        (
            format!(
                "[volume.v]\nstack = [{{ routed = {{ tiers = [\"a\"], classes = {{ a = [25] }} }} }}, \
                 {{ cached = {{ {disk}, write = \"read-only\" }} }}, \"b\"]\n"
            ),
            "is \"read-only\", but volume.v.routed writes and moves objects in the stores of its tiers: remove routed",
        ),
        (
            format!(
                "[volume.v]\nstack = [{{ cached = {{ {disk}, memory = \"1MiB\", write = \"read-only\" }} }}, \
                 {{ cached = {{ disk = \"d\", size = \"1GiB\", memory = \"1MiB\", write = \"back\", sole_writer = true }} }}, \"b\"]\n"
            ),
            "is \"read-only\", but another cache of the volume writes back",
        ),
        ("[volume.v]\nstack = [{ cached = {}, routed = {} }, \"b\"]\n".to_owned(), "a table with one key"),
        (
            "[volume.v]\nstack = [{ cached = \"c\" }, \"b\"]\n".to_owned(),
            "volume.v.cached must be a table, not text",
        ),
        (layer("size = \"1GiB\""), "volume.v.cached needs disk, for example disk = \"/ssd/cache\""),
        (layer("disk = \"c\""), "volume.v.cached needs size, for example size = \"1GiB\""),
        (layer("disk = \"c\", size = \"1MiB\""), "volume.v.cached.size must be at least 64MiB"),
        (layer("disk = \"c\", size = \"8TiB\""), "volume.v.cached.size must be at most 7TiB"),
        (layer("disk = \"c\", size = \"big\""), "volume.v.cached.size: \"big\""),
        (layer(&format!("{disk}, memory = \"4KiB\"")), "volume.v.cached.memory must be at least 1MiB"),
        (
            layer(&format!("{disk}, memory = \"65MiB\"")),
            "caches may have at most half of memory.budget, 64MiB",
        ),
        (
            layer(&format!("{disk}, max_write_rate = \"0\"")),
            "volume.v.cached.max_write_rate must be at least 64KiB",
        ),
        (
            format!(
                "{}[memory]\nbudget = \"16MiB\"\n",
                layer(&format!("{disk}, memory = \"8MiB\", write = \"back\""))
            ),
            "write-back of each volume needs at least 8MiB of memory.budget, 16MiB, but gets 4MiB",
        ),
        (
            layer(&format!("{disk}, write = \"back\", write_admission = \"size\"")),
            "\"size\" is neither \"class\" nor \"room\"",
        ),
        (layer(&format!("{disk}, validate = \"0s\"")), "write \"always\" instead of 0"),
        (layer(&format!("{disk}, validate = \"sometimes\"")), "or \"always\", \"never\" or \"auto\""),
        (
            layer(&format!("{disk}, write = \"around\"")),
            "\"around\" is none of \"through\", \"back\" and \"read-only\"",
        ),
        (
            layer(&format!("{disk}, write = \"back\", max_dirty = \"1MiB\"")),
            "volume.v.cached.max_dirty must be at least 64MiB",
        ),
        (
            layer(&format!("{disk}, write = \"back\", validate = \"60s\"")),
            "volume.v.cached.validate is \"1m\", but write = \"back\" means that nothing else writes the store",
        ),
        (
            layer(&format!("{disk}, sizes = 1")),
            "unknown key \"volume.v.cached.sizes\"; did you mean \"size\"?",
        ),
    ] {
        let problems = problem(&with_stores(&text));
        assert!(problems.starts_with("etc/tw.toml:8: ") && problems.contains(expected), "{text}: {problems}");
        assert_eq!(problems.lines().count(), 1, "{text}: {problems}");
    }
}

#[test]
fn routed_layers_are_read_and_shown() {
    let layer = "{ routed = { tiers = [\"a\"], classes = { a = [11, \"12-14\", \"files\", 26] }, move_rate = \"1MiB\" } }";
    let settings = read(&with_stores(&format!("[volume.v]\nstack = [{layer}, \"b\"]\n")));
    let [VolumeLayer::Routed(set)] = settings.named.volumes[0].layers.as_slice() else { panic!("one layer") };
    let [tier] = set.tiers.as_slice() else { panic!("one tier") };
    let classes: Vec<u8> =
        tier.classes.iter().flat_map(|span| span.classes()).map(tradewind_core::Class::value).collect();
    assert_eq!((tier.store.value.as_str(), classes), ("a", vec![11, 12, 13, 14, 25, 26]));
    assert_eq!(set.move_rate.value, ByteSize(1 << 20));
    let shown = settings.named.volumes[0].stack_text();
    assert_eq!(
        shown,
        "[{ routed = { tiers = [\"a\"], classes = { \"a\" = [\"size-4k\", \"12-14\", \"files\", \"pictures\"] }, \
         move_rate = \"1MiB\" } }, \"b\"]"
    );
    let again = read(&with_stores(&format!("[volume.v]\nstack = {shown}\n")));
    assert_eq!(again.named.volumes[0].stack_text(), shown);
    let drained = "{ routed = { tiers = [\"a\"], classes = { a = [] } } }";
    read(&with_stores(&format!("[volume.v]\nstack = [{drained}, \"b\"]\n")));
    let served = settings.served_volumes().unwrap();
    assert_eq!(served[0].store_names().collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn invalid_routed_layers_are_rejected_with_line_and_remedy() {
    let tiers = "tiers = [\"a\"]";
    for (fields, expected) in [
        ("classes = { a = [25] }".to_owned(), "volume.v.routed needs tiers, for example tiers = [\"ssd\"]"),
        (tiers.to_owned(), "volume.v.routed needs classes, for example"),
        (format!("{tiers}, classes = {{}}"), "the tier \"a\" has no classes; add volume.v.routed.classes.a"),
        (format!("{tiers}, classes = {{ aa = [25] }}"), "\"aa\" is no tier; did you mean \"a\"?"),
        (format!("{tiers}, classes = {{ a = [32] }}"), "\"32\" is not a class from 0 to 31"),
        (format!("{tiers}, classes = {{ a = [\"file\"] }}"), "did you mean \"files\"?"),
        (format!("{tiers}, classes = {{ a = [\"14-11\"] }}"), "write the lower class first"),
        (format!("{tiers}, classes = {{ a = [25, \"files\"] }}"), "class 25 is in \"a\" already"),
        (format!("{tiers}, classes = {{ a = 25 }}"), "must be a list of classes"),
        (format!("{tiers}, classes = 25"), "volume.v.routed.classes must be a table"),
        (format!("{tiers}, classes = {{ a = [25] }}, rate = 1"), "unknown key \"volume.v.routed.rate\""),
        ("tiers = [], classes = {}".to_owned(), "volume.v.routed.tiers names no store"),
        ("tiers = [1], classes = {}".to_owned(), "volume.v.routed.tiers must have names of stores"),
        ("tiers = \"a\", classes = {}".to_owned(), "volume.v.routed.tiers must be a list of stores"),
        (
            "tiers = [\"b\"], classes = { b = [25] }".to_owned(),
            "the volume \"v\" has the store \"b\" twice; remove one",
        ),
        (
            "tiers = [\"c\"], classes = { c = [25] }".to_owned(),
            "there is no store \"c\"; did you mean \"a\"?",
        ),
    ] {
        let text = with_stores(&format!("[volume.v]\nstack = [{{ routed = {{ {fields} }} }}, \"b\"]\n"));
        let problems = problem(&text);
        assert!(
            problems.starts_with("etc/tw.toml:8: ") && problems.contains(expected),
            "{fields}: {problems}"
        );
        assert_eq!(problems.lines().count(), 1, "{fields}: {problems}");
    }
}

#[test]
fn a_store_is_below_the_layers_of_one_volume_only() {
    let routed = "[volume.r]\nstack = [{ routed = { tiers = [\"a\"], classes = { a = [25] } } }, \"b\"]\n";
    let cached = |store: &str| {
        format!(
            "[volume.c]\nstack = [{{ cached = {{ disk = \"c\", size = \"1GiB\", memory = \"8MiB\" }} }}, {store:?}]\n"
        )
    };
    read(&with_stores(&format!("{routed}[volume.plain]\nstack = [\"a\"]\n")));
    for store in ["a", "b"] {
        let problems = problem(&with_stores(&format!("{routed}{}", cached(store))));
        let expected = format!("the volumes \"r\" and \"c\" both have layers over the store {store:?}");
        assert!(problems.starts_with("etc/tw.toml:10: ") && problems.contains(&expected), "{problems}");
    }
}

#[test]
fn a_store_is_below_one_cache_only() {
    let cached = |name: &str, disk: &str| {
        format!(
            "[volume.{name}]\nstack = [{{ cached = {{ disk = {disk:?}, size = \"1GiB\", memory = \"8MiB\" }} }}, \"a\"]\n"
        )
    };
    let plain = "[volume.plain]\nstack = [\"a\"]\n";
    read(&with_stores(&format!("{}{plain}", cached("hot", "c"))));
    let problems = problem(&with_stores(&(cached("hot", "c") + &cached("warm", "d"))));
    assert!(
        problems.starts_with(
            "etc/tw.toml:10: the volumes \"hot\" and \"warm\" both have a cache over the store \"a\""
        ),
        "{problems}"
    );
}

#[test]
fn tiers_are_other_services_than_their_base() {
    let stack =
        "[volume.v]\nstack = [{ routed = { tiers = [\"near\"], classes = { near = [25] } } }, \"far\"]\n";
    let stores = |near: &str, far: &str| format!("[store.near]\n{near}\n[store.far]\n{far}\n{stack}");
    for (near, far, is_rejected) in [
        ("type = \"s3\"\nendpoint = \"http://a:1\"", "type = \"s3\"\nendpoint = \"http://A:1/\"", true),
        ("type = \"s3\"\nregion = \"one\"", "type = \"s3\"\nregion = \"two\"", true),
        ("type = \"s3\"\nendpoint = \"http://a:1\"", "type = \"s3\"\nendpoint = \"http://b:1\"", false),
        ("type = \"s3\"\nendpoint = \"http://a:80\"", "type = \"s3\"\nendpoint = \"https://a\"", true),
        ("type = \"s3\"\nprofile = \"one\"", "type = \"s3\"\nprofile = \"two\"", true),
        ("type = \"s3\"\nendpoint = \"http://a/one\"", "type = \"s3\"\nendpoint = \"http://a/two/\"", false),
        ("type = \"s3\"", "type = \"s3\"\nregion = \"cn-north-1\"", true),
        ("type = \"s3\"\nregion = \"us-east-1\"", "type = \"s3\"\nregion = \"cn-north-1\"", false),
        (
            "type = \"swift\"\nopenrc = \"a\"\nstorage_url = \"http://a/v1/A\"",
            "type = \"swift\"\nopenrc = \"b\"\nstorage_url = \"http://a/v1/A/\"",
            true,
        ),
        ("type = \"swift\"", "type = \"swift\"", true),
        ("type = \"swift\"\nopenrc = \"a\"", "type = \"swift\"\nopenrc = \"b\"", false),
        ("type = \"swift\"", "type = \"s3\"", false),
    ] {
        let text = stores(near, far);
        if is_rejected {
            let expected =
                "the volume \"v\" has the stores \"far\" and \"near\", which may be the same service";
            assert!(problem(&text).contains(expected), "{text}");
        } else {
            read(&text);
        }
    }
}

#[test]
fn cache_directory_holds_no_store_and_no_journal() {
    let cached = |disk: &str, more: &str| {
        format!("[volume.v]\nstack = [{{ cached = {{ disk = {disk:?}, size = \"1GiB\"{more} }} }}, \"a\"]\n")
    };
    let journal = ", write = \"back\", journal = \"c/j\"";
    for (text, expected) in [
        (
            cached("c", journal),
            "the journal of the volume \"v\" has the directory etc/c/j, which is in that of a cache",
        ),
        (cached("new/..", ""), "the store \"a\" has the directory etc/p, which is in that of a cache"),
    ] {
        let problems = problem(&with_stores(&text));
        assert!(problems.contains(expected), "{problems}");
    }
    read(&with_stores(&cached("p/c", "")));
}

#[test]
fn a_directory_belongs_to_one_store_or_cache() {
    let cached = "[volume.v]\nstack = [{ cached = { disk = \"./q\", size = \"1GiB\" } }, \"a\"]\n";
    for (text, expected) in [
        (
            "[store.c]\ntype = \"local\"\npath = \"./p/\"\n",
            "etc/tw.toml:9: the store \"c\" has the directory etc/./p/, which belongs to the store \"a\"; choose another",
        ),
        (
            cached,
            "etc/tw.toml:8: a cache of the volume \"v\" has the directory etc/./q, which belongs to the store \"b\"; \
             choose another",
        ),
    ] {
        assert_eq!(problem(&with_stores(text)), expected);
    }
}

#[test]
fn directories_are_compared_without_symbolic_links() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
    let store = |name: &str, path: PathBuf| format!("[store.{name}]\ntype = \"local\"\npath = {path:?}\n");
    let problems = problem(&(store("a", at("real")) + &store("b", at("link"))));
    assert!(problems.contains("which belongs to the store \"a\""), "{problems}");
}
