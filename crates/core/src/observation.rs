//! Timing of a request and the peer that served it, as reported by a store with each response. The `instrumented` layer
//! passes the queueing time on to the store's live statistics. It measures all other times itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cache_status::CacheOutcome;
use crate::class::Class;

/// One request as measured by the store that served it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// The endpoint of a remote store; `None` for stores in this process.
    pub peer: Option<Arc<str>>,
    /// True if the connection had been used before; `None` for stores without connections.
    pub reused: Option<bool>,
    /// Time spent queueing in this process before the request was sent.
    pub queued: Duration,
    /// For a remote store: time from the start of sending the request to the head of its response, including the upload
    /// of the request's body. For the local store: time until a read has its object's record (with the bytes of an
    /// inline object), or the duration of a commit.
    pub first_byte: Duration,
    /// For a remote store: the length of the request's body. For the local store: the selected bytes of a read or the
    /// size of a staged write. Headers, protocol overhead and a remote store's response bodies are not counted.
    pub body_bytes: u64,
    /// The handling of the read by a cache; `None` if none was asked.
    pub cache: Option<CacheStatus>,
    /// The handling of the read by the caches of a remote store, as its response says.
    pub remote_cache: Option<CacheOutcome>,
}

/// The handling of a read by a cache. Formats as the value of `Cache-Status` (RFC 9211).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStatus {
    /// Where the bytes came from, and why.
    pub source: CacheSource,
    /// The class of the read's first bytes: that of a label, or of the size of an object without one.
    pub class: Option<Class>,
    /// The present priority, 0 is the highest: that of the class, or a higher one while a retention lasts. `None` if
    /// the class is ranked by its observed reuse.
    pub priority: Option<u8>,
    /// The seconds that remain of a retention.
    pub retention_seconds: Option<u32>,
    /// True if a cached object was served without a comparison that was due, because the backing store does not respond.
    pub is_uncompared: bool,
}

/// Where a read's bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheSource {
    /// From the cache's memory.
    Ram,
    /// From the cache's SSD. Of a large object, some extents may have been in memory.
    Ssd,
    /// From the backing store, for this reason.
    Backing(ForwardReason),
}

/// The reason for which a cache forwarded a read to the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardReason {
    /// The object was not in the cache.
    Miss,
    /// Some of the bytes were not in the cache.
    Partial,
    /// The cached object was not the current one.
    Stale,
    /// The cache does not serve such a request: a part, a version, or a key that is being changed.
    Bypass,
    /// The object was not in the cache and does not enter it: all data in the cache has a higher priority.
    Pressure,
}

impl ForwardReason {
    /// The value of the parameter `fwd`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Miss => "uri-miss",
            Self::Partial => "partial",
            Self::Stale => "stale",
            Self::Bypass | Self::Pressure => "bypass",
        }
    }
}

impl fmt::Display for CacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tier = match self.source {
            CacheSource::Ram => "ram",
            CacheSource::Ssd => "ssd",
            CacheSource::Backing(_) => "backing",
        };
        match self.source {
            CacheSource::Backing(reason) => write!(f, "tradewind; fwd={}", reason.name())?,
            _ => f.write_str("tradewind; hit")?,
        }
        let Some(class) = self.class.map(Class::value) else {
            return write!(f, "; detail=\"{tier}, no class\"");
        };
        match (self.source, self.priority) {
            (CacheSource::Backing(ForwardReason::Pressure), _) => {
                write!(f, "; detail=\"class {class} under pressure\"")
            }
            (_, priority) => {
                write!(f, "; detail=\"{tier}, class {class}")?;
                match priority {
                    Some(priority) => write!(f, ", priority {priority}")?,
                    None => f.write_str(", by reuse")?,
                }
                if let Some(seconds) = self.retention_seconds {
                    write!(f, ", retention {seconds} s")?;
                }
                f.write_str(if self.is_uncompared { ", store unavailable\"" } else { "\"" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_status_names_result_tier_class_and_reason() {
        let class = Class::new(25).ok();
        let status = |source, class, priority| {
            CacheStatus { source, class, priority, retention_seconds: None, is_uncompared: false }.to_string()
        };
        let retained = CacheStatus {
            source: CacheSource::Ssd,
            class,
            priority: Some(2),
            retention_seconds: Some(60),
            is_uncompared: true,
        };
        assert_eq!(
            retained.to_string(),
            "tradewind; hit; detail=\"ssd, class 25, priority 2, retention 60 s, store unavailable\""
        );
        let (miss, pressure) = (ForwardReason::Miss, ForwardReason::Pressure);
        for (found, expected) in [
            (status(CacheSource::Ssd, class, Some(3)), "hit; detail=\"ssd, class 25, priority 3\""),
            (status(CacheSource::Ram, class, None), "hit; detail=\"ram, class 25, by reuse\""),
            (status(CacheSource::Backing(miss), None, None), "fwd=uri-miss; detail=\"backing, no class\""),
            (
                status(CacheSource::Backing(pressure), class, Some(3)),
                "fwd=bypass; detail=\"class 25 under pressure\"",
            ),
        ] {
            assert_eq!(found, format!("tradewind; {expected}"));
        }
    }
}
