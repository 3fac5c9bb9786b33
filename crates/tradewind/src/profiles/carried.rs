//! What is known of a store by way of another profile: one that was made on another client, or of another store. The closest
//! counts, scaled by what the two differ in ([`tradewind_model::tune::carry`]).
//!
//! How far away a store is decides most, and nobody knows it before the first request. `tradewind tune` asks, and may begin with any
//! profile. The commands that move data ask nothing more than they did before, so that they use what is as far away by its name:
//! the store's own profile, whoever made it, or one of the same host or region. What else there is would be a guess, and a wrong
//! one takes longer than none.

use tradewind_model::store_model::Direction;
use tradewind_model::tune::carry::{self, Client, Origin};
use tradewind_model::tune::{Belief, Surface};

use super::{Kept, Profile, Profiles, here, host};

/// Clients that differ by no more than this, as a ratio, are alike.
const ALIKE: f64 = 1.1;
/// What sampling begins with is of the same site or no further away than this, as a logarithm of ratios: what lies further misled it
/// more than it helped.
const NEAR: f64 = 1.6;

/// What plans for a store follow from.
#[derive(Debug)]
pub struct Known {
    /// Whose samples they are.
    pub profile: Profile,
    /// What follows from them, by direction.
    pub surfaces: Vec<(Direction, Surface)>,
    /// Whether it was made on another client, or of another store, and is scaled.
    pub is_carried: bool,
}

impl Profiles {
    /// What commands know of a store, on this machine with so many processors.
    #[must_use]
    pub fn known(&self, store: &str, cores: usize) -> Option<Known> {
        let here = here::client(host(store), cores);
        let own = self.of(store);
        let is_carried = !own.as_ref().is_some_and(|own| own.is_made_on(&here));
        let is_near = |profile: &Profile| carry::is_same_site(host(&profile.store), host(store));
        let profile = own.or_else(|| self.closest(store, &here, f64::MAX, is_near))?;
        let there = profile.made_on();
        // As far away as it was, and with the same storage.
        let to = Client { round_trip: there.round_trip, storage: there.storage, ..here };
        let scaled = |surface: Surface| Surface::new(carry::carry(&surface, &there, &to), Vec::new());
        let known = [Direction::Write, Direction::Read].into_iter().filter_map(|direction| {
            let surface = profile.surface(direction)?;
            Some((direction, if is_carried { scaled(surface) } else { surface }))
        });
        let surfaces = known.collect();
        Some(Known { profile, surfaces, is_carried })
    }

    /// What is closest to a store as a client sees it, and close: of another store, or made on another client.
    #[must_use]
    pub fn nearest(&self, store: &str, to: &Client) -> Option<Profile> {
        self.closest(store, to, NEAR, |profile| profile.store != store || !profile.is_made_on(to))
    }

    fn closest(
        &self,
        store: &str,
        to: &Client,
        most_apart: f64,
        counts: impl Fn(&Profile) -> bool,
    ) -> Option<Profile> {
        let here = Origin { host: host(store), client: *to };
        let all = self.all();
        let says_something = |profile: &Profile| {
            !(profile.store.is_empty() || profile.upload.is_empty() && profile.download.is_empty())
        };
        let known = all.iter().filter(|kept| says_something(&kept.profile) && counts(&kept.profile));
        let origins = known.map(|kept| {
            let Profile { store, .. } = &kept.profile;
            (Origin { host: host(store), client: kept.profile.made_on() }, kept)
        });
        let near = origins.filter(|(origin, _)| {
            carry::is_same_site(origin.host, here.host) || here.distance(origin) <= most_apart
        });
        let found: &Kept = carry::closest(&here, near)?;
        found.warn();
        Some(found.profile.clone())
    }
}

impl Profile {
    /// Whether a client is like the one that it was made on, as far as both are known.
    #[must_use]
    pub fn is_made_on(&self, client: &Client) -> bool {
        let made_on = self.made_on();
        let differ =
            |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| (a / b).max(b / a) > ALIKE);
        !differ(made_on.processors, client.processors) && !differ(made_on.link, client.link)
    }

    /// What sampling of a direction may begin with at another client, if there is anything.
    #[must_use]
    pub fn begin(&self, direction: Direction, to: &Client) -> Option<Belief> {
        Some(carry::begin(&self.surface(direction)?, &self.made_on(), to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::tests::profile;
    use tradewind_model::plan::Plan;

    /// Profiles in a directory, of which the first is that of a store here, made on two processors.
    fn kept(profiles: &[Profile]) -> (tempfile::TempDir, Profiles) {
        let directory = tempfile::tempdir().unwrap();
        let all = Profiles { directory: directory.path().to_owned() };
        for profile in profiles {
            all.keep(profile).unwrap();
        }
        (directory, all)
    }

    fn of(store: &str) -> Profile {
        Profile { store: store.to_owned(), link: None, ..profile() }
    }

    #[test]
    fn what_was_made_here_counts_as_it_is_and_the_rest_scaled() {
        let (_directory, all) = kept(&[of("S3Store(store.example.com)")]);
        let own = all.known("S3Store(store.example.com)", 2).unwrap();
        assert!(!own.is_carried);
        assert_eq!(own.surfaces[0].1.samples(), own.profile.upload);
        let stronger = all.known("S3Store(store.example.com)", 8).unwrap();
        assert!(stronger.is_carried && stronger.surfaces.len() == 2);
        assert!(stronger.surfaces.iter().all(|(_, surface)| surface.samples().is_empty()));
        let next_door = all.known("S3Store(store.example.com:9000)", 2).unwrap();
        assert!(next_door.is_carried);
        assert_eq!(next_door.profile.store, "S3Store(store.example.com)");
        assert!(all.known("S3Store(other.example.com)", 2).is_none(), "nobody knows how far away that is");
    }

    #[test]
    fn plans_follow_also_from_what_was_carried_over() {
        let (_directory, all) = kept(&[of("S3Store(store.example.com)")]);
        let plan = |cores| {
            let known = all.known("S3Store(store.example.com)", cores).unwrap().surfaces;
            Plan::default().tuned(&known.into_iter().map(|(_, surface)| surface).collect::<Vec<_>>())
        };
        let (same, stronger) = (plan(2), plan(16));
        assert!(stronger.parallel(4096) >= same.parallel(4096), "{same:?} {stronger:?}");
        assert!(same.at_a_time.is_some() && stronger.at_a_time.is_some());
    }

    #[test]
    fn sampling_begins_with_the_closest() {
        let far = Profile { round_trip: Some(0.2), ..of("S3Store(far.example.com)") };
        let empty = Profile { upload: Vec::new(), download: Vec::new(), ..of("S3Store(empty.example.com)") };
        let (_directory, all) = kept(&[of("S3Store(store.example.com)"), far, empty]);
        let here =
            |round_trip| Client { processors: Some(2.0), round_trip: Some(round_trip), ..Client::default() };
        let found = |store, round_trip| all.nearest(store, &here(round_trip)).map(|profile| profile.store);
        assert_eq!(found("S3Store(new.example.com)", 0.06).unwrap(), "S3Store(store.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        // What was found here is looked at afresh.
        assert_eq!(found("S3Store(store.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.001), None, "what is so far away misleads");
        let begun = all.nearest("S3Store(new.example.com)", &here(0.15)).unwrap();
        let belief = begun.begin(Direction::Write, &here(0.15)).unwrap();
        assert!((belief.mean.fixed() / 0.15 - 1.0).abs() < 0.1, "{belief:?}");
        assert!(Profile::default().begin(Direction::Read, &here(0.1)).is_none());
    }
}
