//! Rotation of master keys: data keys that another master key wraps are wrapped by the current one. The stored bytes and
//! all that clients see stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::UploadId;
use tradewind_core::stored_form::{DescriptionChange, Redescribed, StoredSegment};
use tradewind_core::{Address, Context};

use super::Transformed;
use super::keys::Keyring;
use super::segment::Description;

/// The state of an object or of an upload after its keys were wrapped again.
#[derive(Debug, Default)]
pub struct Rewrapped {
    /// Data keys that were wrapped again: one for each write or part.
    pub rewrapped: usize,
    /// The names of the master keys that it needs now. Empty if nothing of it is encrypted.
    pub needed_keys: BTreeSet<String>,
    /// The reason why a data key was not wrapped again, or cannot be unwrapped. Others may have been wrapped again.
    pub failure: Option<Error>,
}

impl Transformed {
    /// The name of the master key of new objects; `None` if nothing can be encrypted.
    #[must_use]
    pub fn current_key(&self) -> Option<&str> {
        self.keys.current.as_deref()
    }

    /// The names of all master keys.
    pub fn key_names(&self) -> impl Iterator<Item = &str> {
        self.keys.keys.keys().map(String::as_str)
    }

    /// Wraps the data keys of an object, or of one version, by the current master key. Every data key is unwrapped, so that
    /// a wrong master key is found. Calling it again changes nothing. Fails with
    /// [`InvalidArgument`](Reason::InvalidArgument) without a current key.
    pub async fn rewrap(&self, context: &Context, address: &Address) -> Result<Rewrapped> {
        let change = Arc::new(self.rewrap_change(address)?);
        let redescribed = self.inner.redescribe(context, address, change.clone()).await?;
        Ok(change.outcome(&redescribed))
    }

    /// Wraps the data keys of the parts of an unfinished upload, as [`rewrap`](Self::rewrap) those of an object.
    pub async fn rewrap_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<Rewrapped> {
        let change = Arc::new(self.rewrap_change(address)?);
        let redescribed = self.inner.redescribe_upload(context, address, upload, change.clone()).await?;
        Ok(change.outcome(&redescribed))
    }

    fn rewrap_change(&self, address: &Address) -> Result<RewrapChange> {
        if self.keys.current.is_none() {
            return Err(Error::new(
                Reason::InvalidArgument,
                "the layer \"transformed\" has no key for new objects",
            ));
        }
        Ok(RewrapChange { keys: self.keys.clone(), key: address.key.as_str().to_owned() })
    }
}

/// The change of one object.
struct RewrapChange {
    keys: Arc<Keyring>,
    /// The key of the object, for messages.
    key: String,
}

impl DescriptionChange for RewrapChange {
    /// A key that cannot be unwrapped stays; [`RewrapChange::outcome`] reports it.
    fn new_description(&self, segment: &StoredSegment) -> Option<Vec<u8>> {
        let mut description = Description::decode(&segment.description).ok()?;
        let wrapped = description.key.take()?;
        let rewrapped = self.keys.rewrap(&wrapped, &description.id, &self.key).ok()??;
        description.key = Some(rewrapped);
        Some(description.encode())
    }
}

impl RewrapChange {
    fn outcome(&self, redescribed: &Redescribed) -> Rewrapped {
        let mut outcome = Rewrapped { rewrapped: redescribed.changed, ..Rewrapped::default() };
        for segment in redescribed.segments.iter().filter(|segment| !segment.description.is_empty()) {
            let examined = Description::decode(&segment.description).and_then(|description| {
                let Some(wrapped) = description.key else { return Ok(()) };
                outcome.needed_keys.insert(wrapped.master.clone());
                self.keys.unwrap(&wrapped, &description.id, &self.key).map(drop)
            });
            if let Err(error) = examined {
                outcome.failure.get_or_insert(error);
            }
        }
        outcome
    }
}
