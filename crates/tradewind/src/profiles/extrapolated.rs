//! Extrapolates the profile of another client or another store to this one. The closest profile is used, scaled by the
//! differences ([`tradewind_model::tune::extrapolate`]).
//!
//! The RTT matters most, and is unknown before the first request. `tradewind tune` measures it, and may start from any
//! profile. Transfer commands send no extra requests, so they only use profiles that have a similar RTT by name: the
//! store's own profile from any client, or one of the same host or region. Any other would be a guess, and a wrong one
//! is slower than the default.

use tradewind_model::store_model::Direction;
use tradewind_model::tune::extrapolate::{self, ClientEnvironment, ProfileOrigin};
use tradewind_model::tune::{Prior, Surface};

use super::{Profile, Profiles, SavedProfile, host, this_machine};

/// Clients are considered equal if their properties differ by at most this ratio.
const MAX_EQUAL_RATIO: f64 = 1.1;
/// Maximum distance of a profile that sampling starts from, as a logarithm of ratios, unless it is of the same site. A
/// profile further away misleads more than it helps.
const MAX_DISTANCE: f64 = 1.6;

/// The profile that plans for a store are derived from.
#[derive(Debug)]
pub struct ApplicableProfile {
    /// The profile with the samples.
    pub profile: Profile,
    /// The surfaces derived from it, by direction.
    pub surfaces: Vec<(Direction, Surface)>,
    /// It was measured on another client or for another store, and is scaled.
    pub is_scaled: bool,
}

impl Profiles {
    /// The profile that applies to a store on this machine with `cores` CPUs, scaled if necessary.
    #[must_use]
    pub fn applicable(&self, store: &str, cores: usize) -> Option<ApplicableProfile> {
        let here = this_machine::client(host(store), cores);
        let own = self.load(store);
        let is_scaled = !own.as_ref().is_some_and(|own| own.is_measured_on(&here));
        let is_near = |profile: &Profile| extrapolate::is_same_site(host(&profile.store), host(store));
        let profile = own.or_else(|| self.closest(store, &here, f64::MAX, is_near))?;
        let there = profile.measured_on();
        // The RTT and the storage are assumed to be those of the profile.
        let to = ClientEnvironment { rtt: there.rtt, storage_bandwidth: there.storage_bandwidth, ..here };
        let scaled =
            |surface: Surface| Surface::new(extrapolate::extrapolate(&surface, &there, &to), Vec::new());
        let surfaces = [Direction::Write, Direction::Read].into_iter().filter_map(|direction| {
            let surface = profile.surface(direction)?;
            Some((direction, if is_scaled { scaled(surface) } else { surface }))
        });
        let surfaces = surfaces.collect();
        Some(ApplicableProfile { profile, surfaces, is_scaled })
    }

    /// The closest profile of another store or another client, unless it is too distant to help.
    #[must_use]
    pub fn nearest(&self, store: &str, to: &ClientEnvironment) -> Option<Profile> {
        self.closest(store, to, MAX_DISTANCE, |profile| profile.store != store || !profile.is_measured_on(to))
    }

    fn closest(
        &self,
        store: &str,
        to: &ClientEnvironment,
        max_distance: f64,
        counts: impl Fn(&Profile) -> bool,
    ) -> Option<Profile> {
        let here = ProfileOrigin { host: host(store), client: *to };
        let all = self.all();
        let has_samples = |profile: &Profile| {
            !(profile.store.is_empty() || profile.upload.is_empty() && profile.download.is_empty())
        };
        let candidates = all.iter().filter(|saved| has_samples(&saved.profile) && counts(&saved.profile));
        let origins = candidates.map(|saved| {
            let Profile { store, .. } = &saved.profile;
            (ProfileOrigin { host: host(store), client: saved.profile.measured_on() }, saved)
        });
        let near = origins.filter(|(origin, _)| {
            extrapolate::is_same_site(origin.host, here.host) || here.distance(origin) <= max_distance
        });
        let found: &SavedProfile = extrapolate::closest(&here, near)?;
        found.print_warnings();
        Some(found.profile.clone())
    }
}

impl Profile {
    /// Returns true if no known property of the client differs from the one on which it was measured.
    #[must_use]
    pub fn is_measured_on(&self, client: &ClientEnvironment) -> bool {
        let made_on = self.measured_on();
        let differ = |a: Option<f64>, b: Option<f64>| {
            a.zip(b).is_some_and(|(a, b)| (a / b).max(b / a) > MAX_EQUAL_RATIO)
        };
        !differ(made_on.cpus, client.cpus) && !differ(made_on.link_bandwidth, client.link_bandwidth)
    }

    /// The prior for sampling a direction on another client; `None` without samples.
    #[must_use]
    pub fn extrapolated_prior(&self, direction: Direction, to: &ClientEnvironment) -> Option<Prior> {
        Some(extrapolate::sampling_prior(&self.surface(direction)?, &self.measured_on(), to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::tests::profile;
    use tradewind_model::plan::Plan;

    /// Saves profiles, measured on two CPUs, in a temporary directory.
    fn saved(profiles: &[Profile]) -> (tempfile::TempDir, Profiles) {
        let directory = tempfile::tempdir().unwrap();
        let all = Profiles { directory: directory.path().to_owned() };
        for profile in profiles {
            all.save(profile).unwrap();
        }
        (directory, all)
    }

    fn with_name(store: &str) -> Profile {
        Profile { store: store.to_owned(), link_bytes_per_second: None, ..profile() }
    }

    #[test]
    fn known_scales_all_but_the_own_profile() {
        let (_directory, all) = saved(&[with_name("S3Store(store.example.com)")]);
        let own = all.applicable("S3Store(store.example.com)", 2).unwrap();
        assert!(!own.is_scaled);
        assert_eq!(own.surfaces[0].1.samples(), own.profile.upload);
        let stronger = all.applicable("S3Store(store.example.com)", 8).unwrap();
        assert!(stronger.is_scaled && stronger.surfaces.len() == 2);
        assert!(stronger.surfaces.iter().all(|(_, surface)| surface.samples().is_empty()));
        let next_door = all.applicable("S3Store(store.example.com:9000)", 2).unwrap();
        assert!(next_door.is_scaled);
        assert_eq!(next_door.profile.store, "S3Store(store.example.com)");
        assert!(all.applicable("S3Store(other.example.com)", 2).is_none(), "its RTT is unknown");
    }

    #[test]
    fn plan_follows_from_a_scaled_profile() {
        let (_directory, all) = saved(&[with_name("S3Store(store.example.com)")]);
        let plan = |cores| {
            let known = all.applicable("S3Store(store.example.com)", cores).unwrap().surfaces;
            Plan::default().tuned(&known.into_iter().map(|(_, surface)| surface).collect::<Vec<_>>())
        };
        let (same, stronger) = (plan(2), plan(16));
        assert!(stronger.concurrency_for(4096) >= same.concurrency_for(4096), "{same:?} {stronger:?}");
        assert!(same.concurrency_by_size.is_some() && stronger.concurrency_by_size.is_some());
    }

    #[test]
    fn nearest_finds_the_closest_profile() {
        let far = Profile { rtt_seconds: Some(0.2), ..with_name("S3Store(far.example.com)") };
        let empty =
            Profile { upload: Vec::new(), download: Vec::new(), ..with_name("S3Store(empty.example.com)") };
        let (_directory, all) = saved(&[with_name("S3Store(store.example.com)"), far, empty]);
        let here = |round_trip| ClientEnvironment {
            cpus: Some(2.0),
            rtt: Some(round_trip),
            ..ClientEnvironment::default()
        };
        let found = |store, round_trip| all.nearest(store, &here(round_trip)).map(|profile| profile.store);
        assert_eq!(found("S3Store(new.example.com)", 0.06).unwrap(), "S3Store(store.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        // The own profile from this client is not used: it is measured again.
        assert_eq!(found("S3Store(store.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.001), None, "a profile that distant misleads");
        let closest = all.nearest("S3Store(new.example.com)", &here(0.15)).unwrap();
        let belief = closest.extrapolated_prior(Direction::Write, &here(0.15)).unwrap();
        assert!((belief.mean.fixed_seconds / 0.15 - 1.0).abs() < 0.1, "{belief:?}");
        assert!(Profile::default().extrapolated_prior(Direction::Read, &here(0.1)).is_none());
    }
}
