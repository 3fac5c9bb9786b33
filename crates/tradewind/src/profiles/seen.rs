//! What transfers see of a store that was tuned: it goes into its profile, so that the next begins with the store as it is.

use std::time::Duration;

use tradewind_model::store_model::{Direction, Operation, SizeClass, StoreModel, Total};
use tradewind_model::tune::{Cell, Sample, seen};

use super::{Profile, Profiles, here, host, read};

/// Until then connections are new and windows open.
pub const WARM: Duration = Duration::from_secs(4);
/// Less time behind that, and fewer rounds of requests, say too little.
const LEAST: Duration = Duration::from_secs(6);
const LEAST_ROUNDS: f64 = 10.0;
/// Requests of one kind and one class of sizes have so much of the time of all, or it is a mixture that says nothing of either.
const NEARLY_ALL: f64 = 0.9;
/// How unsure it is: others may have had the line, and files were opened between.
const ERROR: f64 = 0.1;
/// Fewer say nothing of the slowest.
const FEWEST_FOR_TAIL: u64 = 100;

/// How many requests a store has done, and how long they took, at one moment.
#[derive(Debug, Clone)]
pub struct Tally {
    at: Duration,
    of: Vec<(Operation, SizeClass, Total)>,
    /// Requests that failed, by kind.
    failed: Vec<u64>,
}

impl Tally {
    /// As it is now.
    #[must_use]
    pub fn of(model: &StoreModel, now: Duration) -> Self {
        let carrying = Operation::ALL.into_iter().filter(|operation| operation.direction().is_some());
        let of = carrying.flat_map(|operation| {
            let times = model.times(now, operation);
            times.classes().iter().map(|alike| (operation, alike.sizes, alike.done)).collect::<Vec<_>>()
        });
        let failed = Operation::ALL.into_iter().map(|operation| model.all_outcomes(operation).failures());
        Self { at: now, of: of.collect(), failed: failed.collect() }
    }

    /// When that was.
    #[must_use]
    pub const fn at(&self) -> Duration {
        self.at
    }

    /// How many requests of a kind had failed.
    fn failed(&self, operation: Operation) -> u64 {
        let place = Operation::ALL.into_iter().position(|kind| kind == operation);
        place.and_then(|place| self.failed.get(place).copied()).unwrap_or_default()
    }

    fn before(&self, operation: Operation, sizes: SizeClass) -> Total {
        let found = self.of.iter().find(|known| (known.0, known.1) == (operation, sizes));
        found.map(|known| known.2).unwrap_or_default()
    }
}

/// What was done since a tally: a sample, where nearly all of it was of one kind and of sizes that are alike, and nothing failed. So
/// many were under way in the mean as the times of all make together, by the time that it took (Little 1961).
#[must_use]
pub fn since(tally: &Tally, model: &StoreModel, now: Duration) -> Option<(Direction, Sample)> {
    let took = now.checked_sub(tally.at).filter(|took| *took >= LEAST)?.as_secs_f64();
    let (mut all, mut most) = (0.0, None::<(f64, Operation, SizeClass, u64)>);
    for (operation, sizes, total) in Tally::of(model, now).of {
        let before = tally.before(operation, sizes);
        let time = total.time.saturating_sub(before.time).as_secs_f64();
        all += time;
        if most.is_none_or(|most| time > most.0) {
            most = Some((time, operation, sizes, total.count.saturating_sub(before.count)));
        }
    }
    let (time, operation, sizes, count) = most?;
    // What failed before, in a server that has run for days, says nothing of now.
    if model.all_outcomes(operation).failures() > tally.failed(operation) || time < all * NEARLY_ALL {
        return None;
    }
    let parallel = (time / took).round().max(1.0);
    if (count as f64) < LEAST_ROUNDS * parallel {
        return None;
    }
    let times = model.times(now, operation);
    let alike = times.classes().iter().find(|alike| alike.sizes == sizes)?;
    let tail = [0.95, 0.99].map(|share| alike.service.quantile(share).map(|time| time.as_secs_f64()));
    let sample = Sample {
        cell: Cell { bytes: alike.mean_bytes.max(1), parallel: parallel as usize },
        latency: time / count as f64,
        error: ERROR,
        tail: tail[0].zip(tail[1]).filter(|_| count >= FEWEST_FOR_TAIL).map(|(most, all)| [most, all]),
        is_seen: true,
    };
    Some((operation.direction()?, sample))
}

impl Profiles {
    /// Corrects what is known of a store by what was done since a tally. A store that was never tuned on a client like this stays
    /// unknown: one sample would say too little of all other sizes. A file that says something wrong is left as it is. Whether there
    /// was anything to correct.
    pub fn learn(
        &self,
        store: &str,
        (tally, model): (&Tally, &StoreModel),
        now: Duration,
    ) -> std::io::Result<bool> {
        let Some((direction, sample)) = since(tally, model, now) else { return Ok(false) };
        let here = here::client(host(store), here::cores());
        if !self.has_any() {
            return Ok(false);
        }
        let _alone = self.alone()?;
        // What somebody has written wrongly would be lost with the lines that were left out.
        let known = read(self.path(store)).filter(|kept| kept.wrong.is_empty()).map(|kept| kept.profile);
        let is_ours = |profile: &Profile| profile.store == store && profile.is_made_on(&here);
        let Some(mut profile) = known.filter(is_ours) else { return Ok(false) };
        let samples = match direction {
            Direction::Write => &mut profile.upload,
            Direction::Read => &mut profile.download,
        };
        if samples.is_empty() {
            return Ok(false);
        }
        seen::add(samples, sample);
        self.replace(&profile).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::store_model::End;

    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    /// Requests one behind the other, so many beside each other, until a moment.
    fn done(model: &StoreModel, operation: Operation, (bytes, parallel): (u64, u64), (from, to): (u64, u64)) {
        for n in from * 20..to * 20 {
            for _ in 0..parallel {
                let request = model.begin(operation);
                let end = End::Done { bytes, service: STEP };
                model.end(STEP * u32::try_from(n).unwrap(), request, end);
            }
        }
    }

    const AT: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(14)];

    #[test]
    fn what_was_done_is_a_sample() {
        let model = StoreModel::new();
        done(&model, Operation::Get, (64 << 10, 1), (0, 4));
        let tally = Tally::of(&model, AT[0]);
        done(&model, Operation::Get, (64 << 10, 12), (4, 14));
        let (direction, sample) = since(&tally, &model, AT[1]).unwrap();
        assert_eq!((direction, sample.cell), (Direction::Read, Cell { bytes: 64 << 10, parallel: 12 }));
        assert!((sample.latency - 0.05).abs() < 1e-6 && sample.tail.is_some(), "{sample:?}");
        assert!(since(&tally, &model, Duration::from_secs(5)).is_none(), "that was too short");
    }

    #[test]
    fn a_profile_is_corrected_and_one_that_is_wrong_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().to_owned() };
        let (cell, tail) = (Cell { bytes: 64 << 10, parallel: 4 }, None);
        let sample = Sample { cell, latency: 0.01, error: 0.02, tail, is_seen: false };
        let profile = Profile {
            store: "S3Store(there)".to_owned(),
            cores: here::cores(),
            download: vec![sample],
            ..Profile::default()
        };
        let path = profiles.keep(&profile).unwrap();
        let model = StoreModel::new();
        done(&model, Operation::Get, (64 << 10, 4), (0, 4));
        let tally = Tally::of(&model, AT[0]);
        done(&model, Operation::Get, (64 << 10, 12), (4, 14));
        let learn = |store: &str| profiles.learn(store, (&tally, &model), AT[1]).unwrap();
        assert!(learn(&profile.store) && !learn("S3Store(elsewhere)"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("seen = true"), "{text}");
        let broken = text.replacen("parallel = 4", "parallel = \"many\"", 1);
        std::fs::write(&path, &broken).unwrap();
        assert!(!learn(&profile.store));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        // Nothing is left of what cannot be kept.
        let file = Profiles { directory: path };
        assert!(file.keep(&profile).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Commands that end together read and write one profile.
    #[test]
    fn what_several_saw_is_all_kept() {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().to_owned() };
        let cell = Cell { bytes: 64 << 10, parallel: 4 };
        let sample = Sample { cell, latency: 0.01, error: 0.02, tail: None, is_seen: false };
        let store = "S3Store(there)".to_owned();
        let profile = Profile { store, cores: here::cores(), download: vec![sample], ..Profile::default() };
        for _ in 0..20 {
            profiles.keep(&profile).unwrap();
            let one = |bytes| {
                let model = StoreModel::new();
                let tally = Tally::of(&model, AT[0]);
                done(&model, Operation::Get, (bytes, 12), (4, 14));
                profiles.learn(&profile.store, (&tally, &model), AT[1]).unwrap()
            };
            std::thread::scope(|scope| {
                let all = [1 << 10, 32 << 10, 1 << 20, 8 << 20].map(|bytes| scope.spawn(move || one(bytes)));
                assert!(all.into_iter().all(|each| each.join().unwrap()));
            });
            assert_eq!(profiles.of(&profile.store).unwrap().download.len(), 5);
        }
    }

    #[test]
    fn a_mixture_and_what_fails_say_nothing() {
        let both = StoreModel::new();
        let tally = Tally::of(&both, AT[0]);
        done(&both, Operation::Get, (64 << 10, 4), (4, 14));
        done(&both, Operation::Put, (64 << 10, 4), (4, 14));
        assert!(since(&tally, &both, AT[1]).is_none());
        let failing = StoreModel::new();
        done(&failing, Operation::Get, (64 << 10, 4), (4, 14));
        let request = failing.begin(Operation::Get);
        failing.end(AT[1], request, End::Failed(tradewind_model::store_model::Failure::Busy));
        assert!(since(&tally, &failing, AT[1]).is_none());
        assert!(since(&tally, &StoreModel::new(), AT[1]).is_none());
    }
}
