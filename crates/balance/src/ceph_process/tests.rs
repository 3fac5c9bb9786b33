use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

/// A program that behaves like `ceph`: `body` is the shell code of its loop over lines in `$line`.
fn fake(directory: &Path, body: &str) -> CephOptions {
    let path = directory.join("ceph");
    let script = format!(
        "#!/bin/sh\nwhile read -r line; do case \"$line\" in fsid) echo; echo '{{\"fsid\":\"f\"}}';; {body} esac; done\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    CephOptions { program: path, timeout: Duration::from_secs(20), ..CephOptions::default() }
}

#[test]
fn responses_keep_their_commands_whether_output_error_or_silence() {
    let place = tempfile::tempdir().unwrap();
    let options = fake(
        place.path(),
        "silent) ;; 'osd dump') echo '{\"epoch\":7}';; bad*) echo 'Error EINVAL: no such' >&2;; *) echo \"got $line\";;",
    );
    let mut ceph = CephProcess::start(options).unwrap();
    assert_eq!(ceph.run(&["silent"]).unwrap(), Vec::<String>::new());
    assert_eq!(ceph.json(&["osd", "dump"]).unwrap()["epoch"], 7);
    let error = ceph.run(&["bad", "command"]).unwrap_err();
    assert_eq!(error.to_string(), "\"ceph bad command\" failed: EINVAL: no such");
    assert_eq!(ceph.run(&["set", "a b", "it's"]).unwrap(), ["got set 'a b' 'it'\\''s'"]);
    assert!(matches!(ceph.json(&["set"]).unwrap_err(), Error::Malformed { .. }));
}

#[test]
fn process_that_hangs_is_replaced() {
    let place = tempfile::tempdir().unwrap();
    let mut options = fake(place.path(), "hang) sleep 60;; *) echo \"got $line\";;");
    options.timeout = Duration::from_secs(3);
    let mut ceph = CephProcess::start(options).unwrap();
    let error = ceph.run(&["hang"]).unwrap_err();
    assert!(error.to_string().contains("no response to \"ceph hang\" within 3 s"), "{error}");
    assert_eq!(ceph.run(&["next"]).unwrap(), ["got next"]);
}

#[test]
fn process_that_ends_is_quoted() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("ceph");
    fs::write(&path, "#!/bin/sh\necho '[errno 2] error connecting to the cluster' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let options = CephOptions { program: path, ..CephOptions::default() };
    let error = CephProcess::start(options).unwrap_err();
    assert!(error.to_string().contains("[errno 2] error connecting to the cluster"), "{error}");
    let options = CephOptions { program: place.path().join("missing"), ..CephOptions::default() };
    assert!(matches!(CephProcess::start(options).unwrap_err(), Error::Start(_)));
}
