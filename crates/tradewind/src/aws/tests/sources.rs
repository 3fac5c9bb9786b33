//! Which source is used, and what is wrong with incomplete ones. Nothing is asked.

use super::*;

/// The name of the source and its origin.
fn source(setup: Setup<'_>) -> String {
    let described = |name: String, origin: Origin| format!("{name} from {origin}");
    match find(setup).unwrap().credential_source {
        CredentialSource::Anonymous => "anonymous".to_owned(),
        CredentialSource::Keys(Traced { value, origin }) => described(value.credentials.id, origin),
        CredentialSource::Process(Traced { value, origin }) => described(format!("{value:?}"), origin),
        CredentialSource::Role(Traced { origin, .. }) => described("role".to_owned(), origin),
        CredentialSource::WebIdentity(Traced { origin, .. }) => described("web identity".to_owned(), origin),
        CredentialSource::Sso(Traced { origin, .. }) => described("sso".to_owned(), origin),
        CredentialSource::Container(Traced { origin, .. }) => described("container".to_owned(), origin),
        CredentialSource::InstanceMetadata(Traced { origin, .. }) => described("metadata".to_owned(), origin),
    }
}

#[test]
fn keys_and_programs_are_resolved_in_order_of_precedence() {
    let credentials = "[default]\naws_access_key_id = c\naws_secret_access_key = hush\n[other]\n";
    let keys = "[default]\naws_access_key_id = k\naws_secret_access_key = hush\nsso_session = s\n";
    let process = "[default]\naws_access_key_id = k\naws_secret_access_key = hush\ncredential_process = get --now hush\n";
    for (set, flag, credentials, config, expected) in [
        (&[ID, SECRET][..], None, credentials, process, "env-id from AWS_ACCESS_KEY_ID"),
        (
            &[ID, SECRET, ("AWS_PROFILE", "other")],
            None,
            credentials,
            process,
            "env-id from AWS_ACCESS_KEY_ID",
        ),
        (
            &[ID, SECRET],
            Some("default"),
            credentials,
            process,
            "c from profile default in h/.aws/credentials:2",
        ),
        (&[SECRET], None, credentials, process, "c from profile default in h/.aws/credentials:2"),
        (
            &[],
            None,
            "[other]\n",
            process,
            "CredentialProcess(\"get\", <redacted>) from profile default in h/.aws/config:4",
        ),
        (&[], None, "", keys, "k from profile default in h/.aws/config:2"),
        (&[], Some("other"), credentials, keys, "metadata from the default"),
        (&[ID, SECRET], Some("other"), credentials, keys, "metadata from the default"),
        (&[], None, "", "[sso-session s]\nsso_region = x\n", "metadata from the default"),
        (&[], None, "", "[default]\nsource_profile = other\n", "metadata from the default"),
        (&[("AWS_EC2_METADATA_DISABLED", "True")], None, "", "", "anonymous"),
    ] {
        assert_eq!(source(Setup { variables: set, flag, config, credentials }), expected);
    }
}

/// A profile with every source, in the order in which they are used: each round removes the first one.
#[test]
fn sources_are_used_in_the_order_of_the_cli() {
    const ROLE: &str = "role_arn = arn\nsource_profile = keys\n";
    const SSO: &str = "sso_account_id = 1\nsso_role_name = r\nsso_region = x\nsso_start_url = u\n";
    const PROCESS: &str = "credential_process = get\n";
    const KEYS: &str = "aws_access_key_id = k\naws_secret_access_key = hush\n";
    let web_identity = [("AWS_WEB_IDENTITY_TOKEN_FILE", "t"), ("AWS_ROLE_ARN", "arn")];
    let container = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x");
    let metadata = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
    let all = [ID, SECRET, web_identity[0], web_identity[1], container, metadata];
    let credentials = "[default]\naws_access_key_id = c\naws_secret_access_key = hush\n";
    let others = "[profile keys]\naws_access_key_id = o\naws_secret_access_key = hush\n[default]\n";
    for (set, credentials, parts, expected) in [
        (&all[..], credentials, &[ROLE, SSO, PROCESS, KEYS][..], "env-id from AWS_ACCESS_KEY_ID"),
        (&all[2..], credentials, &[ROLE, SSO, PROCESS, KEYS], "role from profile default in h/.aws/config:5"),
        (&all[2..], credentials, &[SSO, PROCESS, KEYS], "web identity from AWS_WEB_IDENTITY_TOKEN_FILE"),
        (&all[4..], credentials, &[SSO, PROCESS, KEYS], "sso from profile default in h/.aws/config:5"),
        (&all[4..], credentials, &[PROCESS, KEYS], "c from profile default in h/.aws/credentials:2"),
        (
            &all[4..],
            "",
            &[PROCESS, KEYS],
            "CredentialProcess(\"get\", <redacted>) from profile default in h/.aws/config:5",
        ),
        (&all[4..], "", &[KEYS], "k from profile default in h/.aws/config:5"),
        (&all[4..], "", &[], "container from AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        (&all[5..], "", &[], "metadata from AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    ] {
        let config = format!("{others}{}", parts.concat());
        assert_eq!(source(Setup { variables: set, credentials, config: &config, flag: None }), expected);
    }
}

#[test]
fn explicit_profile_excludes_keys_and_web_identity_of_the_environment() {
    let set =
        [ID, SECRET, ("AWS_WEB_IDENTITY_TOKEN_FILE", "t"), ("AWS_ROLE_ARN", "arn"), ("AWS_PROFILE", "web")];
    let text =
        "[profile web]\nweb_identity_token_file = u\nrole_arn = arn:aws:iam::1:role/web\n[profile none]\n";
    let with = |flag, set| Setup { variables: set, flag, ..config(text) };
    let web = "web identity from profile web in h/.aws/config:2";
    assert_eq!(source(with(Some("web"), &set)), web);
    assert_eq!(source(with(Some("none"), &set)), "metadata from the default");
    assert_eq!(source(with(None, &set)), "env-id from AWS_ACCESS_KEY_ID");
    assert_eq!(source(with(None, &set[2..])), "web identity from AWS_WEB_IDENTITY_TOKEN_FILE");
    let container = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/x");
    let found = source(with(Some("none"), &[container]));
    assert_eq!(found, "container from AWS_CONTAINER_CREDENTIALS_FULL_URI", "as in the CLI");
}

#[test]
fn profile_with_keys_may_be_its_own_source() {
    let text = "[default]\nrole_arn = arn\nsource_profile = default\naws_access_key_id = k\n\
                aws_secret_access_key = hush\n";
    assert_eq!(source(config(text)), "role from profile default in h/.aws/config:2");
}

#[test]
fn incomplete_roles_fail() {
    for (text, expected) in [
        (
            "[default]\nrole_arn = arn\nsource_profile = a\n[profile a]\nrole_arn = arn\nsource_profile = b\n\
             [profile b]\nrole_arn = arn\nsource_profile = a\n",
            "h/.aws/config:9: the source profiles form a loop (default -> a -> b -> a); break it",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = default\n",
            "h/.aws/config:3: the source profiles form a loop (default -> default); break it",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = bsae\n[profile base]\n",
            "h/.aws/config:3: there is no profile \"bsae\" in h/.aws/credentials and h/.aws/config; did you mean \
             \"base\"?",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = base\n[profile base]\nregion = x\n",
            "h/.aws/config:3: profile base has no credentials; add keys or another source to it",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = base\ncredential_source = Environment\n",
            "h/.aws/config:4: the profile has source_profile as well; remove one of them",
        ),
        (
            "[default]\nrole_arn = arn\n",
            "h/.aws/config:2: the credentials to assume this role with are missing; add source_profile or \
             credential_source",
        ),
        (
            "[default]\nrole_arn = arn\ncredential_source = Ec2\n",
            "h/.aws/config:3: \"Ec2\" is not a credential source; write Environment, Ec2InstanceMetadata, EcsContainer",
        ),
        (
            "[default]\nrole_arn = arn\ncredential_source = Environment\n",
            "h/.aws/config:3: Environment needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not set",
        ),
        (
            "[default]\nrole_arn = arn\ncredential_source = EcsContainer\n",
            "h/.aws/config:3: EcsContainer needs AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or ..._FULL_URI, which are \
             not set",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = base\nduration_seconds = 1h\n",
            "h/.aws/config:4: \"1h\" is not a number of seconds; write a whole number from 900 to 43200",
        ),
        (
            "[default]\nrole_arn = arn\nsource_profile = base\nmfa_serial = arn:hush\n",
            "h/.aws/config:4: mfa_serial needs a code, and this program does not ask for one; set the variables that \
             \"aws configure export-credentials --profile default --format env\" prints",
        ),
        (
            "[default]\nweb_identity_token_file = f\n",
            "h/.aws/config:2: the role of this web identity is missing; set AWS_ROLE_ARN, or role_arn in the profile",
        ),
    ] {
        assert_eq!(problem(config(text)), expected);
    }
}

#[test]
fn incomplete_sign_ons_fail() {
    for (text, expected) in [
        (
            "[default]\nsso_account_id = 1\nsso_session = s\n[sso-session s]\nsso_region = x\n",
            "h/.aws/config:2: the sign-on of profile default has no sso_role_name; add it",
        ),
        (
            "[default]\nsso_account_id = 1\nsso_role_name = r\nsso_session = s\n[sso-session s]\nsso_region = x\n",
            "h/.aws/config:2: the sign-on of profile default has no sso_start_url; add it",
        ),
        (
            "[default]\nsso_account_id = 1\nsso_role_name = r\nsso_session = s\n",
            "h/.aws/config:4: there is no section [sso-session s]; add it or remove this line",
        ),
    ] {
        assert_eq!(problem(config(text)), expected);
    }
}

#[test]
fn invalid_endpoints_fail() {
    for (set, expected) in [
        (
            &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/x")][..],
            "AWS_CONTAINER_CREDENTIALS_FULL_URI: http is allowed only to loopback addresses, 169.254.170.2, \
             169.254.170.23, fd00:ec2::23, localhost, and not to \"example.com\"; use https",
        ),
        (
            &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "x")],
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI: the path does not begin with a slash",
        ),
        (
            &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://me:hush@host")],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT: the URL contains a user; remove it",
        ),
        (
            &[("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "6")],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE: \"6\" is not an endpoint mode; write IPv4 or IPv6",
        ),
        (
            &[("AWS_METADATA_SERVICE_TIMEOUT", "0")],
            "AWS_METADATA_SERVICE_TIMEOUT: \"0\" is not a whole number from 1 to 1000",
        ),
    ] {
        assert_eq!(problem(variables(set)), expected);
    }
}
