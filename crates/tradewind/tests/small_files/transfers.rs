//! Journals of interrupted transfers, and tuning profiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::support::command_runner::CommandRunner;
use super::support::content::content;
use super::support::eventually;
use super::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};
use super::support::test_store::TestStore;
use super::{Damage, flipped};

/// Three parts of the least size.
const SIZE: usize = LAST_OFFSET + (5 << 20);
const LAST_OFFSET: usize = 10 << 20;
const PART: &str = "5MiB";

/// The direction of a large transfer, and the command.
#[derive(Debug, Clone, Copy)]
enum Transfer {
    Download,
    SyncDown,
    Upload,
    SyncUp,
}

impl Transfer {
    const ALL: [Self; 4] = [Self::Download, Self::SyncDown, Self::Upload, Self::SyncUp];

    fn arguments(self) -> [&'static str; 6] {
        match self {
            Self::Download => ["cp", "--quiet", "--chunk-size", PART, "s3://bucket/d/x", "here/x"],
            Self::SyncDown => ["sync", "--quiet", "--chunk-size", PART, "s3://bucket/d", "here"],
            Self::Upload => ["cp", "--quiet", "--chunk-size", PART, "here/x", "s3://bucket/d/x"],
            Self::SyncUp => ["sync", "--quiet", "--chunk-size", PART, "here", "s3://bucket/d"],
        }
    }

    const fn is_sync(self) -> bool {
        matches!(self, Self::SyncDown | Self::SyncUp)
    }

    const fn is_upload(self) -> bool {
        matches!(self, Self::Upload | Self::SyncUp)
    }

    fn store(self, server: &ScriptedServer, caller: &CommandRunner, version: u64) {
        if self.is_upload() {
            caller.write("here/x", content(version, SIZE));
        } else {
            server.put_object("d/x", content(version, SIZE));
        }
    }

    fn result(self, server: &ScriptedServer, caller: &CommandRunner) -> Option<Vec<u8>> {
        if self.is_upload() { server.object("d/x") } else { fs::read(caller.path("here/x")).ok() }
    }
}

/// The journal files.
fn journals(caller: &CommandRunner) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A server that holds the last part of an upload, or the last range of a download, while transfers are interrupted.
struct Scene {
    transfer: Transfer,
    server: ScriptedServer,
    caller: CommandRunner,
    holds: Arc<AtomicBool>,
}

impl Scene {
    fn new(transfer: Transfer) -> Self {
        let holds = Arc::new(AtomicBool::new(false));
        let is_held = holds.clone();
        let last = format!("bytes={LAST_OFFSET}-");
        let server = ScriptedServer::start(move |request: &Request, answer: ScriptedResponse| {
            let is_last = request.header("range").starts_with(&last)
                || request.query.get("partNumber").is_some_and(|number| number == "3");
            if is_last && is_held.load(Ordering::SeqCst) { Reply::Silence } else { Reply::Respond(answer) }
        });
        let caller = CommandRunner::new(server.address);
        Self { transfer, server, caller, holds }
    }

    /// Changes the source to a version, and interrupts the transfer before its last part. Returns its journal.
    fn interrupt(&self, version: u64) -> Vec<u8> {
        self.transfer.store(&self.server, &self.caller, version);
        self.holds.store(true, Ordering::SeqCst);
        let held = self.server.stalled_count();
        let running = self.caller.spawn(&self.transfer.arguments());
        self.server.wait_until_stalled(held + 1);
        let (record, count) = if self.transfer.is_upload() { ("part_bytes", 1) } else { ("{\"Chunk\":", 2) };
        eventually("the other parts are recorded", || {
            let text = journals(&self.caller).pop().and_then(|path| fs::read_to_string(path).ok());
            text.is_some_and(|text| text.matches(record).count() == count)
        });
        running.signal(Signal::KILL);
        running.wait_for_output();
        self.holds.store(false, Ordering::SeqCst);
        fs::read(self.journal()).unwrap()
    }

    /// The only journal.
    fn journal(&self) -> PathBuf {
        let journals = journals(&self.caller);
        let [journal] = journals.as_slice() else { panic!("{journals:?}") };
        journal.clone()
    }

    /// Interrupts a transfer, damages its journal, and completes the transfer.
    fn check(&self, case: &str, damage: impl FnOnce(&Path)) {
        self.interrupt(NEWEST);
        damage(&self.journal());
        let ran = self.caller.run(&self.transfer.arguments());
        assert!(ran.status.success(), "{:?}, {case}: {ran:?}", self.transfer);
        let result = self.transfer.result(&self.server, &self.caller).unwrap();
        assert!(result == content(NEWEST, SIZE), "{:?}, {case}: the copy is wrong", self.transfer);
        // The next case begins without a copy.
        self.caller.run_ok(&["rm", "s3://bucket/d/x"]);
        let _ = fs::remove_dir_all(self.caller.path("here"));
    }
}

const OLDER: u64 = 1;
const NEWEST: u64 = 2;

#[test]
fn journals_of_transfers_with_any_fault_lead_to_the_newest_data() {
    for transfer in Transfer::ALL {
        // The journal of a transfer of other data between other names.
        let foreign = Scene::new(transfer).interrupt(OLDER);
        let scene = Scene::new(transfer);
        let older = scene.interrupt(OLDER);
        let places = flipped(&older).len();
        for damage in Damage::ALL {
            let case = format!("{damage:?}");
            match damage {
                Damage::Missing | Damage::Empty if transfer.is_sync() => {}
                Damage::Missing => scene.check(&case, |path| fs::remove_file(path).unwrap()),
                Damage::Empty => scene.check(&case, |path| fs::write(path, "").unwrap()),
                Damage::Older => scene.check(&case, |path| fs::write(path, &older).unwrap()),
                Damage::Foreign => scene.check(&case, |path| fs::write(path, &foreign).unwrap()),
                Damage::Flipped => {
                    // A sync uses the journal as `cp` does.
                    let places = if transfer.is_sync() { 1 } else { places };
                    for place in 0..places {
                        scene.check(&format!("{case} {place}"), |path| {
                            let bytes = fs::read(path).unwrap();
                            fs::write(path, &flipped(&bytes)[place]).unwrap();
                        });
                    }
                }
            }
        }
    }
}

/// A profile holds measurements only. What cannot be read of it is reported and ignored.
#[test]
fn profile_with_any_fault_is_reported_and_never_prevents_a_transfer() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let profile = |store: &str, concurrency: u32| {
        format!(
            "store = \"{store}\"\nmeasured_at = \"2026-01-02T03:04:05Z\"\nclient = \"here\"\ncpus = 2\nrtt_ms = 5.0\n\
             [[upload]]\nsize = \"16KiB\"\nconcurrency = {concurrency}\nlatency_ms = 52.0\nerror_percent = 2.0\n"
        )
    };
    let own = profile(&format!("S3Store({})", caller.endpoint()), 8);
    let imported = caller.spawn(&["profiles", "import", "-"]).with_stdin(own.as_bytes()).wait_for_output();
    assert!(imported.status.success(), "{imported:?}");
    let directory = caller.path("home/.local/share/tradewind/profiles");
    let path = fs::read_dir(directory).unwrap().next().unwrap().unwrap().path();
    let intact = fs::read(&path).unwrap();
    let mut contents = vec![Vec::new(), profile("S3Store(elsewhere:1)", 9).into_bytes()];
    contents.extend(flipped(&intact));
    contents.push(profile(&format!("S3Store({})", caller.endpoint()), 4).into_bytes());
    for (number, bytes) in contents.into_iter().enumerate() {
        fs::write(&path, &bytes).unwrap();
        let body = content(number as u64, 40_000);
        caller.write("file", &body);
        let ran = caller.run(&["cp", "file", "s3://bucket/file"]);
        assert!(ran.status.success(), "{}: {ran:?}", String::from_utf8_lossy(&bytes));
        let read = caller.run(&["cat", "s3://bucket/file"]);
        assert!(
            read.status.success() && read.out == body,
            "{}: {}",
            String::from_utf8_lossy(&bytes),
            read.err
        );
    }
}
