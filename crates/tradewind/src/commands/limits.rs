//! Limits of the process: files that it may open. Every connection is one, and so is whatever the store has open.
//! Connections leave the files that the store and the admin listener need, or a client that opens many of them could
//! keep the store from writing.

use anyhow::{Context as _, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tradewind_gateway::config::Limits;
use tradewind_gateway::descriptors::{DescriptorLimit, open_files};

/// The part of the limit that is kept for the store and the admin listener: segments, files of the index.
const RESERVE_PART: usize = 8;
const MIN_RESERVE: usize = 24;
const MAX_RESERVE: usize = 1024;

/// The part of the reserve that admin connections may take.
const ADMIN_PART: usize = 4;
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// With room for fewer connections it makes no sense to serve.
const MIN_CONNECTIONS: usize = 8;

/// Lets there be as many open files as may be: every connection, and whatever it fills or empties, is one. The soft limit is made for
/// programs of another age.
pub(super) fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// The files that the process may have open, and those that it has or needs beside connections of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// The process's limit; `None` if there is none.
    limit: Option<usize>,
    /// Open now.
    open: usize,
    /// Connections to the service that is served.
    upstream: usize,
}

impl OpenFiles {
    /// As it is now, once the store and the listeners are open.
    pub(super) fn now(upstream: usize) -> anyhow::Result<Self> {
        let open = open_files().context("cannot count the files that are open")?;
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self { limit, open, upstream })
    }

    fn reserve(&self, limit: usize) -> usize {
        (limit / RESERVE_PART).clamp(MIN_RESERVE, MAX_RESERVE).saturating_add(self.upstream)
    }

    /// Connections that the admin listener may have.
    pub(super) fn admin_connections(&self) -> usize {
        let reserve = self.limit.map_or(usize::MAX, |limit| self.reserve(limit) - self.upstream);
        (reserve / ADMIN_PART).min(MAX_ADMIN_CONNECTIONS)
    }

    /// Lowers the limits of connections to what there are files for, with a warning. Fails if hardly any is left.
    pub(super) fn bound(&self, limits: &mut Limits) -> anyhow::Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        let (open, reserve) = (self.open, self.reserve(limit));
        let room = limit.saturating_sub(open).saturating_sub(reserve);
        if room < MIN_CONNECTIONS {
            bail!(
                "the process may open {limit} files; {open} are open and {reserve} are kept for the store and the \
                 admin listener, which leaves {room} for connections, and at least {MIN_CONNECTIONS} are needed; \
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

    /// A limit that leaves room for `connections` connections.
    fn needed(&self, connections: usize) -> usize {
        let files = connections.saturating_add(self.open);
        // The reserve grows with the limit.
        let limit = files.saturating_add(files / (RESERVE_PART - 1)).saturating_add(RESERVE_PART);
        files.saturating_add(self.reserve(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(limit: usize, open: usize) -> OpenFiles {
        OpenFiles { limit: Some(limit), open, upstream: 0 }
    }

    /// The connections, and the files kept from them.
    fn bounded(files: OpenFiles, connections: usize) -> anyhow::Result<(usize, Option<usize>)> {
        let mut limits = Limits { connections, ..Limits::default() };
        files.bound(&mut limits)?;
        Ok((limits.connections, limits.descriptors.map(|descriptors| descriptors.reserve)))
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
    fn the_limit_that_is_asked_for_is_enough() {
        for connections in [8, 100, 1000, 10_000, 1_000_000] {
            for open in [10, 500, 20_000] {
                let needed = files(0, open).needed(connections);
                assert_eq!(bounded(files(needed, open), connections).unwrap().0, connections);
            }
        }
    }

    #[test]
    fn too_few_files_are_said_in_words() {
        let error = bounded(files(40, 17), 10_000).unwrap_err().to_string();
        for part in ["may open 40 files", "17 are open", "24 are kept", "ulimit -n", "11041"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
