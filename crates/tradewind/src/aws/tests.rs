mod sources;

use std::path::PathBuf;

use tradewind_backend::s3::AddressingStyle;

use super::*;

const CONFIG: &str = "h/.aws/config";
const CREDENTIALS: &str = "h/.aws/credentials";
const ID: (&str, &str) = ("AWS_ACCESS_KEY_ID", "env-id");
const SECRET: (&str, &str) = ("AWS_SECRET_ACCESS_KEY", "env-hush");

/// Variables in addition to `HOME`, the flag, and the texts of both files.
#[derive(Clone, Copy, Default)]
struct Setup<'a> {
    variables: &'a [(&'a str, &'a str)],
    flag: Option<&'a str>,
    config: &'a str,
    credentials: &'a str,
}

fn inputs(setup: Setup<'_>) -> Inputs {
    let variables = setup.variables.iter().chain(&[("HOME", "h")]);
    let environment = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Inputs { environment, profile: setup.flag.map(str::to_owned) }
}

/// The files of a setup.
fn read(setup: Setup<'_>) -> impl Fn(&Path) -> io::Result<Vec<u8>> {
    move |path| {
        let text = match path.to_str() {
            Some(CONFIG | "other/config") => setup.config,
            Some(CREDENTIALS | "other/credentials") => setup.credentials,
            Some("locked") => return Err(io::ErrorKind::PermissionDenied.into()),
            Some("binary") => return Ok(vec![0xff]),
            _ => "",
        };
        if text.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(text.as_bytes().to_vec()) }
    }
}

fn find(setup: Setup<'_>) -> Result<S3Access, String> {
    let found = S3Access::resolve(&inputs(setup), &read(setup));
    let shown = format!("{found:?} {}", found.as_ref().err().map(ToString::to_string).unwrap_or_default());
    assert!(!shown.contains("hush"), "a secret is printed: {shown}");
    found.map_err(|problem| problem.to_string())
}

/// Issues the credentials of a setup.
fn issue(setup: Setup<'_>) -> Result<Issued, String> {
    let issued = find(setup)?.issue(&inputs(setup), &read(setup));
    let shown = format!("{issued:?}");
    assert!(!shown.contains("hush"), "a secret is printed: {shown}");
    issued.map_err(|problem| problem.to_string())
}

fn issued(setup: Setup<'_>) -> ExpiringCredentials {
    match issue(setup).unwrap() {
        Issued::Credentials(issued) => issued,
        Issued::Missing { searched } => panic!("no credentials in {searched}"),
    }
}

fn problem(setup: Setup<'_>) -> String {
    find(setup).expect_err("a problem")
}

/// A config file's text.
fn config(text: &str) -> Setup<'_> {
    Setup { config: text, ..Setup::default() }
}

fn variables<'a>(variables: &'a [(&'a str, &'a str)]) -> Setup<'a> {
    Setup { variables, ..Setup::default() }
}

#[test]
fn default_access_is_amazon_without_a_signature() {
    let access = find(Setup::default()).unwrap();
    assert_eq!(access.endpoint.value.to_string(), "s3.us-east-1.amazonaws.com");
    assert_eq!(access.endpoint.value.style, AddressingStyle::VirtualHost);
    assert_eq!(access.region, Traced::new("us-east-1".to_owned(), Origin::Default));
    assert!(matches!(access.credential_source, CredentialSource::InstanceMetadata(_)));
    assert_eq!((access.ca_bundle, access.max_attempts, access.profile.as_str()), (None, None, "default"));
    let homeless = S3Access::resolve(&Inputs::default(), &|_| Err(io::ErrorKind::PermissionDenied.into()));
    assert!(homeless.is_ok(), "without HOME no file is read");
}

#[test]
fn profile_is_chosen_by_flag_then_variables() {
    let both = "[default]\nregion = aa-b-1\n[profile default]\nregion = aa-b-2\n[profile 'my own']\nregion = aa-b-3\n\
                [profile web]\nregion = aa-b-4\n[web]\nregion = aa-b-5\n";
    for (flag, set, expected) in [
        (None, &[][..], "aa-b-2 from profile default in h/.aws/config:4"),
        (None, &[("AWS_PROFILE", "my own")], "aa-b-3 from profile my own in h/.aws/config:6"),
        (None, &[("AWS_DEFAULT_PROFILE", "web")], "aa-b-4 from profile web in h/.aws/config:8"),
        (
            None,
            &[("AWS_DEFAULT_PROFILE", "web"), ("AWS_PROFILE", "my own")],
            "aa-b-3 from profile my own in h/.aws/config:6",
        ),
        (Some("web"), &[("AWS_PROFILE", "my own")], "aa-b-4 from profile web in h/.aws/config:8"),
        (None, &[("AWS_PROFILE", "")], "aa-b-2 from profile default in h/.aws/config:4"),
    ] {
        let Traced { value, origin } = find(Setup { variables: set, flag, ..config(both) }).unwrap().region;
        assert_eq!(format!("{value} from {origin}"), expected, "{flag:?} {set:?}");
    }
    let credentials = "[web]\naws_access_key_id = a\naws_secret_access_key = hush\nregion = aa-b-9\n";
    let access = find(Setup { flag: Some("web"), credentials, ..config(both) }).unwrap();
    assert_eq!(access.region.origin.to_string(), "profile web in h/.aws/credentials:4");
    let moved = [("AWS_CONFIG_FILE", "other/config"), ("AWS_SHARED_CREDENTIALS_FILE", "other/credentials")];
    let access = find(Setup { variables: &moved, flag: Some("web"), credentials, config: both }).unwrap();
    assert_eq!(access.region.origin.to_string(), "profile web in other/credentials:4");
}

#[test]
fn missing_profile_fails_with_a_suggestion() {
    let config = "[profile production]\nregion = aa-b-1\n[profile web]\n[services local]\n[default]\n";
    let missing = |variables, flag, config| problem(Setup { variables, flag, config, credentials: "[mine]" });
    assert_eq!(
        missing(&[("AWS_PROFILE", "prodution")], None, config),
        "AWS_PROFILE: there is no profile \"prodution\" in h/.aws/credentials and h/.aws/config; did you mean \
         \"production\"?"
    );
    assert_eq!(
        missing(&[("AWS_DEFAULT_PROFILE", "local")], None, config),
        "AWS_DEFAULT_PROFILE: there is no profile \"local\" in h/.aws/credentials and h/.aws/config; they have \
         default, mine, production, web"
    );
    assert_eq!(
        problem(Setup { flag: Some("default"), ..Setup::default() }),
        "--profile: there is no profile \"default\" in h/.aws/credentials and h/.aws/config; add [profile default] to \
         one of them"
    );
}

#[test]
fn region_is_resolved_in_order_of_precedence() {
    let file = "[default]\nregion = aa-b-3 # near\n";
    let url = ("AWS_ENDPOINT_URL", "http://localhost:9000");
    for (set, file, expected) in [
        (&[("AWS_REGION", "aa-b-1"), ("AWS_DEFAULT_REGION", "aa-b-2")][..], file, "aa-b-1 from AWS_REGION"),
        (&[("AWS_REGION", " "), ("AWS_DEFAULT_REGION", "aa-b-2")], file, "aa-b-2 from AWS_DEFAULT_REGION"),
        (&[], file, "aa-b-3 from profile default in h/.aws/config:2"),
        (&[url], file, "aa-b-3 from profile default in h/.aws/config:2"),
        (&[url], "", "us-east-1 from the default"),
        (
            &[("AWS_ENDPOINT_URL", "https://s3.eu-west-1.amazonaws.com")],
            "",
            "eu-west-1 from the endpoint's host s3.eu-west-1.amazonaws.com",
        ),
    ] {
        let Traced { value, origin } = find(Setup { variables: set, ..config(file) }).unwrap().region;
        assert_eq!(format!("{value} from {origin}"), expected);
    }
    assert_eq!(
        problem(config("[default]\n\nregion = eu_west\n")),
        "h/.aws/config:3: \"eu_west\" is not a region; write it like us-east-1"
    );
    assert_eq!(
        problem(variables(&[("AWS_REGION", "a/b")])),
        "AWS_REGION: \"a/b\" is not a region; write it like us-east-1"
    );
}

#[test]
fn endpoint_is_resolved_in_order_of_precedence() {
    let file = "[default]\nendpoint_url = http://c:1\nservices = ours\n[services ours]\ns3 =\n  endpoint_url = http://d:1\n\
                dynamodb =\n  endpoint_url = http://e:1\n";
    let general = "[default]\nendpoint_url = http://c:1\n";
    let only_others = "[default]\nservices = ours\nendpoint_url = http://c:1\n[services ours]\nec2 =\n  endpoint_url = http://e:1\n";
    let all = [("AWS_ENDPOINT_URL_S3", "http://a:1"), ("AWS_ENDPOINT_URL", "http://b:1")];
    for (set, file, expected) in [
        (&all[..], file, "a:1 from AWS_ENDPOINT_URL_S3"),
        (&all[1..], file, "b:1 from AWS_ENDPOINT_URL"),
        (&[("AWS_ENDPOINT_URL_S3", "")], file, "d:1 from h/.aws/config:6"),
        (&[], general, "c:1 from profile default in h/.aws/config:2"),
        (&[], only_others, "c:1 from profile default in h/.aws/config:3"),
        (&[("AWS_ENDPOINT_URL", "https://f/storage/v1/s3/")], file, "f/storage/v1/s3 from AWS_ENDPOINT_URL"),
        (
            &[all[0], ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "TRUE")],
            file,
            "s3.us-east-1.amazonaws.com from the default",
        ),
        (
            &[("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false")],
            general,
            "c:1 from profile default in h/.aws/config:2",
        ),
        (
            &[("AWS_REGION", "cn-north-1")],
            "[default]\nignore_configured_endpoint_urls = true\nendpoint_url = http://c:1",
            "s3.cn-north-1.amazonaws.com.cn from AWS_REGION",
        ),
    ] {
        let Traced { value, origin } = find(Setup { variables: set, ..config(file) }).unwrap().endpoint;
        assert_eq!(format!("{value} from {origin}"), expected);
    }
    for (setup, expected) in [
        (
            variables(&[("AWS_ENDPOINT_URL_S3", "localhost:9000")]),
            "AWS_ENDPOINT_URL_S3: endpoint \"localhost:9000\" is neither http nor https; write it as https://HOST or \
             http://HOST:PORT",
        ),
        (
            variables(&[("AWS_ENDPOINT_URL", "http://me:hush@host")]),
            "AWS_ENDPOINT_URL: the endpoint's URL contains a user; write it as https://HOST or http://HOST:PORT",
        ),
        (
            config("[default]\nendpoint_url = https://s3.amazonaws.com/bucket\n"),
            "h/.aws/config:2: endpoint \"https://s3.amazonaws.com/bucket\" has a path, which Amazon does not support; \
             write it without the bucket",
        ),
        (
            config("[default]\nservices = ours\n[services other]\n"),
            "h/.aws/config:2: there is no section [services ours]; add it or remove this line",
        ),
    ] {
        assert_eq!(problem(setup), expected);
    }
}

#[test]
fn addressing_style_depends_on_host_and_setting() {
    for (url, style, expected) in [
        ("", "", AddressingStyle::VirtualHost),
        ("", "auto", AddressingStyle::VirtualHost),
        ("", "path", AddressingStyle::Path),
        ("http://localhost:9000", "", AddressingStyle::Path),
        ("http://localhost:9000", "auto", AddressingStyle::Path),
        ("http://localhost:9000", "virtual", AddressingStyle::VirtualHost),
        ("http://127.0.0.1:9000", "virtual", AddressingStyle::Path),
        ("http://[::1]:9000", "virtual", AddressingStyle::Path),
        ("https://s3.eu-west-1.amazonaws.com", "", AddressingStyle::VirtualHost),
        ("https://s3.eu-west-1.amazonaws.com", "path", AddressingStyle::Path),
        ("https://s3.eu-west-1.notamazonaws.com", "", AddressingStyle::Path),
    ] {
        let text = format!("[default]\ns3 =\n    addressing_style = {style}\n");
        let set = [("AWS_ENDPOINT_URL_S3", url)];
        let access = find(Setup { variables: &set, ..config(&text) }).unwrap();
        assert_eq!(access.endpoint.value.style, expected, "{url} {style}");
    }
    assert_eq!(
        problem(config("[default]\ns3 =\n\n  addressing_style = host\n")),
        "h/.aws/config:4: addressing_style is \"host\"; write path, virtual or auto"
    );
}

#[test]
fn session_tokens_and_expiry_are_read() {
    let token = ("AWS_SESSION_TOKEN", "t");
    let ends = ("AWS_CREDENTIAL_EXPIRATION", "1970-01-01T01:00:01+01:00");
    let found = issued(variables(&[ID, SECRET, token, ends]));
    assert_eq!(found.credentials.secret, "env-hush");
    assert_eq!(found.credentials.token.as_deref(), Some("t"));
    assert_eq!(found.expires.map(|end| end.millis()), Some(1000));
    let credentials =
        "[default]\naws_access_key_id=c\naws_secret_access_key=hush # old\naws_session_token = u\n";
    let found = issued(Setup { credentials, variables: &[token, ends], ..Setup::default() });
    assert_eq!((found.credentials.secret.as_str(), found.credentials.token.as_deref()), ("hush", Some("u")));
    assert_eq!(found.expires, None);
    assert_eq!(
        problem(variables(&[ID, SECRET, ("AWS_CREDENTIAL_EXPIRATION", "soon")])),
        "AWS_CREDENTIAL_EXPIRATION: \"soon\" is not a time; write it as 2026-01-02T03:04:05Z"
    );
}

#[test]
fn incomplete_and_unsupported_logins_fail() {
    for (setup, expected) in [
        (
            variables(&[ID]),
            "AWS_SECRET_ACCESS_KEY: it is not set, but AWS_ACCESS_KEY_ID is; set both or neither".to_owned(),
        ),
        (
            variables(&[SECRET]),
            "AWS_ACCESS_KEY_ID: it is not set, but AWS_SECRET_ACCESS_KEY is; set both or neither".to_owned(),
        ),
        (
            config("[default]\n\naws_access_key_id = c\n"),
            "h/.aws/config:3: profile default has no aws_secret_access_key in this file; add it next to this line"
                .to_owned(),
        ),
        (
            Setup {
                credentials: "[default]\naws_secret_access_key = hush\n",
                ..config("[default]\naws_access_key_id = c\n")
            },
            "h/.aws/credentials:2: profile default has no aws_access_key_id in this file; add it next to this line"
                .to_owned(),
        ),
        (
            config("[default]\nlogin_session = arn:hush\n"),
            "h/.aws/config:2: a login session is not supported; set the variables that \"aws configure \
             export-credentials --profile default --format env\" prints"
                .to_owned(),
        ),
        (
            config("[default]\ncredential_process = get 'hush\n"),
            "h/.aws/config:2: credential_process: a ' is not closed".to_owned(),
        ),
    ] {
        assert_eq!(problem(setup), expected);
    }
}

#[test]
fn credential_process_runs_on_each_call() {
    let directory = tempfile::tempdir().unwrap();
    let (script, count) = (directory.path().join("issue.sh"), directory.path().join("count"));
    let text = "echo x >>\"$1\"\nprintf '{\"Version\": 1, \"AccessKeyId\": \"id%s\",' $(wc -l <\"$1\")\n\
                echo '\"SecretAccessKey\": \"hush\", \"Expiration\": \"1970-01-01T00:00:01Z\"}'\n";
    std::fs::write(&script, text).unwrap();
    let text = format!("[default]\ncredential_process = sh \"{}\" '{}'\n", script.display(), count.display());
    find(config(&text)).unwrap();
    assert!(!count.exists(), "nothing is run before credentials are requested");
    for expected in ["id1", "id2"] {
        let found = issued(config(&text));
        assert_eq!(found.credentials.id, expected);
        assert_eq!(found.expires.map(|end| end.seconds()), Some(1));
    }
    assert_eq!(
        issue(config("[default]\n\ncredential_process = sh -c 'exit 3' hush\n")).unwrap_err(),
        "h/.aws/config:3: \"sh\" failed (exit status: 3) and printed no error"
    );
}

#[test]
fn ca_bundle_and_max_attempts_are_read() {
    let file = "[default]\nca_bundle = ~/our roots.pem\nmax_attempts = 5\n";
    let access = find(config(file)).unwrap();
    let bundle = access.ca_bundle.unwrap();
    assert_eq!(bundle.value, PathBuf::from("h/our roots.pem"));
    assert_eq!(bundle.origin.to_string(), "profile default in h/.aws/config:2");
    assert_eq!(access.max_attempts.map(|attempts| attempts.value), Some(5));
    let set = [("AWS_CA_BUNDLE", "b.pem"), ("AWS_MAX_ATTEMPTS", "7")];
    let access = find(Setup { variables: &set, ..config(file) }).unwrap();
    assert_eq!(
        access.ca_bundle,
        Some(Traced::new(PathBuf::from("b.pem"), Origin::Variable("AWS_CA_BUNDLE")))
    );
    assert_eq!(access.max_attempts, Some(Traced::new(7, Origin::Variable("AWS_MAX_ATTEMPTS"))));
    assert_eq!(
        problem(variables(&[("AWS_MAX_ATTEMPTS", "0")])),
        "AWS_MAX_ATTEMPTS: \"0\" is not a number of attempts; write a whole number of at least 1"
    );
}

#[test]
fn checksum_settings_are_read() {
    let file = "[default]\nrequest_checksum_calculation = when_required # for now\n\
                response_checksum_validation = WHEN_REQUIRED\n";
    let settings = |setup| {
        let S3Access { request_checksums, response_checksums, .. } = find(setup).unwrap();
        [request_checksums, response_checksums].map(|given| given.map(|given| given.value))
    };
    assert_eq!(settings(Setup::default()), [None; 2]);
    assert_eq!(settings(config(file)), [Some(ChecksumUse::WhenRequired); 2]);
    let set = [("AWS_REQUEST_CHECKSUM_CALCULATION", "When_Supported")];
    let changed = settings(Setup { variables: &set, ..config(file) });
    assert_eq!(changed, [Some(ChecksumUse::WhenSupported), Some(ChecksumUse::WhenRequired)]);
    let set = [("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")];
    assert_eq!(settings(variables(&set)), [None, Some(ChecksumUse::WhenRequired)]);
    assert_eq!(
        problem(variables(&[("AWS_REQUEST_CHECKSUM_CALCULATION", "never")])),
        "AWS_REQUEST_CHECKSUM_CALCULATION: \"never\" is neither when_supported nor when_required"
    );
    assert_eq!(
        problem(config("[default]\nresponse_checksum_validation = off\n")),
        "h/.aws/config:2: \"off\" is neither when_supported nor when_required"
    );
}

#[test]
fn unreadable_files_fail() {
    assert_eq!(
        problem(variables(&[("AWS_CONFIG_FILE", "locked")])),
        "AWS_CONFIG_FILE: cannot read locked: permission denied; correct it, or set another with AWS_CONFIG_FILE or \
         AWS_SHARED_CREDENTIALS_FILE"
    );
    assert_eq!(
        problem(variables(&[("AWS_SHARED_CREDENTIALS_FILE", "binary")])),
        "AWS_SHARED_CREDENTIALS_FILE: cannot read binary: it is not UTF-8; correct it, or set another with \
         AWS_CONFIG_FILE or AWS_SHARED_CREDENTIALS_FILE"
    );
    assert_eq!(
        problem(Setup { credentials: "[default]\nhush\n", ..Setup::default() }),
        "h/.aws/credentials:2: this is neither [section] nor key = value; correct it, or begin the line with #"
    );
}
