//! Removals of versions of which some fail: a deleted object must not come back.

use serde_json::Value as Json;

use super::scene;
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

/// Two keys with a delete marker before an older version with bytes.
const VERSIONS: [(&str, &str, &str); 4] = [
    ("a", "DeleteMarker", "a2"),
    ("a", "Version", "a1"),
    ("b", "DeleteMarker", "b2"),
    ("b", "Version", "b1"),
];

/// A server with [`VERSIONS`] that answers a removal with `remove`.
fn versions(
    remove: impl Fn(&Request, ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> (ScriptedServer, CommandRunner) {
    let entry = |(key, kind, id): (&str, &str, &str)| {
        format!(
            "<{kind}><Key>{key}</Key><VersionId>{id}</VersionId><LastModified>2026-01-02T03:04:05.000Z</LastModified>\
             <ETag>&quot;x&quot;</ETag><Size>1</Size></{kind}>"
        )
    };
    let entries: String = VERSIONS.map(entry).concat();
    let document = format!("<ListVersionsResult>{entries}</ListVersionsResult>");
    scene(move |request, answer| {
        Reply::Respond(match request.operation {
            "Other" if request.query.contains_key("versions") => ScriptedResponse::document(&document),
            "DeleteObject" => remove(request, answer),
            _ => answer,
        })
    })
}

/// Removes all versions; returns the exit status and the summary.
fn remove_all(caller: &CommandRunner) -> (i32, Json) {
    let ran = caller.run(&["rm", "-r", "--all-versions", "--json", "s3://bucket"]);
    (ran.status.code().unwrap(), serde_json::from_slice(&ran.out).unwrap())
}

fn removed(server: &ScriptedServer) -> Vec<String> {
    server.requests_of("DeleteObject").iter().map(|request| request.query["versionId"].clone()).collect()
}

#[test]
fn markers_are_removed_after_all_versions() {
    let (server, caller) = versions(|_, answer| answer);
    let (status, summary) = remove_all(&caller);
    assert_eq!((status, &summary["removed"]), (0, &4.into()), "{summary}");
    let mut removed = removed(&server);
    removed[..2].sort();
    removed[2..].sort();
    assert_eq!(removed, ["a1", "b1", "a2", "b2"]);
}

#[test]
fn marker_stays_if_a_version_of_its_key_was_not_removed() {
    let (server, caller) = versions(|request, answer| match &*request.query["versionId"] {
        "a1" => ScriptedResponse::error(403, "AccessDenied", "Not this one."),
        _ => answer,
    });
    let (status, summary) = remove_all(&caller);
    let counts = ["removed", "failed", "not_removed"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!((status, counts), (1, [2, 1, 1]), "{summary}");
    assert!(!removed(&server).contains(&"a2".to_owned()), "{:?}", removed(&server));
}

#[test]
fn missing_version_is_not_counted_as_removed() {
    let (_server, caller) = versions(|request, answer| match &*request.query["versionId"] {
        "a1" => ScriptedResponse::error(404, "NoSuchVersion", "It does not exist."),
        _ => answer,
    });
    let (status, summary) = remove_all(&caller);
    assert_eq!((status, &summary["removed"]), (0, &3.into()), "{summary}");
}
