//! What is packed and where to, and what came of it.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::bundle::Limits;
use tradewind_volume::{Carrier, Memory, Sequence};

use super::open::{Bundle, name_of_bundle};
use crate::copy::{describe, metadata_of};
use crate::files::{Links, Tree};
use crate::journal::{Entry, Journal};
use crate::memory::CopyMemory;
use crate::moves::{Done, Outcome};
use crate::objects::Objects;
use crate::progress::Progress;

/// The largest file that becomes a member, in bytes: in parts of 8 MiB S3 takes some 78 GiB.
const MOST_MEMBER_BYTES: u64 = 64 << 30;

/// Packs files below a directory into bundles.
#[derive(Debug)]
pub struct Packer {
    /// The files.
    pub from: Tree,
    /// What becomes of links in it.
    pub links: Links,
    /// The bucket that bundles go to.
    pub to: Objects,
    /// The key of the first bundle; [`name_of_bundle`] has those of the others.
    pub key: String,
    /// How they are carried.
    pub carrier: Arc<Carrier>,
    /// Where it is told how far they are.
    pub progress: Arc<Progress>,
    /// Where a bundle ends.
    pub limits: Limits,
    /// Remembers bundles under way; without one a packing that is killed begins anew.
    pub journal: Option<Journal>,
}

/// What was packed.
#[derive(Debug, Default)]
pub struct Packed {
    /// Files are what is counted.
    pub outcome: Outcome,
    /// The keys of the bundles that are stored.
    pub bundles: Vec<String>,
}

impl Packed {
    /// A bundle is there already.
    pub(super) fn add(&mut self, bundle: &Bundle, progress: &Progress) {
        for member in bundle.members() {
            self.outcome.add(String::new(), Ok(Done::Copied(member.size)), progress);
            progress.carried(i64::try_from(member.size).unwrap_or(i64::MAX));
        }
        self.bundles.push(bundle.key().to_owned());
    }
}

/// Whether a file of so many bytes can be a member.
pub(super) fn check_size(bytes: u64) -> Result<()> {
    if bytes <= MOST_MEMBER_BYTES {
        return Ok(());
    }
    let why = "it is larger than 64 GiB, too large for a bundle; exclude it, and copy it by itself";
    Err(Error::new(Reason::EntityTooLarge, why))
}

impl Packer {
    /// The object that becomes a bundle, with its key.
    pub(super) fn sequence(&self, number: u32) -> Result<(String, Sequence)> {
        let key = name_of_bundle(&self.key, number);
        let address = self.to.address(&key)?;
        let memory = self.remember(&describe(&address)).map(CopyMemory::new);
        let sequence = Sequence::new(&self.carrier, &self.to.store, &address, metadata_of(&key));
        Ok((key, sequence.remembered(memory.map(|memory| Arc::new(memory) as Arc<dyn Memory>))))
    }

    /// Frees what an earlier packing sent of a bundle that it did not complete.
    pub(super) async fn discard(&self, number: u32) -> Result<()> {
        self.sequence(number)?.1.forget().await;
        Ok(())
    }

    /// What is remembered of what the directory becomes.
    pub(super) fn remember(&self, to: &str) -> Option<Entry> {
        self.journal.as_ref()?.remember(true, || {
            let from = std::path::absolute(self.from.path()).ok()?;
            Some((from.display().to_string(), to.to_owned()))
        })
    }
}
