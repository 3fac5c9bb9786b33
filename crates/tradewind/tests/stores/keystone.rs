//! Swift with a real Keystone as a store of the commands, configured as for python-swiftclient. If one of the two is
//! not installed, the test prints that and passes.

use super::all_is_done_with;
use super::support::command_runner::CommandRunner;
use super::support::swift::SwiftServer;
use super::swift::unconfigured;

/// A caller with the variables of the user porter.
fn porter(laboratory: &SwiftServer) -> CommandRunner {
    let variables = [
        ("OS_USERNAME", "porter"),
        ("OS_PASSWORD", "secret"),
        ("OS_PROJECT_NAME", "cargo"),
        ("OS_USER_DOMAIN_NAME", "yard"),
        ("OS_PROJECT_DOMAIN_NAME", "yard"),
        ("OS_REGION_NAME", "harbour"),
    ];
    let caller = unconfigured().with_variable("OS_AUTH_URL", &laboratory.setting("OS_AUTH_URL"));
    variables.iter().fold(caller, |caller, (name, value)| caller.with_variable(name, value))
}

#[test]
fn keystone_credentials_are_accepted_or_rejected() {
    let name = "keystone_credentials_are_accepted_or_rejected";
    let Some(laboratory) = SwiftServer::with_keystone(name, &[]) else { return };
    all_is_done_with(&porter(&laboratory), "swift");
    check_accepted_credentials(&laboratory);
    check_rejected_credentials(&laboratory);
}

fn check_accepted_credentials(laboratory: &SwiftServer) {
    let user = porter(laboratory);
    user.write("a", "a");
    user.run_ok(&["mb", "swift://bucket"]);
    user.run_ok(&["cp", "a", "swift://bucket/a"]);
    let said = |name: &str| laboratory.setting(name);
    let credential = unconfigured()
        .with_variable("OS_AUTH_URL", said("OS_AUTH_URL").trim_end_matches("/v3"))
        .with_variable("OS_APPLICATION_CREDENTIAL_ID", &said("CREDENTIAL_ID"))
        .with_variable("OS_APPLICATION_CREDENTIAL_SECRET", &said("CREDENTIAL_SECRET"))
        .with_variable("OS_REGION_NAME", "harbour");
    assert_eq!(credential.read("swift://bucket/a"), b"a");
    // The region may come from the settings.
    let cloud = "[store.cloud]\ntype = \"swift\"\nregion = \"harbour\"\n";
    let settled = porter(laboratory).with_variable("OS_REGION_NAME", "").with_settings(cloud);
    assert_eq!(settled.read("cloud://bucket/a"), b"a");
}

fn check_rejected_credentials(laboratory: &SwiftServer) {
    let url = laboratory.setting("OS_AUTH_URL");
    let swift = laboratory.setting("ACCOUNT_URL").split('/').nth(2).unwrap().to_owned();
    // Keystone does not say which of these was wrong.
    let refused = |user: &str, project: &str| {
        let check = "check the user, the password, the project and their domains, and that the user has a role in \
                     the project";
        format!("Keystone at {url} rejects {user} for {project} (401 Unauthorized); {check}")
    };
    let role = "neither the user's roles nor an access list of the container allows it";
    let cases = [
        ("OS_PASSWORD", "guessed", refused("yard/porter", "yard/cargo")),
        ("OS_USERNAME", "nobody", refused("yard/nobody", "yard/cargo")),
        ("OS_PROJECT_NAME", "nowhere", refused("yard/porter", "yard/nowhere")),
        ("OS_USER_DOMAIN_NAME", "nowhere", refused("nowhere/porter", "yard/cargo")),
        // Without a role in the project, and with one that Swift ignores.
        ("OS_USERNAME", "stranger", refused("yard/stranger", "yard/cargo")),
        (
            "OS_USERNAME",
            "reader",
            format!("GET swift://bucket/a on {swift}: the store answered 403 Forbidden; {role}"),
        ),
        (
            "OS_REGION_NAME",
            "sea",
            "Keystone's catalog has no public object store in region \"sea\", only in elsewhere, harbour"
                .to_owned(),
        ),
    ];
    for (name, value, expected) in cases {
        let ran = porter(laboratory).with_variable(name, value).run(&["cat", "swift://bucket/a"]);
        assert_eq!(ran.status.code(), Some(1), "{name}={value}: {}", ran.err);
        assert_eq!(ran.err, format!("tradewind: {expected}\n"), "{name}={value}");
    }
    let credential = unconfigured()
        .with_variable("OS_AUTH_URL", &url)
        .with_variable("OS_APPLICATION_CREDENTIAL_ID", &laboratory.setting("CREDENTIAL_ID"))
        .with_variable("OS_APPLICATION_CREDENTIAL_SECRET", "guessed");
    let ran = credential.run(&["ls", "swift://"]);
    assert!(ran.err.ends_with("check its id and its secret, and whether it has expired\n"), "{}", ran.err);
    assert_eq!((ran.err.lines().count(), ran.status.code()), (1, Some(1)), "{}", ran.err);
    assert!(!ran.err.contains("guessed"), "{}", ran.err);
}
