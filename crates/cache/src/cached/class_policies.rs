//! Decisions of operators about classes and prefixes, and the occupancy of the cache by class.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;
use tradewind_core::error::Result;
use tradewind_core::{BucketName, Class, Error, Reason};
use tradewind_model::class_policy::{ClassPolicyTable, all_classes};

use super::Cached;
use crate::aligned::BLOCK_BYTES;
use crate::pins::{MAX_PINNED_PREFIXES, PinnedPrefix, read_pins, write_pins};
use crate::ram::RAM_BLOCK_BYTES;
use crate::tiers::Tiers;

/// The occupancy of a cache by one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OccupiedClass {
    /// The class.
    pub class: Class,
    /// Bytes of memory.
    pub ram_bytes: u64,
    /// Bytes of the SSD.
    pub ssd_bytes: u64,
    /// Extents on the SSD.
    pub ssd_extents: u32,
}

/// The file of the pinned prefixes.
#[derive(Debug)]
pub(super) struct PinnedPrefixes {
    /// `None` without a directory: pins then end with the process. The lock is held while the file is replaced.
    path: Arc<Mutex<Option<PathBuf>>>,
}

impl PinnedPrefixes {
    /// Loads the prefixes into the policies.
    pub fn load(path: Option<PathBuf>, tiers: &Tiers) -> Self {
        match path.as_deref().map(read_pins) {
            Some(Ok(pins)) => {
                if tiers.policies.ignores_pins() && !pins.is_empty() {
                    let count = pins.len();
                    tracing::warn!(
                        count,
                        "the cache has pinned prefixes, but its eviction policy is a baseline without pins; they have no \
                         effect until the policy is the default again"
                    );
                }
                tiers.policies.set_prefixes(pins);
            }
            Some(Err(error)) => {
                tiers.counters.ssd_errors.increment();
                tracing::warn!(%error, "the pinned prefixes of the cache cannot be read; nothing is pinned");
            }
            None => {}
        }
        Self { path: Arc::new(Mutex::new(path)) }
    }
}

impl Cached {
    /// Replaces the policies of classes. They apply to what is cached, too: classes that fill more than their share lose
    /// entries, on the SSD in the background.
    pub fn set_policies(&self, table: Arc<ClassPolicyTable>) {
        self.tiers.set_table(table);
    }

    /// Pins the objects of a bucket whose keys begin with `prefix`: what is cached of them is not evicted. Objects that
    /// are cached already are pinned when they are read. Pins of prefixes and of classes fill at most half of each tier;
    /// beyond it they are ignored, and [`CacheCounters::pins_ignored`](crate::CacheCounters::pins_ignored) counts them.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) if too many prefixes are pinned, or if the eviction policy has no
    /// pins; [`Io`](Reason::Io) if the pin cannot be made durable. It then has no effect.
    pub async fn pin(&self, bucket: &BucketName, prefix: &str) -> Result<()> {
        if !self.eviction.obeys_classes() {
            let message = "the eviction policy of this cache is a baseline for comparison, without pins";
            return Err(Error::for_client(Reason::InvalidArgument, message));
        }
        let pin = PinnedPrefix { bucket: bucket.clone(), prefix: prefix.to_owned() };
        self.change_pins(|pins| {
            if pins.contains(&pin) {
                return Ok(());
            }
            if pins.len() == MAX_PINNED_PREFIXES {
                let message =
                    format!("the cache has {MAX_PINNED_PREFIXES} pinned prefixes, the maximum; unpin one");
                return Err(Error::for_client(Reason::InvalidArgument, message));
            }
            pins.push(pin);
            Ok(())
        })
        .await
    }

    /// Ends a pin. Does nothing if there is none of exactly this bucket and prefix.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if that cannot be made durable. It then has no effect.
    pub async fn unpin(&self, bucket: &BucketName, prefix: &str) -> Result<()> {
        let pin = PinnedPrefix { bucket: bucket.clone(), prefix: prefix.to_owned() };
        self.change_pins(|pins| {
            pins.retain(|other| *other != pin);
            Ok(())
        })
        .await
    }

    /// The pinned prefixes, in the order in which they were pinned.
    #[must_use]
    pub fn pins(&self) -> Vec<PinnedPrefix> {
        self.tiers.policies.prefixes().to_vec()
    }

    /// Changes the file, then the pins, and then unpins what is cached if a pin has ended. If the future is dropped, all of
    /// it goes on, and the next change waits for it. If the pins stay the same, only the file is written again: after an
    /// error, it may have others.
    async fn change_pins(&self, change: impl FnOnce(&mut Vec<PinnedPrefix>) -> Result<()>) -> Result<()> {
        let path = self.pinned_prefixes.path.clone().lock_owned().await;
        let mut pins = self.pins();
        change(&mut pins)?;
        let previous = self.tiers.policies.prefixes();
        let is_changed = pins != *previous;
        let has_ended = previous.iter().any(|pin| !pins.contains(pin));
        let tiers = self.tiers.clone();
        let write = move || {
            if let Some(path) = path.as_ref() {
                write_pins(path, &pins)?;
            }
            if is_changed {
                tiers.policies.set_prefixes(pins);
            }
            if has_ended {
                tiers.unpin_prefixes();
            }
            Ok::<_, std::io::Error>(())
        };
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.map_err(|e| Error::new(Reason::Defect, e.to_string()))?;
        written.map_err(|e| Error::with_source(Reason::Io, "the pinned prefixes cannot be written", e))
    }

    /// The occupancy of the cache by class, without classes that are not in it. A head in memory counts for the class of its
    /// object; on the SSD, heads of objects above 64 KiB count for no class. An object without a label has the class of its
    /// size.
    #[must_use]
    pub fn occupancy(&self) -> Vec<OccupiedClass> {
        let ram = self.tiers.ram.occupancy();
        let ssd = self.tiers.disk.as_ref().map(|disk| disk.occupancy()).unwrap_or_default();
        let occupied = all_classes().zip(ram.iter().zip(&ssd)).map(|(class, (ram, ssd))| OccupiedClass {
            class,
            ram_bytes: ram.blocks * RAM_BLOCK_BYTES as u64,
            ssd_bytes: ssd.blocks * BLOCK_BYTES as u64,
            ssd_extents: ssd.entries,
        });
        occupied.filter(|class| class.ram_bytes > 0 || class.ssd_bytes > 0).collect()
    }
}
