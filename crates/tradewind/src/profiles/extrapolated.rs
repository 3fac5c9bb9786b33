//! Extrapolates the profile of another client or another store to this one. The closest profile is used, extrapolated
//! by the differences ([`tradewind_model::tune::extrapolate`]).
//!
//! The RTT matters most, and is unknown before the first request. `tradewind tune` measures it, so it may start from
//! the profile of any store ([`Profiles::for_tuning`]). Transfer commands send no extra requests. They use only
//! profiles whose store name indicates a similar RTT ([`Profiles::for_transfers`]): the store's own profile from any
//! client, or one of the same host or region. A wrong profile would be slower than the default.

use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::extrapolate::{self, ClientEnvironment, ProfileOrigin};
use tradewind_model::tune::{Prior, Surface};

use super::{Profile, Profiles, SavedProfile, host, this_machine};

/// Clients are considered equal if their properties differ by at most this ratio.
const MAX_EQUAL_RATIO: f64 = 1.1;
/// Maximum distance of a profile from which sampling starts, as a logarithm of ratios; unlimited at the same site. A
/// more distant profile misleads more than it helps.
const MAX_DISTANCE: f64 = 1.6;

/// The profile from which plans for a store are derived, on this client.
#[derive(Debug)]
pub struct ApplicableProfile {
    /// The profile with the samples.
    pub profile: Profile,
    /// The surfaces derived from it, by direction.
    pub surfaces: Vec<(Direction, Surface)>,
    /// True if it was measured on another client or for another store, so that the surfaces are extrapolated.
    pub is_extrapolated: bool,
}

impl Profiles {
    /// The profile that transfers with a store use on this machine with `cpus` CPUs, extrapolated if necessary.
    #[must_use]
    pub fn for_transfers(&self, store: &str, cpus: usize) -> Option<ApplicableProfile> {
        let this_client = this_machine::client(host(store), cpus);
        let own = self.load(store);
        let is_extrapolated = !own.as_ref().is_some_and(|own| own.is_measured_on(&this_client));
        let is_same_site = |profile: &Profile| extrapolate::is_same_site(host(&profile.store), host(store));
        let profile = own.or_else(|| self.closest(store, &this_client, f64::MAX, is_same_site))?;
        let profile_client = profile.measured_on();
        // The RTT and the storage are assumed to be those of the profile.
        let this_client = ClientEnvironment {
            rtt: profile_client.rtt,
            storage_bandwidth: profile_client.storage_bandwidth,
            ..this_client
        };
        let extrapolated = |surface: Surface| {
            Surface::new(extrapolate::extrapolate(&surface, &profile_client, &this_client), Vec::new())
        };
        let surfaces = [Direction::Write, Direction::Read].into_iter().filter_map(|direction| {
            let surface = profile.surface(direction)?;
            Some((direction, if is_extrapolated { extrapolated(surface) } else { surface }))
        });
        let surfaces = surfaces.collect();
        Some(ApplicableProfile { profile, surfaces, is_extrapolated })
    }

    /// The profile from which `tune` starts: the closest one of another store or another client, unless all are too
    /// distant to help. The store's own profile from this client is excluded, so that a repeated `tune` measures
    /// independently of the earlier result.
    #[must_use]
    pub fn for_tuning(&self, store: &str, this_client: &ClientEnvironment) -> Option<Profile> {
        self.closest(store, this_client, MAX_DISTANCE, |profile| {
            profile.store != store || !profile.is_measured_on(this_client)
        })
    }

    /// The closest profile with samples among those that `is_eligible` accepts, at the same site or within
    /// `max_distance`.
    fn closest(
        &self,
        store: &str,
        this_client: &ClientEnvironment,
        max_distance: f64,
        is_eligible: impl Fn(&Profile) -> bool,
    ) -> Option<Profile> {
        let this_origin = ProfileOrigin { host: host(store), client: *this_client };
        let all = self.all();
        let has_samples = |profile: &Profile| {
            !(profile.store.is_empty() || profile.upload.is_empty() && profile.download.is_empty())
        };
        let eligible = all.iter().filter(|saved| has_samples(&saved.profile) && is_eligible(&saved.profile));
        let origins = eligible.map(|saved| {
            let Profile { store, .. } = &saved.profile;
            (ProfileOrigin { host: host(store), client: saved.profile.measured_on() }, saved)
        });
        let candidates = origins.filter(|(origin, _)| {
            extrapolate::is_same_site(origin.host, this_origin.host)
                || this_origin.distance(origin) <= max_distance
        });
        let found: &SavedProfile = extrapolate::closest(&this_origin, candidates)?;
        found.print_warnings();
        Some(found.profile.clone())
    }
}

impl Profile {
    /// Returns true if the profile was measured on an equal client: neither the number of CPUs nor the interface speed
    /// differs, if known of both. RTT and storage belong to the path and the transfer and are not compared.
    #[must_use]
    pub fn is_measured_on(&self, client: &ClientEnvironment) -> bool {
        let profile_client = self.measured_on();
        let differ = |a: Option<f64>, b: Option<f64>| {
            a.zip(b).is_some_and(|(a, b)| (a / b).max(b / a) > MAX_EQUAL_RATIO)
        };
        !differ(profile_client.cpus, client.cpus)
            && !differ(profile_client.interface_bandwidth, client.interface_bandwidth)
    }

    /// The prior for sampling a direction on another client; `None` without samples.
    #[must_use]
    pub fn extrapolated_prior(&self, direction: Direction, this_client: &ClientEnvironment) -> Option<Prior> {
        Some(extrapolate::sampling_prior(&self.surface(direction)?, &self.measured_on(), this_client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::tests::profile;
    use tradewind_model::plan::Plan;

    /// Saves profiles, measured on two CPUs, in a temporary directory.
    fn saved(all: &[Profile]) -> (tempfile::TempDir, Profiles) {
        let directory = tempfile::tempdir().unwrap();
        let profiles = Profiles { directory: directory.path().to_owned() };
        for profile in all {
            profiles.save(profile).unwrap();
        }
        (directory, profiles)
    }

    fn with_name(store: &str) -> Profile {
        Profile { store: store.to_owned(), interface_bytes_per_second: None, ..profile() }
    }

    #[test]
    fn for_transfers_extrapolates_all_but_the_own_profile() {
        let (_directory, profiles) = saved(&[with_name("S3Store(store.example.com)")]);
        let own = profiles.for_transfers("S3Store(store.example.com)", 2).unwrap();
        assert!(!own.is_extrapolated);
        assert_eq!(own.surfaces[0].1.samples(), own.profile.upload);
        let stronger = profiles.for_transfers("S3Store(store.example.com)", 8).unwrap();
        assert!(stronger.is_extrapolated && stronger.surfaces.len() == 2);
        assert!(stronger.surfaces.iter().all(|(_, surface)| surface.samples().is_empty()));
        let next_door = profiles.for_transfers("S3Store(store.example.com:9000)", 2).unwrap();
        assert!(next_door.is_extrapolated);
        assert_eq!(next_door.profile.store, "S3Store(store.example.com)");
        assert!(profiles.for_transfers("S3Store(other.example.com)", 2).is_none(), "its RTT is unknown");
    }

    #[test]
    fn plan_follows_from_an_extrapolated_profile() {
        let (_directory, profiles) = saved(&[with_name("S3Store(store.example.com)")]);
        let plan = |cpus| {
            let surfaces = profiles.for_transfers("S3Store(store.example.com)", cpus).unwrap().surfaces;
            Plan::default().tuned(&surfaces.into_iter().map(|(_, surface)| surface).collect::<Vec<_>>())
        };
        let (same, stronger) = (plan(2), plan(16));
        assert!(stronger.concurrency_for(4096) >= same.concurrency_for(4096), "{same:?} {stronger:?}");
        assert!(same.concurrency_by_size.is_some() && stronger.concurrency_by_size.is_some());
    }

    #[test]
    fn for_tuning_finds_the_closest_profile() {
        let far = Profile { rtt_seconds: Some(0.2), ..with_name("S3Store(far.example.com)") };
        let empty =
            Profile { upload: Vec::new(), download: Vec::new(), ..with_name("S3Store(empty.example.com)") };
        let (_directory, profiles) = saved(&[with_name("S3Store(store.example.com)"), far, empty]);
        let this_client =
            |rtt| ClientEnvironment { cpus: Some(2.0), rtt: Some(rtt), ..ClientEnvironment::default() };
        let found = |store, rtt| profiles.for_tuning(store, &this_client(rtt)).map(|profile| profile.store);
        assert_eq!(found("S3Store(new.example.com)", 0.06).unwrap(), "S3Store(store.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        // The own profile from this client is not used: it is measured again.
        assert_eq!(found("S3Store(store.example.com)", 0.15).unwrap(), "S3Store(far.example.com)");
        assert_eq!(found("S3Store(new.example.com)", 0.001), None, "a profile that distant misleads");
        let closest = profiles.for_tuning("S3Store(new.example.com)", &this_client(0.15)).unwrap();
        let prior = closest.extrapolated_prior(Direction::Write, &this_client(0.15)).unwrap();
        assert!((prior.mean.fixed_seconds / 0.15 - 1.0).abs() < 0.1, "{prior:?}");
        assert!(Profile::default().extrapolated_prior(Direction::Read, &this_client(0.1)).is_none());
    }
}
