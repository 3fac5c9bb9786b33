//! What tuning begins with: the client, its way to the store, and what is believed before the first probe.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tradewind_bench::files::Files;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::Belief;
use tradewind_model::tune::carry::Client;

use crate::commands::advice::{scaled_from, seconds};
use crate::commands::terminal::Names;
use crate::profiles::here::cores;
use crate::profiles::{Profile, Profiles, here, host};

/// See the module.
pub(super) struct Start {
    /// This machine, as far as it and its way to the store are known.
    pub client: Client,
    /// The closest profile of another store or another client.
    from: Option<Profile>,
}

impl Start {
    /// For a store, to which a round trip takes so long, and a service of this name if it is one. Where uploads come from files,
    /// something is written to their directory.
    pub fn new(
        service: Option<&str>,
        round_trip: Option<Duration>,
        files: Option<&Files>,
    ) -> anyhow::Result<Self> {
        let storage = files.map(Files::write_speed).transpose().context("nothing can be written there")?;
        let round_trip = round_trip.map(|time| time.as_secs_f64());
        let here = service.map_or_else(Client::default, |store| here::client(host(store), cores()));
        let client = Client { round_trip, storage, ..here };
        let from = service.and_then(|store| Profiles::find()?.nearest(store, &client));
        Ok(Self { client, from })
    }

    /// What is believed of a direction.
    pub fn belief(&self, direction: Direction) -> Belief {
        let carried = self.from.as_ref().and_then(|profile| profile.begin(direction, &self.client));
        let usual = || {
            self.client
                .round_trip
                .map_or_else(Belief::default, |time| Belief::default().with_round_trip(time))
        };
        carried.unwrap_or_else(usual)
    }

    /// Says what it is.
    pub fn print(&self, is_json: bool) -> io::Result<()> {
        let mut out = io::stdout();
        let Self { client, from } = self;
        if !is_json && let Some(time) = client.round_trip {
            writeln!(out, "a round trip takes {}", seconds(time))?;
        }
        let Some(profile) = from else { return Ok(()) };
        if is_json {
            let line = json!({
                "line": "begins",
                "store": profile.store,
                "made": profile.made,
                "cores": profile.cores,
                "link_bytes_per_second": profile.link,
                "round_trip_seconds": profile.round_trip,
            });
            return writeln!(out, "{line}");
        }
        let (known, from) = (host(&profile.store), scaled_from(profile));
        let line = format!("begins with what is known of {known}, scaled from {from}");
        writeln!(out, "{}", Names::of_standard_output().show(&line))
    }
}
