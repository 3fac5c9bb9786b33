//! Swift as a store of the commands where a real Keystone says who may do what, set up as python-swiftclient's users
//! set it up. Where one of the two is not installed the test says so and passes.

use super::all_is_done_with;
use super::support::caller::Caller;
use super::support::swift::Laboratory;
use super::swift::nobody;

/// A caller with the variables of porter, and the URL that they name.
fn porter(laboratory: &Laboratory) -> Caller {
    let variables = [
        ("OS_USERNAME", "porter"),
        ("OS_PASSWORD", "secret"),
        ("OS_PROJECT_NAME", "cargo"),
        ("OS_USER_DOMAIN_NAME", "yard"),
        ("OS_PROJECT_DOMAIN_NAME", "yard"),
        ("OS_REGION_NAME", "harbour"),
    ];
    let caller = nobody().with("OS_AUTH_URL", &laboratory.said("OS_AUTH_URL"));
    variables.iter().fold(caller, |caller, (name, value)| caller.with(name, value))
}

#[test]
fn who_keystone_lets_and_who_it_does_not() {
    let name = "who_keystone_lets_and_who_it_does_not";
    let Some(laboratory) = Laboratory::with_keystone(name, &[]) else { return };
    all_is_done_with(&porter(&laboratory), "swift");
    others_that_are_let(&laboratory);
    others_that_are_not(&laboratory);
}

fn others_that_are_let(laboratory: &Laboratory) {
    let user = porter(laboratory);
    user.write("a", "a");
    user.done(&["mb", "swift://bucket"]);
    user.done(&["cp", "a", "swift://bucket/a"]);
    let said = |name: &str| laboratory.said(name);
    let credential = nobody()
        .with("OS_AUTH_URL", said("OS_AUTH_URL").trim_end_matches("/v3"))
        .with("OS_APPLICATION_CREDENTIAL_ID", &said("CREDENTIAL_ID"))
        .with("OS_APPLICATION_CREDENTIAL_SECRET", &said("CREDENTIAL_SECRET"))
        .with("OS_REGION_NAME", "harbour");
    assert_eq!(credential.read("swift://bucket/a"), b"a");
    // The region may be the settings'.
    let cloud = "[store.cloud]\ntype = \"swift\"\nregion = \"harbour\"\n";
    let settled = porter(laboratory).with("OS_REGION_NAME", "").configured(cloud);
    assert_eq!(settled.read("cloud://bucket/a"), b"a");
}

fn others_that_are_not(laboratory: &Laboratory) {
    let url = laboratory.said("OS_AUTH_URL");
    let swift = laboratory.said("ACCOUNT_URL").split('/').nth(2).unwrap().to_owned();
    // It tells nobody which of these it was.
    let refused = |user: &str, project: &str| {
        let check = "check the user, the password, the project and their domains, and that the user has a role in \
                     the project";
        format!("Keystone at {url} refuses {user} for {project} (401 Unauthorized); {check}")
    };
    let role = "neither the user's roles nor an access list of the container allows it";
    let cases = [
        ("OS_PASSWORD", "guessed", refused("yard/porter", "yard/cargo")),
        ("OS_USERNAME", "nobody", refused("yard/nobody", "yard/cargo")),
        ("OS_PROJECT_NAME", "nowhere", refused("yard/porter", "yard/nowhere")),
        ("OS_USER_DOMAIN_NAME", "nowhere", refused("nowhere/porter", "yard/cargo")),
        // Without a role in the project, and with one that counts for nothing with Swift.
        ("OS_USERNAME", "stranger", refused("yard/stranger", "yard/cargo")),
        (
            "OS_USERNAME",
            "reader",
            format!("GET swift://bucket/a on {swift}: the store answered 403 Forbidden; {role}"),
        ),
        (
            "OS_REGION_NAME",
            "sea",
            "Keystone knows no public object store in region \"sea\", only in elsewhere, harbour".to_owned(),
        ),
    ];
    for (name, value, expected) in cases {
        let ran = porter(laboratory).with(name, value).run(&["cat", "swift://bucket/a"]);
        assert_eq!(ran.status.code(), Some(1), "{name}={value}: {}", ran.err);
        assert_eq!(ran.err, format!("tradewind: {expected}\n"), "{name}={value}");
    }
    let credential = nobody()
        .with("OS_AUTH_URL", &url)
        .with("OS_APPLICATION_CREDENTIAL_ID", &laboratory.said("CREDENTIAL_ID"))
        .with("OS_APPLICATION_CREDENTIAL_SECRET", "guessed");
    let ran = credential.run(&["ls", "swift://"]);
    assert!(ran.err.ends_with("check its id and its secret, and whether it has expired\n"), "{}", ran.err);
    assert_eq!((ran.err.lines().count(), ran.status.code()), (1, Some(1)), "{}", ran.err);
    assert!(!ran.err.contains("guessed"), "{}", ran.err);
}
