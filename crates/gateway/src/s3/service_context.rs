//! The store and settings common to all operations. It depends on no operation, so that each operation can use it
//! without depending on the others.

use std::sync::Arc;

use s3s::dto::{Initiator, Owner};
use tradewind_core::ObjectStore;
use tradewind_core::store::ETagForm;

use super::classifier::ObjectClassifier;
use super::completed_uploads::CompletedUploads;

/// Settings of the operations.
#[derive(Debug, Clone)]
pub struct Options {
    /// The region of all buckets.
    pub region: String,
    /// True if clients connect with TLS; determines the scheme of returned URLs.
    pub is_tls: bool,
    /// The form of entity tag that writes create.
    pub etag: ETagForm,
    /// The ID of the owner of all buckets and objects.
    pub owner_id: String,
    /// The owner's account: 12 digits, compared with `x-amz-expected-bucket-owner`.
    pub account_id: String,
    /// Concurrent deletes of one multi-delete, so that they share commits.
    pub delete_concurrency: usize,
    /// Classifies objects that are written without a label.
    pub classifier: Option<Arc<dyn ObjectClassifier>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            is_tls: false,
            etag: ETagForm::Md5,
            // "tradewind" in the format of AWS's canonical IDs: 64 hexadecimal digits.
            owner_id: format!("{:0<64}", "747261646577696e64"),
            account_id: "000000000000".to_owned(),
            delete_concurrency: 64,
            classifier: None,
        }
    }
}

/// A store with the settings of its S3 interface: region, owner and form of entity tag. Cheap to clone.
#[derive(Clone)]
pub(super) struct ServiceContext {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) options: Arc<Options>,
    pub(super) completed_uploads: CompletedUploads,
}

impl ServiceContext {
    /// The owner of all buckets and objects.
    pub(super) fn owner(&self) -> Owner {
        Owner { id: Some(self.options.owner_id.clone()), display_name: Some("tradewind".to_owned()) }
    }

    /// The initiator of all uploads.
    pub(super) fn initiator(&self) -> Initiator {
        let owner = self.owner();
        Initiator { id: owner.id, display_name: owner.display_name }
    }
}
