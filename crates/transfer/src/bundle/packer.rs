//! The parameters and the outcome of packing.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::bundle::BundleLimits;
use tradewind_parallel::{StreamingUpload, TransferContext, UploadCheckpoint};

use super::reader::{Bundle, bundle_key};
use crate::checkpoint::JournalCheckpoint;
use crate::copy::{journal_key, metadata_for_name};
use crate::files::{Links, Tree};
use crate::journal::{Journal, JournalDirectory};
use crate::objects::Objects;
use crate::progress::Progress;
use crate::workers::{ActionResult, Outcome};

/// The largest file that can be a member. In parts of 8 MiB an S3 upload is limited to some 78 GiB.
const MAX_MEMBER_BYTES: u64 = 64 << 30;

/// Packs files below a directory into bundles.
#[derive(Debug)]
pub struct Packer {
    /// The source directory.
    pub from: Tree,
    /// The treatment of symbolic links in it.
    pub links: Links,
    /// The bucket that bundles are stored in.
    pub to: Objects,
    /// The key of the first bundle; [`bundle_key`] derives those of the others.
    pub key: String,
    /// State shared with all transfers of the command.
    pub transfers: Arc<TransferContext>,
    /// Receives the progress.
    pub progress: Arc<Progress>,
    /// The limits of a bundle.
    pub limits: BundleLimits,
    /// Saves the state of bundles in flight; without one a killed packing restarts from scratch.
    pub journals: Option<JournalDirectory>,
}

/// The outcome of packing.
#[derive(Debug, Default)]
pub struct PackOutcome {
    /// Counts of files, and failures.
    pub outcome: Outcome,
    /// The keys of the stored bundles.
    pub bundles: Vec<String>,
}

impl PackOutcome {
    /// Counts the members of a bundle that an earlier packing stored.
    pub(super) fn add_existing(&mut self, bundle: &Bundle, progress: &Progress) {
        for member in bundle.members() {
            self.outcome.record(String::new(), Ok(ActionResult::Copied(member.size)), progress);
            progress.add_bytes(i64::try_from(member.size).unwrap_or(i64::MAX));
        }
        self.bundles.push(bundle.key().to_owned());
    }
}

/// Rejects a file that is too large to be a member.
pub(super) fn check_member_size(bytes: u64) -> Result<()> {
    if bytes <= MAX_MEMBER_BYTES {
        return Ok(());
    }
    let why = "larger than 64 GiB, too large for a bundle; exclude it and copy it separately";
    Err(Error::new(Reason::EntityTooLarge, why))
}

impl Packer {
    /// The key of bundle `number`, and the upload that creates it.
    pub(super) fn bundle_upload(&self, number: u32) -> Result<(String, StreamingUpload)> {
        let key = bundle_key(&self.key, number);
        let address = self.to.address(&key)?;
        let checkpoint = self.open_journal(&journal_key(&address)).map(JournalCheckpoint::new);
        let sequence =
            StreamingUpload::new(&self.transfers, &self.to.store, &address, metadata_for_name(&key));
        Ok((
            key,
            sequence.with_checkpoint(
                checkpoint.map(|checkpoint| Arc::new(checkpoint) as Arc<dyn UploadCheckpoint>),
            ),
        ))
    }

    /// Aborts the upload that an earlier packing left of bundle `number`.
    pub(super) async fn abort_upload(&self, number: u32) -> Result<()> {
        self.bundle_upload(number)?.1.discard().await;
        Ok(())
    }

    /// Opens the journal of the transfer from the source directory to `to`.
    pub(super) fn open_journal(&self, to: &str) -> Option<Journal> {
        self.journals.as_ref()?.open_for_transfer(true, || {
            let from = std::path::absolute(self.from.path()).ok()?;
            Some((from.display().to_string(), to.to_owned()))
        })
    }
}
