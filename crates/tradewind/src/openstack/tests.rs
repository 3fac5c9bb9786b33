use super::*;

fn inputs(set: &[(&str, &str)]) -> Inputs {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Inputs { variables: set.iter().map(pair).collect() }
}

/// The resolved credentials and URL, or the error.
fn found(set: &[(&str, &str)]) -> Result<String, String> {
    SwiftAccess::resolve(&inputs(set)).map(|access| access.auth.to_string())
}

const ST: [(&str, &str); 3] = [("ST_AUTH", "http://s/auth/v1.0"), ("ST_USER", "a:u"), ("ST_KEY", "hush")];
const OS: [(&str, &str); 4] = [
    ("OS_AUTH_URL", "https://k:5000/v3"),
    ("OS_USERNAME", "u"),
    ("OS_PASSWORD", "hush"),
    ("OS_PROJECT_NAME", "p"),
];

fn with<'a>(set: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [set, more].concat()
}

#[test]
fn variables_are_resolved_like_swiftclient() {
    let keystone = "default/u for default/p at https://k:5000/v3, public in any region";
    assert_eq!(found(&ST).unwrap(), "a:u at http://s/auth/v1.0");
    assert_eq!(found(&OS).unwrap(), keystone);
    // A complete set of v1 variables takes precedence, unless a version is set.
    assert_eq!(found(&with(&ST, &OS)).unwrap(), "a:u at http://s/auth/v1.0");
    assert_eq!(found(&with(&with(&ST, &OS), &[("OS_IDENTITY_API_VERSION", "3")])).unwrap(), keystone);
    assert_eq!(
        found(&with(&with(&OS, &ST), &[("ST_AUTH_VERSION", "1.0")])).unwrap(),
        "a:u at http://s/auth/v1.0"
    );
    assert_eq!(found(&with(&OS, &[("ST_KEY", "x")])).unwrap(), keystone);
    let options = [
        ("OS_USER_DOMAIN_NAME", "du"),
        ("OS_PROJECT_DOMAIN_ID", "dp"),
        ("OS_REGION_NAME", "one"),
        ("OS_ENDPOINT_TYPE", "internalURL"),
    ];
    assert_eq!(found(&with(&OS, &options)).unwrap(), "du/u for dp/p at https://k:5000/v3, internal in one");
    let ids = [("OS_USER_ID", "17"), ("OS_PROJECT_ID", "4"), ("OS_AUTH_URL", "http://k/identity/")];
    assert_eq!(found(&with(&OS, &ids)).unwrap(), "17 for 4 at http://k/identity/v3, public in any region");
    let tenant = [OS[0], OS[1], OS[2], ("OS_TENANT_NAME", "t")];
    assert!(found(&tenant).unwrap().contains("for default/t at"));
    let credential =
        [OS[0], ("OS_APPLICATION_CREDENTIAL_ID", "c"), ("OS_APPLICATION_CREDENTIAL_SECRET", "hush")];
    assert_eq!(found(&credential).unwrap(), "credential c at https://k:5000/v3, public in any region");
    let more = [("OS_STORAGE_URL", "http://s/v1/AUTH_x"), ("OS_CACERT", "ca.pem")];
    let access = SwiftAccess::resolve(&inputs(&with(&ST, &more))).unwrap();
    assert_eq!(access.account_url.as_deref(), Some("http://s/v1/AUTH_x"));
    assert_eq!(access.ca_bundle, Some(PathBuf::from("ca.pem")));
}

#[test]
fn missing_and_invalid_variables_are_named() {
    for (set, expected) in [
        (&[][..], NOT_CONFIGURED),
        (&[("ST_AUTH", " "), ("PATH", "x")], NOT_CONFIGURED),
        (&ST[..2], "ST_KEY is not set, and Swift's own authentication needs it"),
        (&OS[..1], "OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME are not set, and Keystone needs them"),
        (&OS[..3], "OS_PROJECT_NAME is not set, and Keystone needs it"),
        (
            &[OS[0], ("OS_APPLICATION_CREDENTIAL_ID", "c")],
            "OS_APPLICATION_CREDENTIAL_SECRET is not set, and an application credential needs it",
        ),
        (
            &[
                OS[0],
                ("OS_AUTH_TYPE", "v3applicationcredential"),
                ("OS_APPLICATION_CREDENTIAL_SECRET", "hush"),
            ],
            "OS_APPLICATION_CREDENTIAL_ID is not set, and an application credential needs it",
        ),
        (
            &[OS[0], ("OS_AUTH_TOKEN", "hush")],
            "OS_AUTH_TOKEN is set, but an expired token cannot be renewed; set OS_USERNAME and OS_PASSWORD",
        ),
        (
            &[OS[1], OS[2], OS[3], ("OS_AUTH_URL", "http://k/v2.0")],
            "OS_AUTH_URL ends with /v2.0, which is not supported; write the URL that ends with /v3",
        ),
        (
            &[OS[0], ("OS_AUTH_VERSION", "2")],
            "Keystone v2 is not supported; set OS_IDENTITY_API_VERSION to 3, and OS_AUTH_URL to the URL \
             that ends with /v3",
        ),
        (&[("OS_AUTH_VERSION", "4")], "unknown authentication version \"4\"; write 1 or 3"),
        (
            &[OS[0], OS[1], OS[2], OS[3], ("OS_ENDPOINT_TYPE", "private")],
            "OS_ENDPOINT_TYPE is \"private\"; write public, internal or admin",
        ),
    ] {
        assert_eq!(found(set), Err(expected.to_owned()), "{set:?}");
    }
}

#[test]
fn openrc_sets_plain_text_variables_only() {
    let file = Openrc::parse(
        "#!/usr/bin/env bash\nexport OS_AUTH_URL=https://k:5000/v3 # why\nunset OS_TENANT_ID\n\
         \texport OS_USERNAME=\"a \\\"b\\\" \\c\"\nOS_PROJECT_NAME='it''s $5'\nexport OS_REGION_NAME=\"\"\n\
         echo \"Please enter your OpenStack Password: \"\nread -sr OS_PASSWORD_INPUT\n\
         export OS_PASSWORD=$OS_PASSWORD_INPUT\nexport PATH=/x\nOS_X=`id`\nOS_Y=a;b\nOS_Z=\"open\n\
         if [ -z \"$OS_REGION_NAME\" ]; then unset OS_REGION_NAME; fi\n",
    );
    let set: Vec<(&str, &str)> = file.variables.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        set,
        [
            ("OS_AUTH_URL", "https://k:5000/v3"),
            ("OS_PROJECT_NAME", "its $5"),
            ("OS_REGION_NAME", ""),
            ("OS_USERNAME", "a \"b\" \\c"),
        ]
    );
    // Only the password comes from the environment.
    let covered = inputs(&with(&ST, &OS)).overridden_by(file);
    let auth = SwiftAccess::resolve(&covered).unwrap().auth;
    assert_eq!(
        auth.to_string(),
        "default/a \"b\" \\c for default/its $5 at https://k:5000/v3, public in any region"
    );
}
