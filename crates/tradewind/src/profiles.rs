//! Profiles: what `tradewind tune` found out about stores, one file each, which a person can read, edit, copy and remove. Whatever
//! follows from them is worked out when they are read.

mod carried;
pub mod here;
pub mod seen;
pub mod served;
mod text;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tradewind_core::printable;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::carry::Client;
use tradewind_model::tune::{Belief, Sample, Surface};

pub use carried::Known;

/// What is known of one store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// Which store, as it calls itself.
    pub store: String,
    /// When it was made, RFC 3339.
    pub made: String,
    /// The machine that it was made on.
    pub client: String,
    /// Processors of that machine.
    pub cores: usize,
    /// Its memory, in bytes.
    pub memory: Option<u64>,
    /// Bytes a second that its storage took, where objects were files there.
    pub storage: Option<f64>,
    /// Bytes a second of its link towards the store, as the system has it: what lies behind may be narrower.
    pub link: Option<f64>,
    /// A round trip, in seconds.
    pub round_trip: Option<f64>,
    /// Samples of uploads: those of probes, then those that transfers saw, the newest last.
    pub upload: Vec<Sample>,
    /// The same of downloads.
    pub download: Vec<Sample>,
}

impl Profile {
    /// What is believed before any sample.
    #[must_use]
    pub fn belief(&self) -> Belief {
        self.round_trip.map_or_else(Belief::default, |seconds| Belief::default().with_round_trip(seconds))
    }

    /// What was measured of a direction.
    #[must_use]
    pub fn samples(&self, direction: Direction) -> &[Sample] {
        match direction {
            Direction::Write => &self.upload,
            Direction::Read => &self.download,
        }
    }

    /// The client that it was made on, and its way to the store.
    #[must_use]
    pub fn made_on(&self) -> Client {
        Client {
            processors: Some(self.cores as f64).filter(|cores| *cores > 0.0),
            storage: self.storage,
            round_trip: self.round_trip,
            link: self.link,
        }
    }

    /// What follows from a direction's samples, if there are any.
    #[must_use]
    pub fn surface(&self, direction: Direction) -> Option<Surface> {
        let samples = self.samples(direction);
        (!samples.is_empty()).then(|| Surface::corrected(self.belief(), samples))
    }

    /// What follows from it, of uploads and of downloads, as far as it has samples of them.
    #[must_use]
    pub fn surfaces(&self) -> Vec<Surface> {
        [Direction::Write, Direction::Read]
            .into_iter()
            .filter_map(|direction| self.surface(direction))
            .collect()
    }
}

/// The host in what a store calls itself, without scheme and port.
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

/// A profile and the file that it is kept in.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub profile: Profile,
    /// What it says that means nothing, by line.
    pub wrong: Vec<String>,
}

impl Kept {
    /// Tells on standard error what is wrong with it.
    pub fn warn(&self) {
        self.wrong.iter().for_each(|why| warn(&self.path, why));
    }
}

/// All profiles of this user.
#[derive(Debug, Clone)]
pub struct Profiles {
    directory: PathBuf,
}

impl Profiles {
    /// Where data of users belong on this system; `None` where that cannot be said.
    #[must_use]
    pub fn find() -> Option<Self> {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
        Some(Self { directory: data.join("tradewind/profiles") })
    }

    /// Whether there is one at all.
    #[must_use]
    pub fn has_any(&self) -> bool {
        fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The file of a store.
    #[must_use]
    pub fn path(&self, store: &str) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
        let name: String = store.chars().map(safe).collect();
        self.directory.join(format!("{}.toml", name.trim_matches('_')))
    }

    /// Keeps one: whole, or as it was before.
    pub fn keep(&self, profile: &Profile) -> io::Result<PathBuf> {
        let path = self.path(&profile.store);
        fs::create_dir_all(&self.directory)?;
        let _alone = self.alone()?;
        self.replace(profile).map(|()| path)
    }

    /// Nobody else changes any until this is dropped. Where the file system has no locks, whoever comes last counts.
    fn alone(&self) -> io::Result<fs::File> {
        let directory = fs::File::open(&self.directory)?;
        let _ = directory.lock();
        Ok(directory)
    }

    fn replace(&self, profile: &Profile) -> io::Result<()> {
        let path = self.path(&profile.store);
        let (draft, mut file) = tempfile_beside(&path)?;
        let kept = (file.write_all(profile.to_text().as_bytes()))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&draft, &path));
        if kept.is_err() {
            let _ = fs::remove_file(&draft);
        }
        kept
    }

    /// All of them, by the names of their files. What is no profile is left out where it names no store.
    #[must_use]
    pub fn all(&self) -> Vec<Kept> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        paths.into_iter().filter_map(read).collect()
    }

    /// What was found of a store. What cannot be read is told on standard error and left out.
    #[must_use]
    pub fn of(&self, store: &str) -> Option<Profile> {
        let kept = read(self.path(store))?;
        kept.warn();
        // Two names may make one file.
        (kept.profile.store == store).then_some(kept.profile)
    }

    /// Forgets one.
    pub fn forget(kept: &Kept) -> io::Result<()> {
        fs::remove_file(&kept.path)
    }
}

/// What a file holds; `None` where there is none.
fn read(path: PathBuf) -> Option<Kept> {
    let (profile, wrong) = match fs::read_to_string(&path) {
        Ok(text) => Profile::of_text(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => (Profile::default(), vec![format!("it cannot be read: {e}")]),
    };
    Some(Kept { path, profile, wrong })
}

fn tempfile_beside(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    // Processes of two machines may have one number and one home.
    let chance = getrandom::u32().map_err(|e| io::Error::other(e.to_string()))?;
    let beside = path.with_extension(format!("toml.{}-{chance:08x}", std::process::id()));
    let file = fs::File::create_new(&beside)?;
    Ok((beside, file))
}

fn warn(path: &Path, why: &str) {
    // Where nobody reads it, nothing else is lost.
    let line = format!("tradewind: {}: {why}; it is left out", path.display());
    let _ = writeln!(io::stderr(), "{}", printable(&line));
}

#[cfg(test)]
mod tests {
    use tradewind_model::tune::Cell;

    use super::*;

    pub(super) fn profile() -> Profile {
        let sample = |bytes, parallel, latency| Sample {
            cell: Cell { bytes, parallel },
            latency,
            error: 0.04,
            tail: None,
            is_seen: false,
        };
        let tail = Some([0.08, 0.095]);
        Profile {
            store: "S3Store(http://here:9000)".to_owned(),
            made: "2026-11-23T12:00:00Z".to_owned(),
            client: "a \"machine\"".to_owned(),
            cores: 2,
            memory: Some(7680 << 20),
            storage: Some(210e6),
            link: Some(125e6),
            round_trip: Some(0.05),
            upload: vec![Sample { tail, ..sample(1 << 10, 64, 0.051) }, sample(8 << 20, 4, 2.7)],
            download: vec![sample(64 << 10, 32, 0.17), Sample { is_seen: true, ..sample(64 << 10, 80, 0.3) }],
        }
    }

    #[test]
    fn a_plan_follows() {
        use tradewind_model::plan::Plan;
        let plan = Plan::default().tuned(&profile().surfaces());
        assert!(plan.parallel(4096) > 32 && plan.parallel(8 << 20) < 32, "{plan:?}");
        assert_eq!(Plan::default().tuned(&Profile::default().surfaces()), Plan::default());
    }

    #[test]
    fn files_are_kept_by_store() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().join("some/where") };
        assert_eq!(profiles.of("S3Store(http://here:9000)"), None);
        let path = profiles.keep(&profile()).unwrap();
        assert_eq!(profiles.of("S3Store(http://here:9000)"), Some(profile()));
        assert_eq!(path.file_name().unwrap(), "S3Store_http___here_9000.toml");
        // Another store whose name makes the same file is another store.
        assert_eq!(profiles.of("S3Store_http___here:9000_"), None);
    }

    #[test]
    fn hosts_are_found_in_names() {
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
