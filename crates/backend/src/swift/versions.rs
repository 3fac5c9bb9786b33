//! Addresses with a version. Swift's API has no versions of its own: an object is its `null` version, and there is no
//! other.

use tradewind_core::error::{Error, Result};
use tradewind_core::version::VersionId;
use tradewind_core::{Address, Context};

use super::SwiftStore;

impl SwiftStore {
    /// Fails with [`NoSuchVersion`](tradewind_core::Reason::NoSuchVersion) if `address` names a version other than the
    /// `null` version, and with [`NoSuchBucket`](tradewind_core::Reason::NoSuchBucket) if its bucket does not exist
    /// either.
    pub(super) async fn require_current(&self, context: &Context, address: &Address) -> Result<()> {
        match &address.version {
            None | Some(VersionId::Null) => Ok(()),
            Some(version) => {
                // Boxed, because it is rarely needed.
                Box::pin(self.find_bucket(context, &address.bucket)).await?;
                Err(Error::no_such_version(address.key.as_str(), version))
            }
        }
    }
}
