//! What a server sees of the store that it serves: it goes into the store's profile as what transfers see does, so that the next start
//! begins with the store as it is.
//!
//! A server is idle for most of its life, and a mean over that says nothing. So only stretches count in which something was under way
//! at each look, one a second.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tradewind_model::store_model::{Operation, StoreModel};
use tradewind_volume::Observed;

use super::Profiles;
use super::seen::{Tally, WARM};

/// It is looked so often whether anything is under way.
const LOOK: Duration = Duration::from_secs(1);
/// A stretch that goes on is looked at after so long.
const LONG: Duration = Duration::from_secs(60);
/// The file is not written more often.
const SELDOM: Duration = Duration::from_secs(300);

/// Corrects the profile of a store as long as it is served.
#[derive(Debug)]
pub struct Learning {
    /// The store, which has the profile's name.
    pub store: Arc<Observed>,
    /// Where profiles are kept.
    pub profiles: Profiles,
}

/// Time in which something was under way at each look.
#[derive(Debug, Default)]
struct Stretch {
    began: Option<Duration>,
    /// Where what counts begins.
    tally: Option<Tally>,
}

impl Stretch {
    /// Looks at the store. What was done since the tally is to be counted now.
    fn look(&mut self, model: &StoreModel, now: Duration) -> Option<Tally> {
        let carrying = Operation::ALL.into_iter().filter(|operation| operation.direction().is_some());
        if carrying.map(|operation| model.in_flight(operation)).sum::<u64>() == 0 {
            self.began = None;
            return self.tally.take();
        }
        let began = *self.began.get_or_insert(now);
        match &self.tally {
            None if now.saturating_sub(began) >= WARM => {
                self.tally = Some(Tally::of(model, now));
                None
            }
            Some(tally) if now.saturating_sub(tally.at()) >= LONG => {
                self.tally.replace(Tally::of(model, now))
            }
            _ => None,
        }
    }
}

impl Learning {
    /// Looks until `stop`, and once more then.
    pub async fn run(self, stop: CancellationToken) {
        let (mut stretch, mut kept) = (Stretch::default(), None);
        let store = &self.store;
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = stop.cancelled() => break,
            }
            let now = store.now();
            let due = stretch.look(store.model(), now);
            if let Some(tally) = due
                && kept.is_none_or(|kept: Duration| now.saturating_sub(kept) >= SELDOM)
                && self.learn(&tally)
            {
                kept = Some(now);
            }
        }
        if let Some(tally) = stretch.tally {
            self.learn(&tally);
        }
    }

    /// Whether there was anything to keep.
    fn learn(&self, tally: &Tally) -> bool {
        let store = &self.store;
        // It writes a file.
        let learnt = tokio::task::block_in_place(|| {
            self.profiles.learn(&format!("{store:?}"), (tally, store.model()), store.now())
        });
        learnt.unwrap_or_else(|error| {
            tracing::debug!(%error, "what was seen of the store cannot be kept");
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::seen;
    use tradewind_model::store_model::End;

    const SECOND: Duration = Duration::from_secs(1);

    /// Requests that take a tenth of a second, four at a time, within a second.
    fn carry(model: &StoreModel, second: u32) {
        for n in 0..40 {
            let request = model.begin(Operation::Get);
            let end = End::Done { bytes: 2 << 20, service: SECOND / 10 };
            model.end(SECOND * second + SECOND * n / 40, request, end);
        }
    }

    #[test]
    fn only_stretches_without_a_pause_count() {
        let (model, mut stretch) = (StoreModel::new(), Stretch::default());
        let mut found = Vec::new();
        for second in 0..60 {
            // Between 20 and 30 it is idle, and between 40 and 60 now and then.
            let is_busy = match second {
                20..30 => false,
                40..60 => second % 3 > 0,
                _ => true,
            };
            let underway = is_busy.then(|| {
                carry(&model, second);
                model.begin(Operation::Get)
            });
            if let Some(tally) = stretch.look(&model, SECOND * second) {
                found.push((second, seen::since(&tally, &model, SECOND * second)));
            }
            if let Some(underway) = underway {
                model.end(SECOND * second, underway, End::GivenUp { waited: SECOND });
            }
        }
        let seconds: Vec<u32> = found.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [20, 42]);
        let (_, sample) = found[0].1.unwrap();
        assert_eq!((sample.cell.bytes, sample.cell.parallel), (2 << 20, 4), "{sample:?}");
    }

    #[test]
    fn a_long_stretch_is_looked_at_as_it_goes_on() {
        let (model, mut stretch) = (StoreModel::new(), Stretch::default());
        let _always = model.begin(Operation::Put);
        let due = (0..200).filter(|second| stretch.look(&model, SECOND * *second).is_some());
        assert_eq!(due.collect::<Vec<u32>>(), [64, 124, 184]);
    }
}
