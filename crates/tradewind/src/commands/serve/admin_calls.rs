//! The calls of the admin API: the status of volumes and work on the cached objects under a prefix, and the paths of
//! all calls. Those about classes are in [`class_calls`](super::class_calls). Documents are objects whose keys may become more; a client ignores those that it does not know.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use tradewind_cache::Cached;
use tradewind_core::{BucketName, Budget, Clock, Error, ErrorKind, ObjectStore as _, Reason};
use tradewind_gateway::admin::api::{AdminApi, AdminCall, AdminResponse};
use tradewind_layers::Transformed;

use super::super::volume;
use super::cache_status::{cache_json, pin_json, write_back_json};
use super::changeable_settings::ChangeableSettings;
use super::layer_status::{deduplicated_json, disk_json};
use super::prefix_work::{MAX_REQUEST_TIME, PrefixAction, PrefixWork, WorkResources};
use super::rewrap_work::{RewrapScope, RewrapWork};
use crate::assemble::{ServedStores, StackedStore};
use crate::settings::Settings;

/// The server as the calls see it.
pub(super) struct AdminCalls {
    /// The settings at the start.
    pub settings: Arc<Settings>,
    pub changeable: Arc<ChangeableSettings>,
    pub served: Arc<ServedStores>,
    /// The memory that work on objects reserves its windows from.
    pub budget: Budget,
    /// The minimum window of a request, which limits the requests to services.
    pub min_window_bytes: usize,
    pub clock: Arc<dyn Clock>,
    /// Ends all calls.
    pub stop: CancellationToken,
    /// Held while the free space of local stores is read.
    pub describing: Arc<tokio::sync::Mutex<()>>,
}

/// A call that cannot be executed.
pub(super) struct Failure {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "InvalidRequest", message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, code: "NotFound", message: message.into() }
    }
}

/// Errors of stores. The operator, and no other client, sees their messages.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "InvalidRequest"),
            ErrorKind::Busy | ErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "Unavailable"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        Self { status, code, message: error.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
        Self { status, code, message: format!("{error:#}") }
    }
}

#[async_trait]
impl AdminApi for AdminCalls {
    async fn call(&self, call: AdminCall) -> AdminResponse {
        self.execute(&call)
            .await
            .unwrap_or_else(|Failure { status, code, message }| AdminResponse::error(status, code, &message))
    }
}

impl fmt::Debug for AdminCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminCalls")
    }
}

impl AdminCalls {
    async fn execute(&self, call: &AdminCall) -> Result<AdminResponse, Failure> {
        if call.query.is_some() {
            return Err(Failure::invalid("the calls of the admin API have no parameters in the query"));
        }
        let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
        let read = || require_method(call, &Method::GET);
        let change = || require_method(call, &Method::POST);
        match *path {
            ["volumes"] => {
                read()?;
                self.volumes().await
            }
            ["volumes", name, "status"] => {
                read()?;
                self.status(name).await
            }
            ["classes"] => {
                read()?;
                Ok(self.classes())
            }
            ["classes", number] => {
                change()?;
                self.change_class(number, &call.body)
            }
            ["reload"] => {
                change()?;
                self.reload(&call.body).await
            }
            ["volumes", name, "evict"] => {
                change()?;
                self.start_work(name, call, PrefixAction::Evict).await
            }
            ["volumes", name, "stage"] => {
                change()?;
                self.start_work(name, call, PrefixAction::Stage).await
            }
            ["volumes", name, "pin"] => {
                change()?;
                self.change_pin(name, call, PinChange::Pin).await
            }
            ["volumes", name, "unpin"] => {
                change()?;
                self.change_pin(name, call, PinChange::Unpin).await
            }
            ["volumes", name, "rewrap"] => {
                change()?;
                self.start_rewrap(name, call).await
            }
            _ => Err(Failure::not_found(
                "the calls are GET /v1/volumes, GET /v1/volumes/NAME/status, GET /v1/classes, POST /v1/classes/N, POST \
                 /v1/reload, and POST /v1/volumes/NAME/evict, stage, pin, unpin and rewrap",
            )),
        }
    }

    async fn volumes(&self) -> Result<AdminResponse, Failure> {
        let all: Vec<Json> =
            self.descriptions().await?.into_iter().map(|volume| self.add_caches(volume)).collect();
        Ok(AdminResponse::document(&json!({ "volumes": all })))
    }

    async fn status(&self, name: &str) -> Result<AdminResponse, Failure> {
        let volume = self.descriptions().await?.into_iter().find(|volume| volume["name"] == name);
        let volume = volume.ok_or_else(|| no_volume(name))?;
        Ok(AdminResponse::document(&self.add_caches(volume)))
    }

    /// Reads the free space of local stores, which hangs with their devices: one thread at most, and none of the runtime.
    async fn descriptions(&self) -> Result<Vec<Json>, Failure> {
        let (settings, describing) = (self.settings.clone(), self.describing.clone().lock_owned().await);
        let described = tokio::task::spawn_blocking(move || {
            let _describing = describing;
            volume::descriptions_json(&settings)
        });
        Ok(described.await.map_err(anyhow::Error::from)??)
    }

    fn add_caches(&self, mut volume: Json) -> Json {
        let caches = volume["name"].as_str().map(|name| self.caches(name)).unwrap_or_default();
        volume["caches"] = caches.iter().map(|cache| cache_json(cache)).collect();
        let write_back = self.served.layers.write_backs.iter().find(|named| volume["name"] == named.volume);
        let transformed = volume["name"].as_str().and_then(|name| self.transformed(name));
        volume["disks"] = self.disks(&volume);
        let deduplicated = self.served.layers.deduplicated.iter().find(|each| volume["name"] == each.volume);
        volume["deduplicated"] =
            deduplicated.map_or(Json::Null, |each| deduplicated_json(&each.layer, self.clock.now()));
        volume["transformed"] = transformed.map_or(Json::Null, |layer| keys_json(&layer));
        volume["write_back"] = write_back.map_or(Json::Null, |named| write_back_json(&named.layer.status()));
        volume
    }

    /// The rotating disks of the stores of a volume that have slices.
    fn disks(&self, volume: &Json) -> Json {
        let tiers = volume["tiers"].as_array().into_iter().flatten();
        let names: Vec<&Json> =
            std::iter::once(&volume["store"]).chain(tiers).map(|store| &store["name"]).collect();
        let own = self.served.stores.iter().filter(|store| names.iter().any(|name| **name == store.name));
        let disk = |store: &StackedStore| {
            store.sliced.as_ref().map(|sliced| disk_json(&store.name, &sliced.disk().report()))
        };
        own.filter_map(disk).collect()
    }

    /// The caches of a volume, the top one first.
    fn caches(&self, volume: &str) -> Vec<Arc<Cached>> {
        let named = self.served.layers.caches.iter().filter(|named| named.volume == volume);
        named.rev().map(|named| named.cache.clone()).collect()
    }

    /// The layer `transformed` of a volume.
    fn transformed(&self, volume: &str) -> Option<Arc<Transformed>> {
        let named = self.served.layers.transformed.iter().find(|named| named.volume == volume)?;
        Some(named.layer.clone())
    }

    /// The objects and the caches of a call.
    fn objects_of(&self, name: &str, call: &AdminCall) -> Result<(ObjectPrefix, Vec<Arc<Cached>>), Failure> {
        let objects = self.prefix_of(name, call)?;
        let caches = self.caches(name);
        if caches.is_empty() {
            return Err(Failure::invalid(format!("the volume {name:?} has no cache")));
        }
        Ok((objects, caches))
    }

    fn check_volume(&self, name: &str) -> Result<(), Failure> {
        let volumes = self.settings.served_volumes().map_err(|problems| anyhow::anyhow!("{problems}"))?;
        match volumes.iter().any(|volume| volume.name == name) {
            true => Ok(()),
            false => Err(no_volume(name)),
        }
    }

    /// The objects of a call, which are in the volume.
    fn prefix_of(&self, name: &str, call: &AdminCall) -> Result<ObjectPrefix, Failure> {
        self.check_volume(name)?;
        let objects = ObjectPrefix::parse(&call.body)?;
        if let Some(volumes) = &self.served.volumes
            && volumes.volume_name(&objects.bucket) != name
        {
            let own = volumes.volume_name(&objects.bucket);
            return Err(Failure::invalid(format!(
                "the bucket {} is in the volume {own:?}, not {name:?}",
                objects.bucket
            )));
        }
        Ok(objects)
    }

    /// Pins or unpins a prefix in all caches of a volume.
    async fn change_pin(
        &self,
        name: &str,
        call: &AdminCall,
        change: PinChange,
    ) -> Result<AdminResponse, Failure> {
        let (ObjectPrefix { bucket, prefix }, caches) = self.objects_of(name, call)?;
        for cache in &caches {
            match change {
                PinChange::Pin => cache.pin(&bucket, &prefix).await?,
                PinChange::Unpin => cache.unpin(&bucket, &prefix).await?,
            }
        }
        let pins: Vec<Json> =
            caches.iter().flat_map(|cache| cache.pins()).map(|pin| pin_json(&pin)).collect();
        Ok(AdminResponse::document(&json!({ "pins": pins })))
    }

    async fn start_work(
        &self,
        name: &str,
        call: &AdminCall,
        action: PrefixAction,
    ) -> Result<AdminResponse, Failure> {
        let (ObjectPrefix { bucket, prefix }, caches) = self.objects_of(name, call)?;
        let resources = self.resources(caches);
        let work = PrefixWork { resources, bucket, prefix, action };
        work.check_bucket().await?;
        Ok(AdminResponse::Lines(work.into_lines()))
    }

    /// Wraps the data keys of a prefix by the current key; with the body `{}`, of all buckets of the volume.
    async fn start_rewrap(&self, name: &str, call: &AdminCall) -> Result<AdminResponse, Failure> {
        self.check_volume(name)?;
        let layer =
            self.transformed(name).filter(|layer| layer.current_key().is_some()).ok_or_else(|| {
                Failure::invalid(format!("the volume {name:?} has no layer \"transformed\" with a key"))
            })?;
        let resources = self.resources(Vec::new());
        let is_all =
            matches!(serde_json::from_slice(&call.body), Ok(Json::Object(fields)) if fields.is_empty());
        let scope = if is_all {
            self.all_buckets(name, &layer, &resources).await?
        } else {
            let ObjectPrefix { bucket, prefix } = self.prefix_of(name, call)?;
            layer.head_bucket(&resources.context(MAX_REQUEST_TIME).await?, &bucket).await?;
            RewrapScope::Prefix { bucket, prefix }
        };
        Ok(AdminResponse::Lines(RewrapWork { resources, layer, scope }.into_lines()))
    }

    /// The buckets of a volume. Others in its store may need its keys: one that was moved to another volume in the
    /// settings may come back.
    async fn all_buckets(
        &self,
        volume: &str,
        layer: &Transformed,
        resources: &WorkResources,
    ) -> Result<RewrapScope, Failure> {
        let all = layer.list_buckets(&resources.context(MAX_REQUEST_TIME).await?).await?;
        let found = all.len();
        let is_own = |bucket: &BucketName| self.served.is_in_volume(volume, bucket);
        let buckets: Vec<BucketName> = all.into_iter().map(|bucket| bucket.name).filter(is_own).collect();
        let is_whole_store = buckets.len() == found;
        Ok(RewrapScope::Buckets { buckets, is_whole_store })
    }

    fn resources(&self, caches: Vec<Arc<Cached>>) -> WorkResources {
        WorkResources {
            store: self.served.store.clone(),
            caches,
            budget: self.budget.clone(),
            min_window_bytes: self.min_window_bytes,
            clock: self.clock.clone(),
            stop: self.stop.clone(),
        }
    }
}

fn keys_json(layer: &Transformed) -> Json {
    json!({ "key": layer.current_key(), "keys": layer.key_names().collect::<Vec<&str>>() })
}

fn no_volume(name: &str) -> Failure {
    Failure::not_found(format!("there is no volume {name:?}"))
}

fn require_method(call: &AdminCall, method: &Method) -> Result<(), Failure> {
    if call.method == *method {
        return Ok(());
    }
    let message = format!("this call is a {method}");
    Err(Failure { status: StatusCode::METHOD_NOT_ALLOWED, code: "MethodNotAllowed", message })
}

/// A change of the pinned prefixes.
#[derive(Debug, Clone, Copy)]
enum PinChange {
    Pin,
    Unpin,
}

/// The body of a call that works on objects: `{"bucket": "photos", "prefix": "2026/"}`.
#[derive(Debug, PartialEq, Eq)]
struct ObjectPrefix {
    bucket: BucketName,
    prefix: String,
}

impl ObjectPrefix {
    fn parse(body: &[u8]) -> Result<Self, Failure> {
        let form = "the body must be a JSON object with the keys bucket and, optionally, prefix, both text";
        let Ok(Json::Object(mut fields)) = serde_json::from_slice(body) else {
            return Err(Failure::invalid(form));
        };
        let bucket = fields.remove("bucket");
        let prefix = fields.remove("prefix").unwrap_or_else(|| json!(""));
        if let Some(unknown) = fields.keys().next() {
            return Err(Failure::invalid(format!("unknown key {unknown:?}; {form}")));
        }
        let (Some(Json::String(bucket)), Json::String(prefix)) = (bucket, prefix) else {
            return Err(Failure::invalid(form));
        };
        let bucket = BucketName::new(&bucket).map_err(|error| match error.reason() {
            Reason::InvalidBucketName => Failure::invalid(format!("{bucket:?} is not the name of a bucket")),
            _ => error.into(),
        })?;
        Ok(Self { bucket, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_names_a_bucket_and_a_prefix() {
        let parsed = |text: &str| ObjectPrefix::parse(text.as_bytes()).map_err(|failure| failure.message);
        let bucket = BucketName::new("photos").unwrap();
        let expected = ObjectPrefix { bucket: bucket.clone(), prefix: "2026/".to_owned() };
        assert_eq!(parsed(r#"{"bucket":"photos","prefix":"2026/"}"#), Ok(expected));
        assert_eq!(parsed(r#"{"bucket":"photos"}"#), Ok(ObjectPrefix { bucket, prefix: String::new() }));
        for (text, message) in [
            ("", "JSON object"),
            ("[]", "JSON object"),
            (r#"{"prefix":"a"}"#, "JSON object"),
            (r#"{"bucket":1}"#, "JSON object"),
            (r#"{"bucket":"photos","prefix":null}"#, "JSON object"),
            (r#"{"bucket":"photos","prefx":"a"}"#, "unknown key \"prefx\""),
            (r#"{"bucket":"A/B"}"#, "not the name of a bucket"),
        ] {
            let failed = parsed(text).unwrap_err();
            assert!(failed.contains(message), "{text}: {failed}");
        }
    }
}
