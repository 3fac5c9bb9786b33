//! Every field of every response of a layer is that of the leaf: heads, pages of each kind of listing with one to three
//! entries, parts, copies and deletions, with versions off, on and suspended.
//!
//! A script runs on a leaf and on each layer over such a leaf. Both record their responses as text, in which ids that a store
//! chooses are replaced by their order of appearance.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::listing::ListRequest;
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, ListUploads, PartNumber, UploadId,
};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, Select, StageRequest};
use tradewind_core::testing::{MemoryStore, SimulatedClock, context, pattern, write_all};
use tradewind_core::version::ListVersions;
use tradewind_core::{
    Address, BucketName, ByteRange, ObjectStore, Precondition, ReadConditions, Result, Versioning,
};

use super::stacks::{LAYERS, StackParts, with_layer};

/// Keys of the script: of several depths, in an order that a layer may change.
const KEYS: [&str; 6] = ["a", "b/1", "b/2", "c", "d/e/f", "z"];
const PART_BYTES: usize = 5 << 20;

/// A memory store whose clock stands still, so that times are equal.
fn memory(_: &Path) -> Arc<dyn ObjectStore> {
    MemoryStore::new(SimulatedClock::new())
}

/// The responses of one store.
struct Transcript {
    store: Arc<dyn ObjectStore>,
    bucket: BucketName,
    lines: Vec<String>,
    /// Ids that the store chose, in the order of their appearance.
    ids: Vec<String>,
}

impl Transcript {
    /// Records a response.
    fn record(&mut self, request: &str, response: &Result<impl std::fmt::Debug>) {
        let text = match response {
            Ok(response) => format!("{response:?}"),
            Err(error) => format!("{:?}", error.reason()),
        };
        self.lines.push(format!("{request}: {}", self.normalized(&text)));
    }

    /// Replaces what differs between two stores: ids, and the counter of generations.
    fn normalized(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (number, id) in self.ids.iter().enumerate() {
            text = text.replace(&format!("\"{id}\""), &format!("id{number}"));
        }
        let mut rest = &text[..];
        let mut normalized = String::new();
        while let Some(at) = rest.find("Generation(") {
            let end = at + rest[at..].find(')').unwrap();
            normalized.push_str(&rest[..at]);
            normalized.push_str("Generation(_");
            rest = &rest[end..];
        }
        normalized + rest
    }

    fn address(&self, key: &str) -> Address {
        Address::parse(self.bucket.as_str(), key).unwrap()
    }

    fn learn(&mut self, committed: &Result<Committed>) {
        let version = committed.as_ref().ok().and_then(|committed| committed.version.as_ref());
        self.ids.extend(version.map(ToString::to_string).filter(|id| id != "null"));
    }

    async fn put(&mut self, key: &str, bytes: usize) {
        let request = StageRequest { size: Some(bytes as u64), ..StageRequest::default() };
        let mut staged = self.store.stage(&context(), &self.address(key), request).await.unwrap();
        write_all(&mut *staged, pattern(bytes, 3)).await.unwrap();
        let committed = staged.commit(Expected::default()).await.map(|(committed, _)| committed);
        self.learn(&committed);
        self.record(&format!("PUT {key}"), &committed);
    }

    async fn delete(&mut self, key: &str) {
        let deleted = self.store.delete(&context(), &self.address(key), Precondition::None).await;
        let version = deleted.as_ref().ok().and_then(|deleted| deleted.version.as_ref());
        self.ids.extend(version.map(ToString::to_string).filter(|id| id != "null"));
        self.record(&format!("DELETE {key}"), &deleted);
    }

    async fn copy(&mut self, from: &str, to: &str) {
        let request = CopyRequest {
            source: self.address(from),
            source_conditions: ReadConditions::default(),
            destination: self.address(to),
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::Md5,
        };
        let committed = self.store.copy(&context(), request).await;
        self.learn(&committed);
        self.record(&format!("COPY {from} to {to}"), &committed);
    }

    async fn create_upload(&mut self, key: &str) -> UploadId {
        let created =
            self.store.create_upload(&context(), &self.address(key), CreateUpload::default()).await.unwrap();
        self.ids.push(created.0.clone());
        created
    }

    async fn put_part(&mut self, key: &str, upload: &UploadId, number: i64, bytes: usize) -> CompletePart {
        let number = PartNumber::new(number).unwrap();
        let request = StageRequest { size: Some(bytes as u64), ..StageRequest::default() };
        let address = self.address(key);
        let mut staged = self.store.stage_part(&context(), &address, upload, number, request).await.unwrap();
        write_all(&mut *staged, pattern(bytes, 3)).await.unwrap();
        let committed = staged.commit(Expected::default()).await.map(|(committed, _)| committed);
        self.record(&format!("PUT part {} of {key}", number.get()), &committed);
        CompletePart { number, etag: committed.unwrap().etag, checksum: None }
    }

    /// Heads of all keys, whole and of a range and a part.
    async fn read_objects(&mut self) {
        let part = PartNumber::new(1).unwrap();
        let range = ByteRange::Inclusive { first: 1, last: 2 };
        for key in KEYS.iter().chain(&["absent", "large"]) {
            for select in [Select::Whole, Select::Range(range), Select::Part(part)] {
                let request = GetRequest { select, ..GetRequest::default() };
                let head = self.store.head(&context(), &self.address(key), request.clone()).await;
                self.record(&format!("HEAD {key} {select:?}"), &head.map(|head| (head.info, head.span)));
                let found = self.store.get(&context(), &self.address(key), request).await;
                let found = match found {
                    Ok(mut found) => {
                        while let Some(piece) = found.body.next().await {
                            piece.unwrap();
                        }
                        Ok((found.info, found.span))
                    }
                    Err(error) => Err(error),
                };
                self.record(&format!("GET {key} {select:?}"), &found);
            }
            for limit in 1..=3 {
                let parts = self.store.object_parts(&context(), &self.address(key), None, limit).await;
                self.record(&format!("parts of {key}, {limit}"), &parts);
            }
        }
    }

    /// All pages of all listings, with one to three entries on a page.
    async fn read_listings(&mut self) {
        let bucket = self.bucket.clone();
        for limit in 1..=3 {
            for (prefix, delimiter) in [("", None), ("", Some("/")), ("b/", None), ("d", Some("/"))] {
                let delimiter = delimiter.map(str::to_owned);
                let name = format!("{prefix:?} {delimiter:?} {limit}");
                let mut request =
                    ListRequest { prefix: prefix.to_owned(), delimiter, limit, ..ListRequest::default() };
                loop {
                    let page = self.store.list(&context(), &bucket, &request).await;
                    self.record(&format!("list {name}"), &page);
                    request.after = page.unwrap().next;
                    if request.after.is_none() {
                        break;
                    }
                }
                let mut versions = ListVersions {
                    prefix: prefix.to_owned(),
                    delimiter: request.delimiter.clone(),
                    after: None,
                    limit,
                };
                loop {
                    let page = self.store.list_versions(&context(), &bucket, &versions).await;
                    self.record(&format!("list versions {name}"), &page);
                    versions.after = page.unwrap().next;
                    if versions.after.is_none() {
                        break;
                    }
                }
                let mut uploads = ListUploads {
                    prefix: prefix.to_owned(),
                    delimiter: request.delimiter,
                    limit,
                    ..ListUploads::default()
                };
                loop {
                    let page = self.store.list_uploads(&context(), &bucket, &uploads).await;
                    self.record(&format!("list uploads {name}"), &page);
                    let Some((key, upload)) = page.unwrap().next else { break };
                    (uploads.after_key, uploads.after_upload) = (Some(key), upload);
                }
            }
        }
    }

    async fn read_parts(&mut self, key: &str, upload: &UploadId) {
        for limit in 1..=3 {
            let mut after = None;
            loop {
                let page = self.store.list_parts(&context(), &self.address(key), upload, after, limit).await;
                self.record(&format!("parts of an upload of {key}, {limit}"), &page);
                after = page.unwrap().next;
                if after.is_none() {
                    break;
                }
            }
        }
    }

    async fn run(mut self, versioning: Versioning) -> Vec<String> {
        let bucket = self.bucket.clone();
        self.store.create_bucket(&context(), &bucket).await.unwrap();
        if versioning != Versioning::Off {
            self.store.set_versioning(&context(), &bucket, Versioning::Enabled).await.unwrap();
            self.put("a", 10).await;
            self.put("c", 10).await;
            self.delete("c").await;
            self.store.set_versioning(&context(), &bucket, versioning).await.unwrap();
        }
        for (number, key) in KEYS.iter().enumerate() {
            self.put(key, 20_000 * number).await;
        }
        self.put("b/2", 70_000).await;
        self.copy("b/2", "z").await;
        self.copy("absent", "z").await;
        self.delete("c").await;
        self.delete("absent").await;
        let upload = self.create_upload("large").await;
        let first = self.put_part("large", &upload, 1, PART_BYTES).await;
        let second = self.put_part("large", &upload, 2, 70_000).await;
        self.read_parts("large", &upload).await;
        let request = CompleteUpload { parts: vec![first, second], ..CompleteUpload::default() };
        let committed =
            self.store.complete_upload(&context(), &self.address("large"), &upload, request).await;
        self.learn(&committed);
        self.record("complete", &committed);
        for key in ["a", "d/e/f", "d/g"] {
            let upload = self.create_upload(key).await;
            self.put_part(key, &upload, 3, 100).await;
        }
        self.read_objects().await;
        self.read_listings().await;
        self.store.close().await.unwrap();
        self.lines
    }
}

async fn transcript(store: Arc<dyn ObjectStore>, versioning: Versioning) -> Vec<String> {
    let bucket = BucketName::new("bucket").unwrap();
    Transcript { store, bucket, lines: Vec::new(), ids: Vec::new() }.run(versioning).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layer_answers_as_its_leaf() {
    let directory = tempfile::tempdir().unwrap();
    for versioning in [Versioning::Off, Versioning::Enabled, Versioning::Suspended] {
        let expected = transcript(memory(directory.path()), versioning).await;
        for kind in LAYERS {
            let never = Duration::from_secs(3600);
            let parts = StackParts { directory: directory.path(), store: memory, write_back_delay: never };
            let layer = with_layer(kind, memory(directory.path()), parts).await;
            if versioning != Versioning::Off && !layer.capabilities().versions {
                continue;
            }
            let found = transcript(layer, versioning).await;
            let differing = expected.iter().zip(&found).filter(|(leaf, layer)| leaf != layer);
            let differing: Vec<_> =
                differing.map(|(leaf, layer)| format!("leaf:  {leaf}\nlayer: {layer}\n")).collect();
            assert!(
                differing.is_empty(),
                "{kind:?} with versions {versioning:?}: {} differences\n{}",
                differing.len(),
                differing.iter().take(12).cloned().collect::<String>()
            );
            assert_eq!(found.len(), expected.len(), "{kind:?}: the number of pages");
        }
    }
}
