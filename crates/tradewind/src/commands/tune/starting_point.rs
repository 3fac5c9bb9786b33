//! The starting point of tuning: the client, its network path to the store, and the prior before the first probe.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tradewind_bench::files::LocalFiles;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::Prior;
use tradewind_model::tune::extrapolate::ClientEnvironment;

use crate::commands::plan_output::{describe_profile_client, format_seconds};
use crate::commands::terminal::Names;
use crate::profiles::this_machine::cpus;
use crate::profiles::{Profile, Profiles, host, this_machine};

/// The starting point of tuning.
pub(super) struct StartingPoint {
    /// This machine and its network path to the store, as far as known.
    pub client: ClientEnvironment,
    /// The closest profile of another store or another client, from which the prior is extrapolated.
    profile: Option<Profile>,
}

impl StartingPoint {
    /// Determines the starting point. `profile_key` is the debug name of the store, or `None` for a local one. If
    /// transfers use files, the write speed of their directory is measured.
    pub fn new(
        profile_key: Option<&str>,
        rtt: Option<Duration>,
        files: Option<&LocalFiles>,
    ) -> anyhow::Result<Self> {
        let storage = files
            .map(LocalFiles::write_speed)
            .transpose()
            .context("cannot measure the disk's write speed")?;
        let rtt = rtt.map(|time| time.as_secs_f64());
        let this_machine = profile_key
            .map_or_else(ClientEnvironment::default, |store| this_machine::client(host(store), cpus()));
        let client = ClientEnvironment { rtt, storage_bandwidth: storage, ..this_machine };
        let profile = profile_key.and_then(|store| Profiles::find()?.for_tuning(store, &client));
        Ok(Self { client, profile })
    }

    /// The prior for a direction.
    pub fn prior(&self, direction: Direction) -> Prior {
        let extrapolated =
            self.profile.as_ref().and_then(|profile| profile.extrapolated_prior(direction, &self.client));
        let default = || self.client.rtt.map_or_else(Prior::default, |time| Prior::default().with_rtt(time));
        extrapolated.unwrap_or_else(default)
    }

    /// Prints the RTT, and the profile that tuning starts from.
    pub fn print(&self, is_json: bool) -> io::Result<()> {
        let mut out = io::stdout();
        let Self { client, profile } = self;
        if !is_json && let Some(time) = client.rtt {
            writeln!(out, "RTT: {}", format_seconds(time))?;
        }
        let Some(profile) = profile else { return Ok(()) };
        if is_json {
            let line = json!({
                "line": "starting_profile",
                "store": profile.store,
                "measured_at": profile.measured_at,
                "cpus": profile.cpus,
                "interface_bytes_per_second": profile.interface_bytes_per_second,
                "rtt_seconds": profile.rtt_seconds,
            });
            return writeln!(out, "{line}");
        }
        let (store, client) = (host(&profile.store), describe_profile_client(profile));
        let line = format!("starting from the profile of {store}, extrapolated from {client}");
        writeln!(out, "{}", Names::for_stdout().show(&line))
    }
}
