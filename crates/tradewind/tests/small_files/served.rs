//! The directories of a server: local stores, caches, journals of write-back, and chunks.

use std::fs;
use std::path::{Path, PathBuf};

use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore as _, Precondition, SystemClock};

use super::support::content::content;
use super::support::eventually;
use super::support::s3::S3;
use super::support::server::{Server, ServerSetup, root_key};
use super::{Damage, Reaction, copy_tree, flipped};
use Reaction::{Refuses, Starts, StartsOrRefuses};

/// A local store with small segments and a small reserve.
const STORE: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\nsegment_size = \"1MiB\"\n\
    checkpoint_size = \"1MiB\"\nmin_free_space = \"1MiB\"\n";
const PLAIN: &str = "[volume.v]\nstack = [\"disk\"]\n";
const WRITE_BACK: &str = "[volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", \
    write = \"back\" } }, \"disk\"]\n";
const DEDUPLICATED: &str =
    "[volume.v]\nstack = [{ deduplicated = { classes = true, min_size = \"16KiB\" } }, \"disk\"]\n";

/// Keys and sizes of objects.
const OBJECTS: [(&str, usize); 3] = [("bkt/tiny", 300), ("bkt/small", 6_000), ("bkt/large", 300_000)];

/// A directory with the settings, the stores and the data of a server, in several generations.
struct Generations {
    root: tempfile::TempDir,
    settings: String,
}

/// The generation that the tested file is restored from.
const OLDER: &str = "older";
/// The last generation, which must be served.
const NEWEST: &str = "newest";
/// A directory of the same kind with other objects.
const FOREIGN: &str = "foreign";
/// The versions of the objects in these generations.
const VERSION_OLDER: u64 = 1;
const VERSION_NEWEST: u64 = 2;
const VERSION_FOREIGN: u64 = 3;

impl Generations {
    /// Runs servers with a volume. The last one of the newest generation is killed.
    fn new(volume: &str) -> Self {
        let this = Self { root: tempfile::tempdir().unwrap(), settings: format!("{STORE}{volume}") };
        let first = this.path("first");
        let mut server = this.start(&first).unwrap();
        let mut s3 = client(&server);
        assert_eq!(s3.put("bkt", &[]).unwrap().status, 200);
        this.wait_until_deduplicating(&server);
        write(&mut s3, VERSION_OLDER);
        read(&mut s3, VERSION_OLDER, "older");
        assert!(server.terminate().unwrap().success());
        copy_tree(&first, &this.path(OLDER));
        let mut server = this.start(&first).unwrap();
        let mut s3 = client(&server);
        read(&mut s3, VERSION_OLDER, "older");
        write(&mut s3, VERSION_NEWEST);
        read(&mut s3, VERSION_NEWEST, "newest");
        server.kill();
        copy_tree(&first, &this.path(NEWEST));
        let foreign = this.path(FOREIGN);
        let mut server = this.start(&foreign).unwrap();
        let mut s3 = client(&server);
        assert_eq!(s3.put("bkt", &[]).unwrap().status, 200);
        this.wait_until_deduplicating(&server);
        write(&mut s3, VERSION_FOREIGN);
        read(&mut s3, VERSION_FOREIGN, "foreign");
        assert!(server.terminate().unwrap().success());
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Starts a server whose directory is `directory`.
    fn start(&self, directory: &Path) -> std::io::Result<Server> {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("settings.toml"), &self.settings).unwrap();
        let _ = fs::remove_file(directory.join("log"));
        ServerSetup::new(&directory.join("data"), &directory.join("log"))
            .flag("--config", directory.join("settings.toml"))
            .start()
    }

    /// A new layer stores plain objects until all objects were examined.
    fn wait_until_deduplicating(&self, server: &Server) {
        if self.settings.contains("deduplicated") {
            eventually("the layer is ready", || server.logged().contains("all objects are examined"));
        }
    }

    /// Starts a server on a copy of the newest generation that `damage` has changed. What it serves must be newest.
    fn run(&self, case: &str, expected: Reaction, damage: impl FnOnce(&Path)) {
        let directory = self.path("case");
        copy_tree(&self.path(NEWEST), &directory);
        damage(&directory);
        let refusal = match (self.start(&directory), expected) {
            (Ok(server), Starts | StartsOrRefuses(_)) => {
                return read(&mut client(&server), VERSION_NEWEST, case);
            }
            // A store may be opened after the server is reachable.
            (Ok(mut server), Refuses(_)) => {
                let ended = server.wait();
                assert!(ended.is_ok_and(|status| !status.success()), "{case}: it started");
                server.logged()
            }
            (Err(refusal), _) => refusal.to_string(),
        };
        let refusal = refusal.replace('\\', "");
        match expected {
            Starts => panic!("{case}: {refusal}"),
            Refuses(words) | StartsOrRefuses(words) => assert!(refusal.contains(words), "{case}: {refusal}"),
        }
    }
}

fn client(server: &Server) -> S3 {
    S3::new(server.endpoint, root_key())
}

fn write(s3: &mut S3, version: u64) {
    for (key, size) in OBJECTS {
        assert_eq!(s3.put(key, &content(version, size)).unwrap().status, 200, "{key}");
    }
}

/// Reads all objects twice: from the store, and from a cache if there is one.
fn read(s3: &mut S3, version: u64, case: &str) {
    for (key, size) in OBJECTS.repeat(2) {
        let response = s3.get(key).unwrap();
        assert_eq!(response.status, 200, "{case}: {key}: {}", response.text());
        assert!(response.body == content(version, size), "{case}: {key} is not of version {version}");
    }
}

/// A file, or a directory of files, and the reaction to each fault, in the order of [`Damage::ALL`].
struct Entry {
    path: &'static str,
    reactions: [Reaction; 5],
}

impl Entry {
    fn run(&self, generations: &Generations) {
        for (damage, reaction) in Damage::ALL.into_iter().zip(self.reactions) {
            let case = format!("{} {damage:?}", self.path);
            let replace_from = |generation: &str, directory: &Path| {
                replace(&generations.path(generation).join(self.path), &directory.join(self.path));
            };
            match damage {
                Damage::Flipped => {
                    let newest = generations.path(NEWEST).join(self.path);
                    let bytes = if newest.is_file() { fs::read(newest).unwrap() } else { Vec::new() };
                    for (place, bytes) in flipped(&bytes).into_iter().enumerate() {
                        generations.run(&format!("{case} {place}"), reaction, |directory| {
                            fs::write(directory.join(self.path), &bytes).unwrap();
                        });
                    }
                }
                Damage::Missing => {
                    generations.run(&case, reaction, |directory| remove(&directory.join(self.path)));
                }
                Damage::Empty => {
                    generations.run(&case, reaction, |directory| {
                        let path = directory.join(self.path);
                        let is_directory = path.is_dir();
                        remove(&path);
                        if is_directory { fs::create_dir(path) } else { fs::write(path, "") }.unwrap();
                    });
                }
                Damage::Older => {
                    generations.run(&case, reaction, |directory| replace_from(OLDER, directory));
                }
                Damage::Foreign => {
                    generations.run(&case, reaction, |directory| replace_from(FOREIGN, directory));
                }
            }
        }
    }
}

fn remove(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Replaces a file or a directory; by nothing if the other one does not exist.
fn replace(from: &Path, to: &Path) {
    remove(to);
    if from.is_dir() {
        copy_tree(from, to);
    } else if from.exists() {
        fs::copy(from, to).unwrap();
    }
}

/// The format file of a local store. A fault of its title does no harm.
fn format_entry(path: &'static str) -> Entry {
    let foreign = "belongs to another store";
    let reactions = [
        Refuses("restore FORMAT"),
        Refuses("restore it"),
        StartsOrRefuses("FORMAT"),
        Starts,
        Refuses(foreign),
    ];
    Entry { path, reactions }
}

#[test]
fn files_of_a_local_store_never_bring_old_data_back() {
    let generations = Generations::new(PLAIN);
    for entry in [
        format_entry("disk/FORMAT"),
        Entry { path: "disk/LOCK", reactions: [Starts; 5] },
        Entry { path: "disk/RESERVE", reactions: [Starts; 5] },
        Entry { path: "disk/index.doubts", reactions: [Starts; 5] },
        Entry { path: "disk/index", reactions: [Starts; 5] },
    ] {
        entry.run(&generations);
    }
}

/// The files of the index are those of a library: whatever it does with damage, the log decides.
#[test]
fn damaged_files_of_an_index_never_bring_old_data_back() {
    let generations = Generations::new(PLAIN);
    for path in files_below(&generations.path(NEWEST).join("disk/index")) {
        let bytes = fs::read(&path).unwrap();
        let relative = path.strip_prefix(generations.path(NEWEST)).unwrap().to_owned();
        let case = relative.display().to_string();
        let overwrite = |bytes: Vec<u8>| {
            generations.run(&case, Starts, |directory| fs::write(directory.join(&relative), bytes).unwrap());
        };
        overwrite(Vec::new());
        flipped(&bytes).into_iter().take(2).for_each(overwrite);
        generations.run(&case, Starts, |directory| remove(&directory.join(&relative)));
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn files_of_a_cache_never_bring_old_data_back() {
    let generations = Generations::new(WRITE_BACK);
    for (generation, pin) in [(OLDER, "bkt large\n"), (NEWEST, "bkt small\n"), (FOREIGN, "bkt \n")] {
        fs::write(generations.path(generation).join("ssd/pins"), pin).unwrap();
    }
    for path in ["ssd/session", "ssd/index", "ssd/volume", "ssd/pins", "ssd/lock"] {
        Entry { path, reactions: [Starts; 5] }.run(&generations);
    }
}

#[test]
fn files_of_a_write_back_journal_never_bring_old_data_back() {
    let generations = Generations::new(WRITE_BACK);
    for entry in [
        format_entry("ssd-journal/FORMAT"),
        Entry { path: "ssd-journal/index", reactions: [Starts; 5] },
        Entry { path: "ssd-journal/index.doubts", reactions: [Starts; 5] },
    ] {
        entry.run(&generations);
    }
}

/// The bucket of chunks.
const CHUNKS: &str = "tradewind-deduplicated-chunks";

#[test]
fn records_of_deduplicated_chunks_never_bring_old_data_back() {
    let generations = Generations::new(DEDUPLICATED);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let newest = runtime.block_on(read_record(&generations.path("newest"), "format")).unwrap();
    let later = String::from_utf8(newest.clone()).unwrap().replace(" 1\n", " 2\n").into_bytes();
    let mut contents = vec![None, Some(Vec::new()), Some(newest.clone())];
    contents.extend(flipped(&newest).into_iter().map(Some));
    for bytes in contents {
        let case = format!("format with {bytes:?}");
        generations.run(&case, Starts, |directory| {
            runtime.block_on(write_record(directory, "format", bytes));
        });
    }
    generations.run("format of a later version", Refuses("later version"), |directory| {
        runtime.block_on(write_record(directory, "format", Some(later)));
    });
    let chunk = "00".repeat(32);
    for (key, bytes) in [
        ("last-collection".to_owned(), None),
        ("last-collection".to_owned(), Some(Vec::new())),
        ("last-collection".to_owned(), Some(b"9999999999999999".to_vec())),
        (format!("doubt-{chunk}"), Some(Vec::new())),
        ("doubt-x".to_owned(), Some(Vec::new())),
    ] {
        generations.run(&format!("{key} with {bytes:?}"), Starts, |directory| {
            runtime.block_on(write_record(directory, &key, bytes));
        });
    }
}

/// Opens the store of a stopped server.
fn open_store(directory: &Path) -> std::sync::Arc<LocalStore> {
    LocalStore::open(&directory.join("disk"), LocalOptions::default(), SystemClock::shared()).unwrap()
}

async fn read_record(directory: &Path, key: &str) -> Option<Vec<u8>> {
    let store = open_store(directory);
    let address = Address::parse(CHUNKS, key).unwrap();
    let found = store.get(&context(), &address, GetRequest::default()).await.ok()?;
    let bytes = found.body.collect().await.unwrap().to_vec();
    store.close().await.unwrap();
    Some(bytes)
}

/// Replaces or deletes a record of the bucket of chunks.
async fn write_record(directory: &Path, key: &str, bytes: Option<Vec<u8>>) {
    let store = open_store(directory);
    let address = Address::parse(CHUNKS, key).unwrap();
    match bytes {
        None => drop(store.delete(&context(), &address, Precondition::None).await),
        Some(bytes) => {
            let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
            staged.write(bytes.into()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
    }
    store.close().await.unwrap();
}
