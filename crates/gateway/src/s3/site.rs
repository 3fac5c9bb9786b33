//! What every operation works with besides the call: the store, and what was said once for all calls. It lies
//! below the operations and knows none of them, so that each can take it without knowing the others.

use std::sync::Arc;

use s3s::dto::{Initiator, Owner};
use tradewind_core::ObjectStore;
use tradewind_core::store::ETagForm;

/// What operations are told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// The region that buckets are in.
    pub region: String,
    /// Whether clients speak TLS with this server: where an answer says where something is.
    pub is_tls: bool,
    /// Which entity tag writes make.
    pub etag: ETagForm,
    /// The owner of everything, as listings name it.
    pub owner_id: String,
    /// How many of a multi-delete's keys are in flight at a time, so that they share commits.
    pub delete_concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            is_tls: false,
            etag: ETagForm::Md5,
            // "tradewind", in the form of AWS's canonical ids: 64 hexadecimal digits.
            owner_id: format!("{:0<64}", "747261646577696e64"),
            delete_concurrency: 64,
        }
    }
}

/// A store as S3 shows it: with a region, an owner and a form of entity tag. Cheap to clone.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) options: Arc<Options>,
}

impl Site {
    /// The owner of everything.
    pub(super) fn owner(&self) -> Owner {
        Owner { id: Some(self.options.owner_id.clone()), display_name: Some("tradewind".to_owned()) }
    }

    /// Who begins uploads.
    pub(super) fn initiator(&self) -> Initiator {
        let owner = self.owner();
        Initiator { id: owner.id, display_name: owner.display_name }
    }
}
