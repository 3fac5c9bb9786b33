use super::*;

mod bad_values;
mod class_overrides;
mod class_rules;
mod classes;
mod deduplicated;
mod slices;
mod transformed;
mod volumes;

pub(super) fn inputs(text: &str) -> Inputs {
    Inputs { file: Some((PathBuf::from("etc/tw.toml"), text.to_owned())), ..Inputs::default() }
}

fn read(text: &str) -> Settings {
    Settings::read(&inputs(text)).unwrap()
}

fn problem(text: &str) -> String {
    Settings::read(&inputs(text)).unwrap_err().to_string()
}

#[test]
fn defaults_are_valid_and_have_source_default() {
    let settings = Settings::read(&Inputs::default()).unwrap();
    assert_eq!(settings.scalars.server.listen.value.to_string(), "127.0.0.1:9000");
    assert_eq!(settings.scalars.uploads.expire_after.value, TimeSpan::parse("7d").unwrap());
    let [only] = settings.served_volumes().unwrap().try_into().unwrap();
    assert_eq!((only.name, only.store, only.stack_text()), ("local", None, "[\"local\"]".to_owned()));
    assert_eq!(settings.data_directory(), Path::new("data"));
    assert!(settings.scalars.lines().iter().all(|(_, _, source)| *source == SettingSource::Default));
}

#[test]
fn flag_overrides_environment_overrides_file() {
    let mut inputs = inputs("data = \"d\"\n[server]\nlisten = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:2\"\n");
    inputs.environment.insert("TRADEWIND_SERVER_ADMIN".into(), "127.0.0.1:3".into());
    inputs.environment.insert("TRADEWIND_SERVER_LISTEN".into(), "127.0.0.1:4".into());
    inputs.flags.push(FlagValue { setting: "server.listen", flag: "--listen", value: "localhost:5".into() });
    let scalars = Settings::read(&inputs).unwrap().scalars;
    let ServerSettings { listen, admin, .. } = scalars.server;
    assert_eq!((listen.value.port(), listen.source), (5, SettingSource::Flag("--listen")));
    assert_eq!((admin.value.port(), admin.source.to_string()), (3, "TRADEWIND_SERVER_ADMIN".to_owned()));
    assert_eq!(scalars.top.data.source, SettingSource::File { path: "etc/tw.toml".into(), line: 1 });
    assert_eq!(
        scalars.top.data.value,
        Path::new("etc/d"),
        "relative paths resolve against the directory of the file"
    );
}

#[test]
fn overridden_line_of_the_file_is_still_checked() {
    let mut inputs = inputs("[server]\nlisten = \"nonsense\"\n");
    inputs.flags.push(FlagValue { setting: "server.listen", flag: "--listen", value: "127.0.0.1:5".into() });
    let problems = Settings::read(&inputs).unwrap_err().to_string();
    assert!(
        problems.starts_with("etc/tw.toml:2: server.listen: \"nonsense\" is not an address"),
        "{problems}"
    );
}

#[test]
fn unknown_key_message_names_the_nearest_known_key() {
    assert_eq!(
        problem("[server]\n\nlisen = \"127.0.0.1:1\"\n"),
        "etc/tw.toml:3: unknown key \"server.lisen\"; did you mean \"listen\"?"
    );
    assert_eq!(
        problem("[sever]\nlisten = \"127.0.0.1:1\""),
        "etc/tw.toml:1: unknown key \"sever\"; did you mean \"server\"?"
    );
    assert_eq!(
        problem("[memory]\nzebra = 1"),
        "etc/tw.toml:2: unknown key \"memory.zebra\"; known keys: budget"
    );
    assert_eq!(
        problem("[[access_key]]\nid = \"abc\"\nsecret = \"12345678\"\nbucket = [\"abc\"]"),
        "etc/tw.toml:4: unknown key \"access_key.bucket\"; did you mean \"buckets\"?"
    );
}

#[test]
fn planned_keys_are_rejected_with_their_own_message() {
    for (text, expected) in [
        ("[tune]\nname = \"mail\"", "\"tune\" is planned but not built yet"),
        ("[store.west]\ntype = \"s3\"\nbucket = \"x\"", "\"store.west.bucket\" is planned but not built yet"),
        (
            "[store.a]\ntype=\"local\"\npath=\"p\"\n[volume.v]\nstack = [{ striped = { disk = \"d\" } }, \"a\"]",
            "layer \"striped\" is planned but not built yet",
        ),
        (
            "[store.a]\ntype = \"s3\"\nproxy = \"socks5://p\"",
            "store.a.proxy: the value has the scheme \"socks5\"; only http and https proxies are supported",
        ),
        ("[bucket.abc]\nversioning = true", "\"bucket.abc.versioning\" is planned but not built yet"),
    ] {
        let problems = problem(text);
        assert!(problems.contains(expected), "{problems}");
    }
}

#[test]
fn store_volume_and_buckets_are_read() {
    let settings = read(
        "[store.disk]\ntype = \"local\"\npath = \"/srv/tw\"\n[volume.main]\nstack = [\"disk\"]\n\
         [bucket.photos]\nvolume = \"main\"\nanonymous_read = true\n",
    );
    assert_eq!(settings.data_directory(), Path::new("/srv/tw"));
    assert!(settings.named.buckets[0].anonymous_read.as_ref().unwrap().value);
    let wrong = problem("[store.disk]\ntype=\"local\"\npath=\"p\"\n[volume.main]\nstack = [\"disc\"]\n");
    assert_eq!(wrong, "etc/tw.toml:5: there is no store \"disc\"; did you mean \"disk\"?");
}

#[test]
fn stores_of_each_type_are_read_and_shown() {
    let settings = read(
        "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[store.west]\ntype = \"s3\"\nregion = \"west\"\n\
         [store.cloud]\ntype = \"swift\"\nopenrc = \"cloud.rc\"\nregion = \"one\"\nsegment_size = \"64MiB\"\n\
         storage_url = \"https://s/v1/AUTH_x\"\nmax_connections = 8\nproxy = \"http://me:hush@p:3128\"\n\
         [store.near]\ntype = \"s3\"\nproxy = \"none\"\n\
         storage_classes = { 31 = \"GLACIER_IR\", video = \"STANDARD_IA\" }\nclass_tag = \"dss-class\"\n",
    );
    let types: Vec<&str> = settings.named.stores.iter().map(Store::type_name).collect();
    assert_eq!(types, ["local", "s3", "swift", "s3"]);
    let shown = settings.to_string();
    for line in [
        ["store.disk.type", "local", "etc/tw.toml:1"],
        ["store.cloud.type", "swift", "etc/tw.toml:7"],
        ["store.cloud.openrc", "etc/cloud.rc", "etc/tw.toml:9"],
        ["store.cloud.region", "one", "etc/tw.toml:10"],
        ["store.cloud.segment_size", "64MiB", "etc/tw.toml:11"],
        ["store.cloud.storage_url", "https://s/v1/AUTH_x", "etc/tw.toml:12"],
        ["store.cloud.max_connections", "8", "etc/tw.toml:13"],
        // Without the password.
        ["store.cloud.proxy", "http://p:3128", "etc/tw.toml:14"],
        ["store.near.proxy", "none", "etc/tw.toml:17"],
        ["store.near.class_tag", "dss-class", "etc/tw.toml:19"],
    ] {
        let is_line = |shown: &str| shown.split_whitespace().eq(line);
        assert!(shown.lines().any(is_line), "{line:?} in {shown}");
    }
}

#[test]
fn storage_classes_of_classes_are_read_and_shown() {
    let with = |text: &str| format!("[store.west]\ntype = \"s3\"\n{text}\n");
    let shown = read(&with("storage_classes = { 31 = \"GLACIER_IR\", video = \"STANDARD_IA\" }")).to_string();
    assert!(shown.contains("{ 28 = \"STANDARD_IA\", 31 = \"GLACIER_IR\" }"), "{shown}");
    for (text, expected) in [
        ("storage_classes = { 32 = \"GLACIER_IR\" }", "\"32\" is not a class from 0 to 31"),
        ("storage_classes = { 28 = \"A\", video = \"B\" }", "the class video is given twice"),
        ("storage_classes = { 28 = \"glacier\" }", "\"glacier\" is not a storage class"),
        ("storage_classes = \"GLACIER\"", "storage_classes must be a table"),
        ("class_tag = \"a;b\"", "store.west.class_tag: "),
    ] {
        let found = problem(&with(text));
        assert!(found.starts_with("etc/tw.toml:3: ") && found.contains(expected), "{found}");
    }
}

#[test]
fn several_stores_need_a_choice_of_the_served_one() {
    let two = "[store.a]\ntype=\"local\"\npath=\"p\"\n[store.b]\ntype=\"local\"\npath=\"q\"\n";
    let settings = read(two);
    assert_eq!(settings.default_store(), None);
    let problems = settings.served_volumes().unwrap_err().to_string();
    assert_eq!(
        problems,
        "etc/tw.toml:4: several stores are configured; choose the one to serve: server.store = \"a\", or define volumes \
         to serve several: [volume.NAME]"
    );
    let settings = read(&format!("{two}[server]\nstore = \"b\"\n"));
    assert_eq!(settings.served_volumes().unwrap()[0].name, "b");
    assert_eq!(settings.data_directory(), Path::new("etc/q"));
    assert_eq!(
        problem(&format!("{two}[server]\nstore = \"bb\"\n")),
        "etc/tw.toml:8: there is no store \"bb\"; did you mean \"b\"?"
    );
}

#[test]
fn messages_for_invalid_values_state_the_remedy() {
    for (text, expected) in [
        ("etag = \"sha\"", "etag: \"sha\" is not one of \"md5\", \"unique\""),
        ("[memory]\nbudget = 128", "\"128\" has no unit"),
        ("[memory]\nbudget = [1]", "memory.budget: must be a single value, not a list"),
        ("[memory]\nbudget = \"1MiB\"", "at least 16MiB"),
        ("[server]\nworkers = 0", "\"0\" is not a whole number above 0"),
        ("[server]\ndomain = \"s3.example.com:9000\"", "is not a host name"),
        ("[server]\ndomain = \"127.0.0.1\"", "is not a host name"),
        ("[server]\naccount_id = \"1234\"", "\"1234\" is not an account id; write 12 digits"),
        ("[server]\naccount_id = \"12345678901x\"", "is not an account id"),
        ("[server]\npresigned_sigv2 = \"no\"", "is neither true nor false"),
        ("[lanes]\npriority_prefixes = \"orders\"", "set lanes.enabled = true"),
        (
            "[lanes]\nenabled = true\npriority_prefixes = \"Orders/\"",
            "write for example \"orders, photos/thumbnails/\"",
        ),
        (
            "[lanes]\npriority_access_keys = \"shop\"",
            "lanes.priority_access_keys needs lanes: set lanes.enabled = true",
        ),
        (
            "[lanes]\nenabled = true\npriority_access_keys = \"shop\"",
            "etc/tw.toml:3: there is no access key \"shop\"; add an [[access_key]] with this id",
        ),
        (
            "[lanes]\nenabled = true\npriority_access_keys = \"root, shpo\"\n[root_key]\nid = \"root\"\nsecret = \"12345678\"\n\
             [[access_key]]\nid = \"shop\"\nsecret = \"12345678\"",
            "etc/tw.toml:3: there is no access key \"shpo\"; did you mean \"shop\"?",
        ),
        ("[server]\ntls_cert = \"c.pem\"", "TLS needs the private key too"),
        ("[server]\nadmin = \"127.0.0.1:9000\"", "give each its own port"),
        ("[limits]\nidle_time = \"0s\"", "limits.idle_time must be longer than 0"),
        ("[log]\nlevel = \"loud\"", "\"loud\" is not a log level"),
        ("server = 1", "\"server\" must be a table"),
        ("[bucket.AB]\nanonymous_read = true", "bucket name \"AB\" is not valid"),
        ("[bucket.abc]\nanonymous_read = \"yes\"", "must be true or false, not text"),
        ("a = 1.5", "fractions and dates are not supported"),
        ("[store.a]\ntype=\"local\"\npath=\"p\"\ncompact_below = 60", "write for example \"60%\""),
        ("[store.a]\ntype=\"local\"\npath=\"p\"\nsegment_size = \"3GiB\"", "must be between 64KiB and 2GiB"),
        ("[store.a]\ntype=\"swift\"\nsegment_size = \"6GiB\"", "must be 1MiB to 5GiB"),
        ("[store.a]\ntype=\"swift\"\nendpoint = \"x\"", "unknown key \"store.a.endpoint\""),
        ("[store.a]\ntype=\"nfs\"", "unknown store type \"nfs\"; use \"local\", \"s3\" or \"swift\""),
        ("a = [", "this is not TOML"),
    ] {
        let problems = problem(text);
        assert!(problems.contains(expected), "{text}: {problems}");
    }
}

#[test]
fn all_problems_are_collected() {
    let text = "[server]\nlisten = \"x\"\nworkers = 0\n[log]\nlevl = \"info\"\n";
    assert_eq!(problem(text).lines().count(), 3);
}

#[test]
fn access_keys_are_read_and_secrets_hidden() {
    let mut inputs = inputs(
        "[[access_key]]\nid = \"reader\"\nsecret = \"open sesame\"\npermissions = \"read\"\n\
         buckets = [\"photos\"]\n[[access_key]]\nid = \"all\"\nsecret = \"open sesame\"\nbuckets = [\"*\"]\n",
    );
    inputs.environment.insert("TRADEWIND_ACCESS_KEY".into(), "root".into());
    inputs.environment.insert("TRADEWIND_SECRET_KEY".into(), "open sesame root".into());
    let settings = Settings::read(&inputs).unwrap();
    let [reader, all] = settings.named.access_keys.as_slice() else { panic!("two keys") };
    assert_eq!(reader.permissions.value, Permissions::Read);
    assert_eq!(reader.buckets.value.as_ref().unwrap().len(), 1);
    assert_eq!((all.permissions.value, &all.buckets.value), (Permissions::ReadWrite, &None));
    for shown in [settings.to_string(), settings.to_json().to_string(), format!("{settings:?}")] {
        assert!(!shown.contains("sesame"), "{shown}");
    }
    assert!(settings.to_string().contains("access_key.reader.permissions  read "), "{settings}");

    inputs.environment.remove("TRADEWIND_SECRET_KEY");
    let problems = Settings::read(&inputs).unwrap_err().to_string();
    assert_eq!(problems, "TRADEWIND_ACCESS_KEY: TRADEWIND_SECRET_KEY must be set, too");
}

#[test]
fn access_keys_must_be_valid_and_unique() {
    let key = |id: &str, secret: &str| format!("[[access_key]]\nid = {id:?}\nsecret = {secret:?}\n");
    assert!(problem(&key("a/b", "12345678")).contains("without '/'"));
    assert!(problem(&key("abc", "short")).contains("8 to 256"));
    assert!(problem(&(key("abc", "12345678") + &key("abc", "87654321"))).contains("is used twice"));
    assert!(problem("[[access_key]]\nid = \"abc\"").contains("access_key needs secret"));
    assert!(!problem("[[access_key]]\nid = \"abc\"\nsecret = [\"hush hush\"]").contains("hush"));
}

#[test]
fn shown_values_parse_to_the_same_settings() {
    let settings = read("[memory]\nbudget = \"96MiB\"\n[limits]\nidle_time = \"1500ms\"\n");
    let mut again = Inputs::default();
    for (name, value, _) in settings.scalars.lines() {
        again.environment.insert(environment_variable(&name), value);
    }
    let values = |s: &Settings| s.scalars.lines().into_iter().map(|(_, value, _)| value).collect::<Vec<_>>();
    assert_eq!(values(&Settings::read(&again).unwrap()), values(&settings));
}

#[test]
fn exposed_files_lists_accessible_files_with_secrets() {
    use std::fs::{self, Permissions as Mode};
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tw.toml");
    let key = directory.path().join("key.pem");
    let exposed = |text: &str, mode| {
        for path in [&file, &key] {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, Mode::from_mode(mode)).unwrap();
        }
        let inputs = Inputs { file: Some((file.clone(), text.to_owned())), ..Inputs::default() };
        Settings::read(&inputs).unwrap().exposed_files()
    };
    let with_secret = "[[access_key]]\nid = \"abc\"\nsecret = \"12345678\"\n";
    assert_eq!(exposed(with_secret, 0o600), []);
    assert_eq!(exposed(with_secret, 0o640), [(file.clone(), 0o640)]);
    assert_eq!(exposed("etag = \"md5\"\n", 0o644), [], "the file contains no secret");
    let with_tls = "[server]\ntls_cert = \"chain.pem\"\ntls_key = \"key.pem\"\n";
    assert_eq!(exposed(with_tls, 0o604), [(key.clone(), 0o604)]);
}
