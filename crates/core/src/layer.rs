//! Forwarding for layers: the methods of [`ObjectStore`](crate::ObjectStore) that a layer passes on to the store below.
//!
//! A layer writes the methods that it changes and lists the others in [`forward_methods!`](crate::forward_methods).
//! The compiler reports a method that is in neither, but for those with a default: `prewarm`, `min_rtt`,
//! `object_clock`, `accepts`, `redescribe` and `redescribe_upload`. Code around every forwarded call (timing,
//! scheduling, faults) receives a [`Call`].

use crate::context::Context;
use crate::name::{Address, BucketName};

/// An asynchronous method of [`ObjectStore`](crate::ObjectStore) that takes a [`Context`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented at the method of this name")]
pub enum Method {
    CreateBucket,
    DeleteBucket,
    HeadBucket,
    ListBuckets,
    Versioning,
    SetVersioning,
    Head,
    Get,
    Stage,
    Delete,
    List,
    ListVersions,
    Copy,
    SetTags,
    SetClasses,
    Redescribe,
    RedescribeUpload,
    ObjectParts,
    CreateUpload,
    StagePart,
    CopyPart,
    ListParts,
    ListUploads,
    CompleteUpload,
    AbortUpload,
}

/// A call to a store, as seen by a layer.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The method.
    pub method: Method,
    /// The context of the request.
    pub context: &'a Context,
    /// The object of the request. `None` for buckets, listings and copies.
    pub address: Option<&'a Address>,
    /// The bucket of the request. `None` for the list of buckets, and for copies.
    pub bucket: Option<&'a BucketName>,
}

/// Defines methods of an `impl ObjectStore` that forward to another store.
///
/// - `to` evaluates to the store, or to a smart pointer to it. It may await.
/// - `around`, if given, is evaluated in place of a call. It receives the layer, the [`Call`] and the future of the
///   forwarded call, and has the same result. It may await. It does not apply to `capabilities`, `prewarm`, `min_rtt`,
///   `object_clock`, `accepts` and `close`.
/// - The names of the methods follow.
///
/// ```
/// use async_trait::async_trait;
/// use tradewind_core::metadata::Tags;
/// use tradewind_core::{Address, Context, Error, ObjectStore, Reason, Result};
///
/// /// Rejects changes of tags, and counts all other requests.
/// #[derive(Debug)]
/// struct FixedTags<S> {
///     inner: S,
///     requests: std::sync::atomic::AtomicU64,
/// }
///
/// #[async_trait]
/// impl<S: ObjectStore> ObjectStore for FixedTags<S> {
///     tradewind_core::forward_methods! {
///         to: |layer| &layer.inner;
///         around: |layer, _call, response| {
///             layer.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///             response.await
///         };
///         capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
///         list_buckets, versioning,
///         set_versioning, head, get, stage, delete, list, list_versions, copy, set_classes, object_parts, create_upload, stage_part, copy_part, list_parts,
///         list_uploads, complete_upload, abort_upload, close,
///     }
///
///     async fn set_tags(&self, _: &Context, _: &Address, _: Tags) -> Result<()> {
///         Err(Error::new(Reason::AccessDenied, "tags of this store are fixed"))
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_methods {
    (to: |$layer:ident| $store:expr; around: |$outer:ident, $call:pat_param, $response:ident| $around:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_method!($method, [|$layer| $store; |$outer, $call, $response| $around]);)+
    };
    (to: |$layer:ident| $store:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_method!($method, [|$layer| $store; |_layer, _call, response| response.await]);)+
    };
}

/// One method of [`forward_methods!`]. The signatures are those that `async_trait` generates for the trait.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_method {
    (capabilities, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn capabilities(&self) -> &$crate::store::Capabilities {
            let $layer = self;
            $store.capabilities()
        }
    };
    (prewarm, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn prewarm(&self, bucket: &$crate::BucketName, concurrency: usize) {
            let $layer = self;
            $store.prewarm(bucket, concurrency);
        }
    };
    (min_rtt, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn min_rtt(&self, bucket: &$crate::BucketName) -> Option<::std::time::Duration> {
            let $layer = self;
            $store.min_rtt(bucket)
        }
    };
    (object_clock, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn object_clock(&self, bucket: &$crate::BucketName) -> $crate::store::ObjectClock {
            let $layer = self;
            $store.object_clock(bucket)
        }
    };
    (accepts, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn accepts(&self, address: &$crate::Address, request: &$crate::store::StageRequest) -> bool {
            let $layer = self;
            $store.accepts(address, request)
        }
    };
    (close, [|$layer:ident| $store:expr; $($around:tt)*]) => {
        fn close<'life0, 'async_trait>(
            &'life0 self,
        ) -> ::std::pin::Pin<Box<dyn Future<Output = $crate::Result<()>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let $layer = self;
                $store.close().await
            })
        }
    };
    (create_bucket, $how:tt) => {
        $crate::forward_method!($how CreateBucket, None, Some(bucket); create_bucket<'life1, 'life2>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
        ) -> ());
    };
    (delete_bucket, $how:tt) => {
        $crate::forward_method!($how DeleteBucket, None, Some(bucket); delete_bucket<'life1, 'life2>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
        ) -> ());
    };
    (head_bucket, $how:tt) => {
        $crate::forward_method!($how HeadBucket, None, Some(bucket); head_bucket<'life1, 'life2>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
        ) -> ());
    };
    (list_buckets, $how:tt) => {
        $crate::forward_method!($how ListBuckets, None, None; list_buckets<'life1>(
            context: &'life1 $crate::Context,
        ) -> Vec<$crate::store::BucketInfo>);
    };
    (versioning, $how:tt) => {
        $crate::forward_method!($how Versioning, None, Some(bucket); versioning<'life1, 'life2>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
        ) -> $crate::Versioning);
    };
    (set_versioning, $how:tt) => {
        $crate::forward_method!($how SetVersioning, None, Some(bucket); set_versioning<'life1, 'life2>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName, versioning: $crate::Versioning,
        ) -> ());
    };
    (head, $how:tt) => {
        $crate::forward_method!($how Head, Some(address), Some(&address.bucket); head<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, request: $crate::store::GetRequest,
        ) -> $crate::store::GetResponse<()>);
    };
    (get, $how:tt) => {
        $crate::forward_method!($how Get, Some(address), Some(&address.bucket); get<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, request: $crate::store::GetRequest,
        ) -> $crate::store::GetResponse<$crate::Body>);
    };
    (stage, $how:tt) => {
        $crate::forward_method!($how Stage, Some(address), Some(&address.bucket); stage<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, request: $crate::store::StageRequest,
        ) -> Box<dyn $crate::Staged>);
    };
    (delete, $how:tt) => {
        $crate::forward_method!($how Delete, Some(address), Some(&address.bucket); delete<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, precondition: $crate::Precondition,
        ) -> $crate::store::Deleted);
    };
    (list, $how:tt) => {
        $crate::forward_method!($how List, None, Some(bucket); list<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
            request: &'life3 $crate::listing::ListRequest,
        ) -> $crate::listing::ListPage<$crate::listing::ObjectSummary>);
    };
    (list_versions, $how:tt) => {
        $crate::forward_method!($how ListVersions, None, Some(bucket); list_versions<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
            request: &'life3 $crate::version::ListVersions,
        ) -> $crate::version::VersionsPage);
    };
    (copy, $how:tt) => {
        $crate::forward_method!($how Copy, None, None; copy<'life1>(
            context: &'life1 $crate::Context, request: $crate::store::CopyRequest,
        ) -> $crate::object::Committed);
    };
    (set_tags, $how:tt) => {
        $crate::forward_method!($how SetTags, Some(address), Some(&address.bucket); set_tags<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, tags: $crate::Tags,
        ) -> ());
    };
    (set_classes, $how:tt) => {
        $crate::forward_method!($how SetClasses, Some(address), Some(&address.bucket); set_classes<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address, update: $crate::ClassUpdate,
        ) -> ());
    };
    (redescribe, $how:tt) => {
        $crate::forward_method!($how Redescribe, Some(address), Some(&address.bucket); redescribe<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            change: ::std::sync::Arc<dyn $crate::stored_form::DescriptionChange>,
        ) -> $crate::stored_form::Redescribed);
    };
    (redescribe_upload, $how:tt) => {
        $crate::forward_method!($how RedescribeUpload, Some(address), Some(&address.bucket); redescribe_upload<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            upload: &'life3 $crate::multipart::UploadId,
            change: ::std::sync::Arc<dyn $crate::stored_form::DescriptionChange>,
        ) -> $crate::stored_form::Redescribed);
    };
    (object_parts, $how:tt) => {
        $crate::forward_method!($how ObjectParts, Some(address), Some(&address.bucket); object_parts<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            after: Option<$crate::multipart::PartNumber>, limit: usize,
        ) -> (Vec<$crate::multipart::PartInfo>, bool));
    };
    (create_upload, $how:tt) => {
        $crate::forward_method!($how CreateUpload, Some(address), Some(&address.bucket); create_upload<'life1, 'life2>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            request: $crate::multipart::CreateUpload,
        ) -> $crate::multipart::UploadId);
    };
    (stage_part, $how:tt) => {
        $crate::forward_method!($how StagePart, Some(address), Some(&address.bucket); stage_part<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            upload: &'life3 $crate::multipart::UploadId, number: $crate::multipart::PartNumber,
            request: $crate::store::StageRequest,
        ) -> Box<dyn $crate::Staged>);
    };
    (copy_part, $how:tt) => {
        $crate::forward_method!($how CopyPart, None, None; copy_part<'life1>(
            context: &'life1 $crate::Context, request: $crate::store::CopyPartRequest,
        ) -> $crate::object::Committed);
    };
    (list_parts, $how:tt) => {
        $crate::forward_method!($how ListParts, Some(address), Some(&address.bucket); list_parts<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            upload: &'life3 $crate::multipart::UploadId, after: Option<$crate::multipart::PartNumber>, limit: usize,
        ) -> $crate::multipart::PartsPage);
    };
    (list_uploads, $how:tt) => {
        $crate::forward_method!($how ListUploads, None, Some(bucket); list_uploads<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, bucket: &'life2 $crate::BucketName,
            request: &'life3 $crate::multipart::ListUploads,
        ) -> $crate::multipart::UploadsPage);
    };
    (complete_upload, $how:tt) => {
        $crate::forward_method!($how CompleteUpload, Some(address), Some(&address.bucket); complete_upload<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            upload: &'life3 $crate::multipart::UploadId, request: $crate::multipart::CompleteUpload,
        ) -> $crate::object::Committed);
    };
    (abort_upload, $how:tt) => {
        $crate::forward_method!($how AbortUpload, Some(address), Some(&address.bucket); abort_upload<'life1, 'life2, 'life3>(
            context: &'life1 $crate::Context, address: &'life2 $crate::Address,
            upload: &'life3 $crate::multipart::UploadId,
        ) -> ());
    };
    (
        [|$layer:ident| $store:expr; |$outer:ident, $call:pat_param, $response:ident| $around:expr]
        $method:ident, $address:expr, $bucket:expr;
        $name:ident<$($lifetime:lifetime),+>($context:ident: $context_type:ty, $($argument:ident: $type:ty,)*) -> $output:ty
    ) => {
        fn $name<'life0, $($lifetime,)+ 'async_trait>(
            &'life0 self,
            $context: $context_type,
            $($argument: $type,)*
        ) -> ::std::pin::Pin<Box<dyn Future<Output = $crate::Result<$output>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            $($lifetime: 'async_trait,)+
            Self: 'async_trait,
        {
            Box::pin(async move {
                let $layer = self;
                let store = $store;
                let $response = store.$name($context, $($argument),*);
                let $outer = self;
                let $call = $crate::layer::Call {
                    method: $crate::layer::Method::$method,
                    context: $context,
                    address: $address,
                    bucket: $bucket,
                };
                $around
            })
        }
    };
}
