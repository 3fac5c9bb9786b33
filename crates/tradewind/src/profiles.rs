//! Profiles: the measurements of stores by `tradewind tune`, one TOML file per store, which users may read, edit, copy
//! and remove. Plans and models are computed when a profile is read, and are not stored.

mod extrapolated;
pub mod observed;
pub mod profile_updater;
mod text;
pub mod this_machine;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tradewind_core::printable;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::extrapolate::ClientEnvironment;
use tradewind_model::tune::{Prior, Sample, Surface};

pub use extrapolated::ApplicableProfile;

/// The measurements of one store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// The debug name of the store, which identifies it permanently.
    pub store: String,
    /// Time of the measurement, RFC 3339.
    pub measured_at: String,
    /// Description of the client machine.
    pub client_name: String,
    /// CPUs of the client; 0 if unknown.
    pub cpus: usize,
    /// Memory of the client, in bytes.
    pub memory_bytes: Option<u64>,
    /// Write throughput of the client's storage in bytes per second, if objects were written to files.
    pub storage_bytes_per_second: Option<f64>,
    /// Nominal speed of the client's network interface in bytes per second; the path beyond may be slower.
    pub interface_bytes_per_second: Option<f64>,
    /// RTT to the store, in seconds.
    pub rtt_seconds: Option<f64>,
    /// Samples of uploads: those of probes, then those observed by transfers, oldest first.
    pub upload: Vec<Sample>,
    /// Samples of downloads, in the same order.
    pub download: Vec<Sample>,
}

impl Profile {
    /// The prior of a surface computed from this profile: the default with the measured RTT. `tune` may have started
    /// from an extrapolated prior, which is not saved.
    #[must_use]
    pub fn prior(&self) -> Prior {
        self.rtt_seconds.map_or_else(Prior::default, |seconds| Prior::default().with_rtt(seconds))
    }

    /// The samples of a direction.
    #[must_use]
    pub fn samples(&self, direction: Direction) -> &[Sample] {
        match direction {
            Direction::Write => &self.upload,
            Direction::Read => &self.download,
        }
    }

    /// The client and the network path on which it was measured.
    #[must_use]
    pub fn measured_on(&self) -> ClientEnvironment {
        ClientEnvironment {
            cpus: Some(self.cpus as f64).filter(|cpus| *cpus > 0.0),
            storage_bandwidth: self.storage_bytes_per_second,
            rtt: self.rtt_seconds,
            interface_bandwidth: self.interface_bytes_per_second,
        }
    }

    /// The surface fitted to a direction's samples; `None` without samples.
    #[must_use]
    pub fn surface(&self, direction: Direction) -> Option<Surface> {
        let samples = self.samples(direction);
        (!samples.is_empty()).then(|| Surface::from_probes_and_transfers(self.prior(), samples))
    }

    /// The surfaces of uploads and downloads, as far as there are samples.
    #[must_use]
    pub fn surfaces(&self) -> Vec<Surface> {
        [Direction::Write, Direction::Read]
            .into_iter()
            .filter_map(|direction| self.surface(direction))
            .collect()
    }
}

/// The host in the debug name of a store, without scheme and port.
#[must_use]
pub fn host(store: &str) -> &str {
    let inner = store.split_once('(').map_or(store, |(_, inner)| inner.trim_end_matches(')'));
    let address = inner.split_once("://").map_or(inner, |(_, address)| address);
    let address = address.split(['/', ' ', ',']).next().unwrap_or_default();
    if let Some((v6, _)) = address.strip_prefix('[').and_then(|address| address.split_once(']')) {
        return v6;
    }
    address.split_once(':').map_or(address, |(host, _)| host)
}

/// A profile and its file.
#[derive(Debug, Clone)]
pub struct SavedProfile {
    /// The path of the file.
    pub path: PathBuf,
    /// The profile.
    pub profile: Profile,
    /// Messages about the parts of the file that were ignored, with line numbers.
    pub problems: Vec<String>,
}

impl SavedProfile {
    /// Prints the messages to stderr.
    pub fn print_warnings(&self) {
        self.problems.iter().for_each(|problem| print_warning(&self.path, problem));
    }
}

/// All profiles of this user.
#[derive(Debug, Clone)]
pub struct Profiles {
    directory: PathBuf,
}

impl Profiles {
    /// Finds the user's data directory; `None` if neither `XDG_DATA_HOME` nor `HOME` is an absolute path.
    #[must_use]
    pub fn find() -> Option<Self> {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
        Some(Self { directory: data.join("tradewind/profiles") })
    }

    /// Returns true if there is any profile.
    #[must_use]
    pub fn has_any(&self) -> bool {
        fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The path of a store's profile.
    #[must_use]
    pub fn path(&self, store: &str) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
        let name: String = store.chars().map(safe).collect();
        self.directory.join(format!("{}.toml", name.trim_matches('_')))
    }

    /// Saves a profile atomically. Returns its path.
    pub fn save(&self, profile: &Profile) -> io::Result<PathBuf> {
        let path = self.path(&profile.store);
        fs::create_dir_all(&self.directory)?;
        let _lock = self.lock()?;
        self.write(profile).map(|()| path)
    }

    /// Locks the directory against other writers until the result is dropped. On a file system without locks, the last
    /// writer wins.
    fn lock(&self) -> io::Result<fs::File> {
        let directory = fs::File::open(&self.directory)?;
        let _ = directory.lock();
        Ok(directory)
    }

    fn write(&self, profile: &Profile) -> io::Result<()> {
        let path = self.path(&profile.store);
        let (temporary, mut file) = create_temporary(&path)?;
        let saved = (file.write_all(profile.to_text().as_bytes()))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &path));
        if saved.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        saved
    }

    /// All profiles, sorted by file name.
    #[must_use]
    pub fn all(&self) -> Vec<SavedProfile> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        paths.into_iter().filter_map(read_profile).collect()
    }

    /// The profile of a store, if any. Parts that cannot be parsed are reported on stderr and ignored.
    #[must_use]
    pub fn load(&self, store: &str) -> Option<Profile> {
        let saved = read_profile(self.path(store))?;
        saved.print_warnings();
        // Two names may map to the same file name.
        (saved.profile.store == store).then_some(saved.profile)
    }

    /// Deletes a profile.
    pub fn delete(saved: &SavedProfile) -> io::Result<()> {
        fs::remove_file(&saved.path)
    }
}

/// Reads a profile; `None` if the file does not exist.
fn read_profile(path: PathBuf) -> Option<SavedProfile> {
    let (profile, problems) = match fs::read_to_string(&path) {
        Ok(text) => Profile::from_text(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => (Profile::default(), vec![format!("it cannot be read: {e}")]),
    };
    Some(SavedProfile { path, profile, problems })
}

/// Creates a temporary file next to `path`, which a rename moves there.
fn create_temporary(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    // A random suffix, because processes on two machines may have the same id and share a home directory.
    let random = getrandom::u32().map_err(|e| io::Error::other(e.to_string()))?;
    let temporary = path.with_extension(format!("toml.{}-{random:08x}", std::process::id()));
    let file = fs::File::create_new(&temporary)?;
    Ok((temporary, file))
}

fn print_warning(path: &Path, problem: &str) {
    // A failure to print the warning is ignored.
    let line = format!("tradewind: {}: {problem}; it is ignored", path.display());
    let _ = writeln!(io::stderr(), "{}", printable(&line));
}

#[cfg(test)]
mod tests {
    use tradewind_model::tune::{OperatingPoint, TailLatency};

    use super::*;

    pub(super) fn profile() -> Profile {
        let sample = |bytes, concurrency, latency| Sample {
            point: OperatingPoint { bytes, concurrency },
            latency,
            relative_error: 0.04,
            tail: None,
            from_transfer: false,
        };
        let tail = Some(TailLatency { p95: 0.08, p99: 0.095 });
        Profile {
            store: "S3Store(http://here:9000)".to_owned(),
            measured_at: "2026-11-23T12:00:00Z".to_owned(),
            client_name: "a \"machine\"".to_owned(),
            cpus: 2,
            memory_bytes: Some(7680 << 20),
            storage_bytes_per_second: Some(210e6),
            interface_bytes_per_second: Some(125e6),
            rtt_seconds: Some(0.05),
            upload: vec![Sample { tail, ..sample(1 << 10, 64, 0.051) }, sample(8 << 20, 4, 2.7)],
            download: vec![
                sample(64 << 10, 32, 0.17),
                Sample { from_transfer: true, ..sample(64 << 10, 80, 0.3) },
            ],
        }
    }

    #[test]
    fn plan_follows_from_the_surfaces() {
        use tradewind_model::plan::Plan;
        let plan = Plan::default().tuned(&profile().surfaces());
        assert!(plan.concurrency_for(4096) > 32 && plan.concurrency_for(8 << 20) < 32, "{plan:?}");
        assert_eq!(Plan::default().tuned(&Profile::default().surfaces()), Plan::default());
    }

    #[test]
    fn save_writes_one_file_per_store() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().join("some/where") };
        assert_eq!(profiles.load("S3Store(http://here:9000)"), None);
        let path = profiles.save(&profile()).unwrap();
        assert_eq!(profiles.load("S3Store(http://here:9000)"), Some(profile()));
        assert_eq!(path.file_name().unwrap(), "S3Store_http___here_9000.toml");
        // A store with the same file name but another name is not found.
        assert_eq!(profiles.load("S3Store_http___here:9000_"), None);
    }

    #[test]
    fn host_is_parsed_from_debug_names() {
        for (store, named) in [
            ("S3Store(10.77.0.1:9000)", "10.77.0.1"),
            ("S3Store(s3.eu-west-1.example.com)", "s3.eu-west-1.example.com"),
            ("S3Store([fd00::1]:9000)", "fd00::1"),
            (
                "SwiftStore(https://swift.example.com/v1/AUTH_a as user at https://keys.example.com)",
                "swift.example.com",
            ),
            ("SwiftStore(user at http://here:8080/auth)", "here"),
            ("anything", "anything"),
        ] {
            assert_eq!(host(store), named);
        }
    }
}
