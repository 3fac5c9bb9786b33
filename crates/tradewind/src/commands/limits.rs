//! The limit of open files of the process. Connections count as well as files of the store.
//! A reserve for the store and the admin listener is kept free of connections: otherwise a client that opens many of
//! them could keep the store from writing.

use anyhow::{Context as _, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tradewind_gateway::config::Limits;
use tradewind_gateway::descriptors::{DescriptorLimit, open_files};

/// The limit divided by this is reserved for the store (segments, files of the index) and the admin listener.
const RESERVE_DIVISOR: usize = 8;
const MIN_RESERVE: usize = 24;
const MAX_RESERVE: usize = 1024;

/// The reserve divided by this is the limit of admin connections.
const ADMIN_DIVISOR: usize = 4;
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// The minimum number of connections to serve clients.
const MIN_CONNECTIONS: usize = 8;

/// Raises the soft limit of open files to the hard limit: every connection, and the file it reads or writes, counts.
/// The default soft limit is low for historical reasons.
pub(super) fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// Open files of a transfer that belong to no item: standard streams, the runtime, stores, listed directories.
const OTHER_TRANSFER_FILES: usize = 48;
/// Files of an item in flight: a connection, the file, its journal, and its directory.
const FILES_PER_ITEM: usize = 4;
/// The concurrency for which a transfer needs files in any case.
const MIN_TRANSFER_CONCURRENCY: usize = 2;

/// The maximum concurrency of a transfer within the limit of open files.
pub(super) fn max_transfer_concurrency() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| transfer_concurrency(usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn transfer_concurrency(limit: usize) -> usize {
    (limit.saturating_sub(OTHER_TRANSFER_FILES) / FILES_PER_ITEM).max(MIN_TRANSFER_CONCURRENCY)
}

/// The limit of open files, and those that the process has or needs in addition to client connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// The process's limit; `None` if there is none.
    limit: Option<usize>,
    /// Files open now.
    open: usize,
    /// Connections to the upstream service.
    upstream: usize,
}

impl OpenFiles {
    /// The current state. Called once the store and the listeners are open.
    pub(super) fn now(upstream: usize) -> anyhow::Result<Self> {
        let open = open_files().context("cannot count open files")?;
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self { limit, open, upstream })
    }

    fn reserve(&self, limit: usize) -> usize {
        (limit / RESERVE_DIVISOR).clamp(MIN_RESERVE, MAX_RESERVE).saturating_add(self.upstream)
    }

    /// The limit of connections of the admin listener.
    pub(super) fn admin_connections(&self) -> usize {
        let reserve = self.limit.map_or(usize::MAX, |limit| self.reserve(limit) - self.upstream);
        (reserve / ADMIN_DIVISOR).min(MAX_ADMIN_CONNECTIONS)
    }

    /// Lowers the limit of connections to the number of available files, with a warning. Fails if that is below
    /// [`MIN_CONNECTIONS`].
    pub(super) fn limit_connections(&self, limits: &mut Limits) -> anyhow::Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        let (open, reserve) = (self.open, self.reserve(limit));
        let room = limit.saturating_sub(open).saturating_sub(reserve);
        if room < MIN_CONNECTIONS {
            bail!(
                "the process may open {limit} files; {open} are open and {reserve} are reserved for the store and the \
                 admin listener; {room} are left for connections, but at least {MIN_CONNECTIONS} are needed; \
                 raise the limit to {} or more (`ulimit -n`, or LimitNOFILE= of a systemd unit)",
                self.needed(limits.connections)
            );
        }
        limits.descriptors = Some(DescriptorLimit { limit, reserve });
        if room < limits.connections {
            tracing::warn!(
                configured = limits.connections,
                allowed = room,
                open_files = limit,
                kept_for_the_store = reserve,
                "fewer connections than server.max_connections: the process may not open enough files; raise the \
                 limit to {} (`ulimit -n`, or LimitNOFILE= of a systemd unit)",
                self.needed(limits.connections)
            );
            limits.connections = room;
        }
        Ok(())
    }

    /// A limit of open files that suffices for `connections` connections.
    fn needed(&self, connections: usize) -> usize {
        let files = connections.saturating_add(self.open);
        // The reserve grows with the limit.
        let limit = files.saturating_add(files / (RESERVE_DIVISOR - 1)).saturating_add(RESERVE_DIVISOR);
        files.saturating_add(self.reserve(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(limit: usize, open: usize) -> OpenFiles {
        OpenFiles { limit: Some(limit), open, upstream: 0 }
    }

    /// The connections, and the reserve of files.
    fn bounded(files: OpenFiles, connections: usize) -> anyhow::Result<(usize, Option<usize>)> {
        let mut limits = Limits { connections, ..Limits::default() };
        files.limit_connections(&mut limits)?;
        Ok((limits.connections, limits.descriptors.map(|descriptors| descriptors.reserve)))
    }

    #[test]
    fn transfers_stay_within_the_limit_of_open_files() {
        assert_eq!(transfer_concurrency(64), 4);
        assert_eq!(transfer_concurrency(256), 52);
        assert!(transfer_concurrency(1 << 20) > 1000);
        assert_eq!(transfer_concurrency(16), MIN_TRANSFER_CONCURRENCY);
    }

    #[test]
    fn connections_leave_files_for_the_store() {
        assert_eq!(bounded(files(64, 17), 10_000).unwrap(), (23, Some(24)));
        assert_eq!(bounded(files(1024, 20), 10_000).unwrap(), (876, Some(128)));
        assert_eq!(bounded(files(1 << 20, 20), 10_000).unwrap(), (10_000, Some(MAX_RESERVE)));
        let unlimited = OpenFiles { limit: None, ..files(0, 20) };
        assert_eq!(bounded(unlimited, 10_000).unwrap(), (10_000, None));
        let upstream = OpenFiles { upstream: 100, ..files(1024, 20) };
        assert_eq!(bounded(upstream, 10_000).unwrap(), (776, Some(228)));
        assert_eq!(files(64, 17).admin_connections(), 6);
        assert_eq!(upstream.admin_connections(), 32);
        assert_eq!(unlimited.admin_connections(), MAX_ADMIN_CONNECTIONS);
    }

    #[test]
    fn needed_limit_suffices_for_the_connections() {
        for connections in [8, 100, 1000, 10_000, 1_000_000] {
            for open in [10, 500, 20_000] {
                let needed = files(0, open).needed(connections);
                assert_eq!(bounded(files(needed, open), connections).unwrap().0, connections);
            }
        }
    }

    #[test]
    fn too_low_limit_fails_with_advice() {
        let error = bounded(files(40, 17), 10_000).unwrap_err().to_string();
        for part in ["may open 40 files", "17 are open", "24 are reserved", "ulimit -n", "11041"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
