//! Classification on the server: a new object without a label of the client gets its class by rules. They are applied
//! once, when the object is written; the class is stored as if the client had sent it.

use std::fmt;

use tradewind_core::{BucketName, Class, Metadata, ObjectKey, Tags};
use tradewind_wire::headers::{DSS_OBJECT_CLASS, DSS_RANGE_CLASS};

use super::call::Call;
use super::service_context::ServiceContext;

/// An object that is being written, without a label.
#[derive(Debug, Clone, Copy)]
pub struct UnlabelledObject<'a> {
    /// Its bucket.
    pub bucket: &'a BucketName,
    /// Its key.
    pub key: &'a ObjectKey,
    /// Its size in bytes; `None` if it is not known yet, as in a multipart upload.
    pub size: Option<u64>,
    /// Its metadata, apart from tags.
    pub metadata: &'a Metadata,
    /// Its tags.
    pub tags: &'a Tags,
    /// The access key id of the client; `None` if it is anonymous.
    pub access_key: Option<&'a str>,
}

/// Rules that give objects a class.
pub trait ObjectClassifier: fmt::Debug + Send + Sync {
    /// The class of an object; `None` leaves it without a label.
    fn class_of(&self, object: &UnlabelledObject<'_>) -> Option<Class>;
}

/// Returns true if the headers of a request have a label, or remove one.
pub(super) fn is_labelled(call: &Call) -> bool {
    call.headers.contains_key(DSS_OBJECT_CLASS) || call.headers.contains_key(DSS_RANGE_CLASS)
}

/// Gives the object of a request a class by the rules, unless it has a label. `tags` replace those of `metadata`.
pub(super) fn classify(
    service: &ServiceContext,
    call: &Call,
    metadata: &mut Metadata,
    size: Option<u64>,
    tags: Option<&Tags>,
) {
    let (Some(classifier), Some(bucket), Some(key)) = (&service.options.classifier, &call.bucket, &call.key)
    else {
        return;
    };
    if is_labelled(call) || metadata.classes.is_labelled() {
        return;
    }
    let object = UnlabelledObject {
        bucket,
        key,
        size,
        metadata,
        tags: tags.unwrap_or(&metadata.tags),
        access_key: call.auth.identity.key_id(),
    };
    metadata.classes.object = classifier.class_of(&object);
}
