//! Verification of a restarted server with nothing in flight: every key by GET, every bucket by LIST, every unfinished
//! upload by its parts. All must agree with the model and with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::content::Content;
use super::model::{Model, Value};
use super::random::Random;
use super::s3::{Request, S3};
use super::sign::Credentials;
use super::workload::{BUCKETS, is_upload_key, observe};
use super::xml;

/// The properties of an object that GET and LIST must both return.
#[derive(Debug, PartialEq, Eq)]
struct ObjectFacts {
    size: usize,
    etag: String,
}

/// Compares the server with the model and resolves unknown outcomes in the model. Returns the errors.
pub fn verify(address: SocketAddr, credentials: &Credentials, model: &Model, seed: u64) -> Vec<String> {
    let mut verifier = Verifier {
        client: S3::new(address, credentials.clone()),
        random: Random::new(seed),
        model,
        wrong: Vec::new(),
    };
    let mut there: BTreeMap<String, ObjectFacts> = BTreeMap::new();
    for key in model.keys() {
        if let Some(shown) = verifier.key(&key) {
            there.insert(key, shown);
        }
    }
    for bucket in BUCKETS {
        let prefix = format!("{bucket}/");
        let expected: BTreeMap<String, &ObjectFacts> = there
            .iter()
            .filter_map(|(key, shown)| Some((key.strip_prefix(&prefix)?.to_owned(), shown)))
            .collect();
        verifier.listing(bucket, &expected);
        verifier.prefixes(bucket, expected.keys());
    }
    verifier.versions();
    verifier.uploads();
    verifier.remove_completed(&there);
    verifier.wrong
}

struct Verifier<'a> {
    client: S3,
    random: Random,
    model: &'a Model,
    wrong: Vec<String>,
}

impl Verifier<'_> {
    /// Verifies one key or bucket, and updates the model.
    fn key(&mut self, key: &str) -> Option<ObjectFacts> {
        let read_start = self.model.begin_read();
        if !key.contains('/') {
            let request = Request { method: "HEAD", path: key, ..Request::default() };
            let status = self.client.send(request).map(|response| response.status);
            let observed = match status {
                Ok(200) => Value::Present(Content { id: 0, size: 0 }),
                Ok(404) => Value::Absent,
                other => {
                    self.wrong.push(format!("HEAD of bucket {key}: {other:?}"));
                    return None;
                }
            };
            self.wrong.extend(self.model.check(key, observed, read_start).err());
            self.model.set_observed(key, observed);
            return None;
        }
        let response = match self.client.get(key) {
            Ok(response) => response,
            Err(error) => {
                self.wrong.push(format!("GET of {key:?}: {error}"));
                return None;
            }
        };
        let observed = match observe(&response) {
            Ok(observed) => observed,
            Err(why) => {
                self.wrong.push(format!("{key:?}: {why}"));
                return None;
            }
        };
        self.wrong.extend(self.model.check(key, observed, read_start).err());
        self.model.set_observed(key, observed);
        let Value::Present(content) = observed else { return None };
        if content.size > 0 && self.random.chance(30) {
            self.range(key, &response.body);
        }
        Some(ObjectFacts { size: content.size, etag: response.header("etag").unwrap_or_default().to_owned() })
    }

    fn range(&mut self, key: &str, whole: &[u8]) {
        let first = usize::try_from(self.random.below(whole.len() as u64)).unwrap();
        let last = first + usize::try_from(self.random.below((whole.len() - first) as u64)).unwrap();
        let headers = vec![("range", format!("bytes={first}-{last}"))];
        match self.client.send(Request { method: "GET", path: key, headers, ..Request::default() }) {
            Ok(response) if response.status == 206 && response.body == whole[first..=last] => {}
            Ok(response) => self.wrong.push(format!(
                "bytes {first}-{last} of {key:?}: status {} with {} wrong bytes",
                response.status,
                response.body.len()
            )),
            Err(error) => self.wrong.push(format!("a range of {key:?}: {error}")),
        }
    }

    /// All pages of a listing with the given parameters.
    fn pages(&mut self, bucket: &str, parameters: &[(&'static str, &str)]) -> Vec<String> {
        let mut pages = Vec::new();
        let mut token = None;
        loop {
            let mut query = vec![("list-type", "2".to_owned()), ("encoding-type", "url".to_owned())];
            query.extend(parameters.iter().map(|(name, value)| (*name, (*value).to_owned())));
            query.extend(token.map(|token| ("continuation-token", token)));
            let request = Request { method: "GET", path: bucket, query, ..Request::default() };
            match self.client.send(request) {
                Ok(response) if response.status == 200 => {
                    let text = response.text();
                    token = xml::text(&text, "NextContinuationToken");
                    pages.push(text);
                    if token.is_none() {
                        return pages;
                    }
                }
                other => {
                    self.wrong.push(format!("LIST of {bucket}: {other:?}"));
                    return pages;
                }
            }
        }
    }

    fn listing(&mut self, bucket: &str, expected: &BTreeMap<String, &ObjectFacts>) {
        let mut listed = Vec::new();
        for page in self.pages(bucket, &[("max-keys", "7")]) {
            for entry in xml::elements(&page, "Contents") {
                let key = xml::decode_url(&xml::text(entry, "Key").unwrap_or_default());
                let size = xml::text(entry, "Size").and_then(|size| size.parse().ok()).unwrap_or(usize::MAX);
                listed.push((key, ObjectFacts { size, etag: xml::text(entry, "ETag").unwrap_or_default() }));
            }
        }
        if !listed.is_sorted_by(|a, b| a.0 < b.0) {
            self.wrong.push(format!("LIST of {bucket} is not sorted"));
        }
        let listed: BTreeMap<String, &ObjectFacts> =
            listed.iter().map(|(key, shown)| (key.clone(), shown)).collect();
        for (key, shown) in expected {
            if listed.get(key) != Some(shown) {
                self.wrong.push(format!("{bucket}/{key}: GET returns {shown:?}, LIST {:?}", listed.get(key)));
            }
        }
        for key in listed.keys().filter(|key| !expected.contains_key(*key)) {
            self.wrong.push(format!("{bucket}/{key} is listed but cannot be read"));
        }
    }

    fn prefixes<'k>(&mut self, bucket: &str, keys: impl Iterator<Item = &'k String>) {
        let expected: BTreeSet<String> =
            keys.filter_map(|key| Some(format!("{}/", key.split_once('/')?.0))).collect();
        let pages = self.pages(bucket, &[("delimiter", "/")]);
        let listed: BTreeSet<String> = pages
            .iter()
            .flat_map(|page| xml::elements(page, "CommonPrefixes"))
            .filter_map(|entry| xml::text(entry, "Prefix"))
            .map(|prefix| xml::decode_url(&prefix))
            .collect();
        if listed != expected {
            self.wrong.push(format!("common prefixes of {bucket}: {listed:?}, not {expected:?}"));
        }
    }

    /// Verifies the versioning of the buckets, and every version that was acknowledged and not deleted.
    fn versions(&mut self) {
        for bucket in BUCKETS {
            let query = vec![("versioning", String::new())];
            let request = Request { method: "GET", path: bucket, query, ..Request::default() };
            let status =
                self.client.send(request).ok().and_then(|response| xml::text(&response.text(), "Status"));
            if status.as_deref() != self.model.versioning() {
                self.wrong.push(format!(
                    "the versioning of {bucket} is {status:?}, not {:?}",
                    self.model.versioning()
                ));
            }
        }
        for version in self.model.versions() {
            let query = vec![("versionId", version.id.clone())];
            let request = Request { method: "GET", path: &version.key, query, ..Request::default() };
            let observed = self.client.send(request).map_err(|error| error.to_string());
            let observed = observed.and_then(|response| observe(&response));
            if observed != Ok(Value::Present(version.content)) {
                self.wrong.push(format!("version {version:?} is {observed:?}"));
            }
        }
    }

    /// Verifies that every upload exists with all its acknowledged parts. If the outcome of its completion is unknown,
    /// either the upload or its object must exist, not both; no other request writes its key.
    fn uploads(&mut self) {
        for upload in self.model.take_uploads() {
            let request = Request {
                method: "GET",
                path: &upload.key,
                query: vec![("uploadId", upload.id.clone())],
                ..Request::default()
            };
            let response = match self.client.send(request) {
                Ok(response) => response,
                Err(error) => {
                    self.wrong.push(format!("parts of an upload to {:?}: {error}", upload.key));
                    continue;
                }
            };
            let exists = response.status == 200;
            if upload.is_completing {
                let read_start = self.model.begin_read();
                let is_done =
                    self.model.check(&upload.key, Value::Present(upload.content), read_start).is_ok();
                if exists && is_done {
                    self.wrong.push(format!("both the upload to {:?} and its object exist", upload.key));
                }
                if !exists && !is_done {
                    let code = response.code();
                    self.wrong.push(format!(
                        "neither the upload to {:?} nor its object exists: {code}",
                        upload.key
                    ));
                }
                if exists {
                    self.abort(&upload.key, &upload.id);
                }
                continue;
            }
            let text = response.text();
            let listed = xml::elements(&text, "Part");
            for part in &upload.parts {
                let is_listed = listed.iter().any(|entry| {
                    xml::text(entry, "PartNumber") == Some(part.number.to_string())
                        && xml::text(entry, "Size") == Some(part.size.to_string())
                        && xml::text(entry, "ETag").as_ref() == Some(&part.etag)
                });
                if !is_listed {
                    self.wrong.push(format!("upload to {:?} has lost {part:?}: {text}", upload.key));
                }
            }
            if !exists {
                self.wrong.push(format!("the upload to {:?} is lost: {}", upload.key, response.code()));
                continue;
            }
            self.model.return_upload(upload);
        }
    }

    /// Deletes the objects of completed uploads, with their versions: each is written only once, so their number would
    /// grow.
    fn remove_completed(&mut self, there: &BTreeMap<String, ObjectFacts>) {
        for key in self.model.keys().iter().filter(|key| is_upload_key(key)) {
            if there.contains_key(key) {
                self.delete_versions(key);
            }
            self.model.forget(key);
        }
    }

    /// Deletes the only object of a key. With versioning, its version is deleted, so that no delete marker is left.
    fn delete_versions(&mut self, key: &str) {
        let version =
            self.client.get(key).ok().and_then(|response| {
                response.header("x-amz-version-id").map(|id| ("versionId", id.to_owned()))
            });
        let query = version.into_iter().collect();
        match self.client.send(Request { method: "DELETE", path: key, query, ..Request::default() }) {
            Ok(response) if response.status == 204 => {}
            other => self.wrong.push(format!("deleting {key:?}: {other:?}")),
        }
    }

    fn abort(&mut self, key: &str, id: &str) {
        let query = vec![("uploadId", id.to_owned())];
        match self.client.send(Request { method: "DELETE", path: key, query, ..Request::default() }) {
            Ok(response) if response.status == 204 => {}
            other => self.wrong.push(format!("aborting the upload to {key:?}: {other:?}")),
        }
    }
}
