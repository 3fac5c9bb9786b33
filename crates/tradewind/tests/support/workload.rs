//! Workers that write, delete, read and upload in parts, all on the same keys, until the server is crashed. They report
//! their requests and the responses to the model.
//!
//! A seed determines the actions of each worker, not their interleaving.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::content::Content;
use super::model::{Model, Part, Upload, Value};
use super::random::Random;
use super::s3::{Request, Response, S3};
use super::sign::Credentials;
use super::xml;

pub const BUCKETS: [&str; 2] = ["crash-one", "crash-two"];
/// The header with the number of a write.
pub const WRITE_HEADER: &str = "x-amz-meta-write";
/// The minimum size of a part that is not the last.
const PART_BYTES: usize = 5 << 20;

/// The state shared by the workers of a run.
#[derive(Debug)]
pub struct Workload<'a> {
    pub address: SocketAddr,
    pub credentials: Credentials,
    pub model: &'a Model,
    /// Set immediately before the server is crashed: errors are expected from then on.
    pub is_crashed: AtomicBool,
    /// Set before the device is filled: writes may fail from then on.
    pub was_full: AtomicBool,
}

/// The reason why a worker ended.
#[derive(Debug)]
enum WorkerEnd {
    /// The connection was lost.
    Disconnected(io::Error),
    /// The server violated a guarantee.
    Wrong(String),
}

impl From<io::Error> for WorkerEnd {
    fn from(error: io::Error) -> Self {
        Self::Disconnected(error)
    }
}

type Step = Result<(), WorkerEnd>;

/// A key. There are few, so that they are overwritten often, and some contain unusual characters.
pub fn key_for(number: u64) -> String {
    let bucket = BUCKETS[usize::try_from(number % 2).unwrap()];
    match number % 7 {
        0 => format!("{bucket}/plain-{number}"),
        1 => format!("{bucket}/deep/er/{number}"),
        2 => format!("{bucket}/deep/{number} with space & more"),
        3 => format!("{bucket}/größe/{number}"),
        4 => format!("{bucket}//{number}//"),
        5 => format!("{bucket}/../{number}"),
        _ => format!("{bucket}/{number}+{}", "long".repeat(60)),
    }
}

const KEYS: u64 = 96;

/// A key that only one upload writes: after a restart, either the upload or its object exists.
fn upload_key(key: &str, write: u64) -> String {
    format!("{key}{UPLOAD_MARK}{write}")
}

/// Contained in the keys of uploads and in no others.
const UPLOAD_MARK: &str = "-upload-";

pub fn is_upload_key(key: &str) -> bool {
    key.contains(UPLOAD_MARK)
}

/// The value of a key in the response to a GET.
pub fn observe(response: &Response) -> Result<Value, String> {
    match response.status {
        404 if response.code() == "NoSuchKey" => Ok(Value::Absent),
        200 => {
            let id = response.header(WRITE_HEADER).and_then(|id| id.parse().ok());
            let id = id.ok_or("the object lacks the metadata with which it was written")?;
            let content = Content { id, size: response.body.len() };
            if content.bytes() != response.body {
                return Err(format!("the {} bytes differ from those of write {id}", content.size));
            }
            Ok(Value::Present(content))
        }
        _ => Err(format!("unexpected response {}: {}", response.status, response.code())),
    }
}

/// Runs `workers` workers until `strike` has crashed the server. Returns the errors.
pub fn run(workload: &Workload<'_>, workers: u64, seed: u64, strike: impl FnOnce()) -> Vec<String> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|number| scope.spawn(move || worker(workload, seed.wrapping_mul(1000) + number, number)))
            .collect();
        strike();
        handles.into_iter().filter_map(|handle| handle.join().expect("a worker panicked")).collect()
    })
}

fn worker(workload: &Workload<'_>, seed: u64, number: u64) -> Option<String> {
    let mut worker = Worker {
        shared: workload,
        client: S3::new(workload.address, workload.credentials.clone()),
        random: Random::new(seed),
        number,
    };
    loop {
        let ended = match worker.step() {
            Ok(()) => continue,
            Err(ended) => ended,
        };
        let was_struck = workload.is_crashed.load(Ordering::SeqCst);
        match ended {
            WorkerEnd::Disconnected(_) if was_struck => return None,
            WorkerEnd::Disconnected(error) => {
                return Some(format!("a connection was lost before the crash: {error}"));
            }
            WorkerEnd::Wrong(why) => return Some(why),
        }
    }
}

struct Worker<'a> {
    shared: &'a Workload<'a>,
    client: S3,
    random: Random,
    number: u64,
}

impl Worker<'_> {
    fn step(&mut self) -> Step {
        let key = key_for(self.random.below(KEYS));
        match self.random.below(100) {
            0..42 => self.put(&key),
            42..58 => self.delete(&key),
            58..62 => self.delete_many(),
            62..74 => self.read(&key),
            74..82 => self.delete_version(),
            82..88 => self.begin_upload(&key),
            88..94 => match self.shared.model.take_upload() {
                Some(upload) => self.resume_upload(upload),
                None => self.put(&key),
            },
            94..97 => self.create_and_delete_bucket(),
            _ => self.list(&key),
        }
    }

    fn size(&mut self) -> usize {
        let bound = match self.random.below(100) {
            0..5 => 1,
            5..70 => 4 << 10,
            70..97 => 200 << 10,
            _ => 3 << 20,
        };
        usize::try_from(self.random.below(bound)).unwrap()
    }

    fn content(&mut self) -> Content {
        Content { id: self.shared.model.next_id(), size: self.size() }
    }

    /// Handles an unsuccessful response to a write. It is accepted after a crash or on a full device; the outcome of
    /// the write is then unknown.
    fn failed_write(&self, what: &str, response: &Response) -> Step {
        let has_failed = response.status >= 500 || response.text().contains("<Error>");
        let flags = [&self.shared.is_crashed, &self.shared.was_full];
        if has_failed && flags.iter().any(|flag| flag.load(Ordering::SeqCst)) {
            return Ok(());
        }
        Err(WorkerEnd::Wrong(format!("{what}: status {}: {}", response.status, response.text())))
    }

    /// Handles an unsuccessful response to a read, which must work on a full device.
    fn failed_read(&self, what: &str, response: &Response) -> Step {
        if self.shared.is_crashed.load(Ordering::SeqCst) && response.status >= 500 {
            return Ok(());
        }
        Err(WorkerEnd::Wrong(format!("{what}: status {}: {}", response.status, response.text())))
    }

    fn put(&mut self, key: &str) -> Step {
        let content = self.content();
        let body = content.bytes();
        let mut headers = vec![(WRITE_HEADER, content.id.to_string())];
        if self.random.chance(10) {
            headers.push(("if-none-match", "*".to_owned()));
        }
        let ticket = self.shared.model.record_sent(key, Value::Present(content));
        let request = Request { method: "PUT", path: key, headers, body: &body, ..Request::default() };
        let response = self.client.send(request)?;
        match response.status {
            200 => {
                self.shared.model.record_success(&ticket);
                if let Some(id) = response.header("x-amz-version-id").filter(|id| *id != "null") {
                    self.shared.model.keep_version(key, id, content);
                }
            }
            409 | 412 => self.shared.model.record_rejected(&ticket),
            _ => return self.failed_write("a PUT", &response),
        }
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Step {
        let ticket = self.shared.model.record_sent(key, Value::Absent);
        let response = self.client.delete(key)?;
        if response.status != 204 {
            return self.failed_write("a DELETE", &response);
        }
        self.shared.model.record_success(&ticket);
        Ok(())
    }

    /// Deletes some versions that are not current. The outcome of an interrupted request does not matter: the model has
    /// forgotten the version.
    fn delete_version(&mut self) -> Step {
        for _ in 0..6 {
            let Some(version) = self.shared.model.take_superseded_version(self.random.next()) else { break };
            let query = vec![("versionId", version.id)];
            let request = Request { method: "DELETE", path: &version.key, query, ..Request::default() };
            let response = self.client.send(request)?;
            if response.status != 204 {
                return self.failed_write("deleting a version", &response);
            }
        }
        Ok(())
    }

    fn delete_many(&mut self) -> Step {
        let mut keys: Vec<String> = (0..5).map(|_| key_for(self.random.below(KEYS / 2) * 2)).collect();
        keys.sort();
        keys.dedup();
        let bucket = BUCKETS[0];
        let names: Vec<&str> =
            keys.iter().filter_map(|key| key.split_once('/')).map(|(_, name)| name).collect();
        let objects: String =
            names.iter().map(|name| format!("<Object><Key>{}</Key></Object>", xml::escape(name))).collect();
        let body = format!("<Delete>{objects}</Delete>");
        let tickets: Vec<_> =
            keys.iter().map(|key| self.shared.model.record_sent(key, Value::Absent)).collect();
        let response = self.client.send(Request {
            method: "POST",
            path: bucket,
            query: vec![("delete", String::new())],
            headers: vec![(
                "x-amz-checksum-sha256",
                base64(&hex::decode(super::sign::sha256_hex(body.as_bytes())).expect("hexadecimal")),
            )],
            body: body.as_bytes(),
        })?;
        // Each key has its own result.
        let text = response.text();
        let entries = xml::elements(&text, "Deleted");
        let deleted: Vec<String> = entries.iter().filter_map(|entry| xml::text(entry, "Key")).collect();
        for (name, ticket) in names.iter().zip(&tickets) {
            if deleted.iter().any(|deleted| deleted == name) {
                self.shared.model.record_success(ticket);
            }
        }
        if response.status != 200 || deleted.len() != tickets.len() {
            return self.failed_write("a multi-object delete", &response);
        }
        Ok(())
    }

    fn read(&mut self, key: &str) -> Step {
        let read_start = self.shared.model.begin_read();
        let response = self.client.get(key)?;
        if !matches!(response.status, 200 | 404) {
            return self.failed_read("a GET", &response);
        }
        let seen = observe(&response).map_err(|why| WorkerEnd::Wrong(format!("{key:?}: {why}")))?;
        self.shared.model.check(key, seen, read_start).map_err(WorkerEnd::Wrong)
    }

    fn list(&mut self, key: &str) -> Step {
        let (bucket, _) = key.split_once('/').expect("keys have buckets");
        let response = self.client.send(Request {
            method: "GET",
            path: bucket,
            query: vec![("list-type", "2".to_owned()), ("prefix", "deep/".to_owned())],
            ..Request::default()
        })?;
        if response.status == 200 { Ok(()) } else { self.failed_read("a LIST", &response) }
    }

    /// Creates, and perhaps deletes, a bucket of this worker's own.
    fn create_and_delete_bucket(&mut self) -> Step {
        let bucket = format!("crash-own-{}", self.number);
        let present = Value::Present(Content { id: 0, size: 0 });
        let ticket = self.shared.model.record_sent(&bucket, present);
        let response = self.client.put(&bucket, &[])?;
        if !matches!(response.status, 200 | 409) {
            return self.failed_write("creating a bucket", &response);
        }
        self.shared.model.record_success(&ticket);
        if self.random.chance(50) {
            let ticket = self.shared.model.record_sent(&bucket, Value::Absent);
            let response = self.client.delete(&bucket)?;
            if response.status != 204 {
                return self.failed_write("deleting a bucket", &response);
            }
            self.shared.model.record_success(&ticket);
        }
        Ok(())
    }

    fn begin_upload(&mut self, key: &str) -> Step {
        let mut content = self.content();
        if self.random.chance(10) {
            content.size += PART_BYTES;
        }
        let key = upload_key(key, content.id);
        let response = self.client.send(Request {
            method: "POST",
            path: &key,
            query: vec![("uploads", String::new())],
            headers: vec![(WRITE_HEADER, content.id.to_string())],
            ..Request::default()
        })?;
        let id = xml::text(&response.text(), "UploadId");
        let (200, Some(id)) = (response.status, id) else {
            return self.failed_write("creating an upload", &response);
        };
        let upload = Upload { key, id, content, parts: Vec::new(), is_completing: false };
        if self.random.chance(30) {
            self.shared.model.return_upload(upload);
            return Ok(());
        }
        self.resume_upload(upload)
    }

    /// Uploads the missing parts and completes. If it does not complete, the model gets the upload back with its
    /// acknowledged parts.
    fn resume_upload(&mut self, mut upload: Upload) -> Step {
        let result = self.finish(&mut upload);
        if !matches!(result, Ok(true)) {
            self.shared.model.return_upload(upload);
        }
        result.map(|_| ())
    }

    /// Uploads the missing parts. Returns true if the upload was completed.
    fn finish(&mut self, upload: &mut Upload) -> Result<bool, WorkerEnd> {
        let bytes = upload.content.bytes();
        let first = if bytes.len() > PART_BYTES { PART_BYTES } else { bytes.len() };
        let slices =
            if first < bytes.len() { vec![&bytes[..first], &bytes[first..]] } else { vec![&bytes[..]] };
        for (number, slice) in (1_u32..).zip(&slices) {
            if upload.parts.iter().any(|part| part.number == number) {
                continue;
            }
            // A part may be replaced; only the last version counts.
            if self.random.chance(10) && self.put_part(upload, number, b"not this").map(drop_part)? {
                return Ok(false);
            }
            match self.put_part(upload, number, slice)? {
                Some(part) => upload.parts.push(part),
                None => return Ok(false),
            }
            if self.random.chance(10) {
                return Ok(false);
            }
        }
        self.complete(upload)
    }

    /// Uploads a part; `None` if it failed because the server was crashed or the device is full.
    fn put_part(&mut self, upload: &Upload, number: u32, body: &[u8]) -> Result<Option<Part>, WorkerEnd> {
        let response = self.client.send(Request {
            method: "PUT",
            path: &upload.key,
            query: vec![("partNumber", number.to_string()), ("uploadId", upload.id.clone())],
            body,
            ..Request::default()
        })?;
        match (response.status, response.header("etag")) {
            (200, Some(etag)) => Ok(Some(Part { number, size: body.len(), etag: etag.to_owned() })),
            _ => self.failed_write("a part", &response).map(|()| None),
        }
    }

    fn complete(&mut self, upload: &mut Upload) -> Result<bool, WorkerEnd> {
        let parts: String = upload
            .parts
            .iter()
            .map(|part| {
                let etag = xml::escape(&part.etag);
                format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", part.number)
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        upload.is_completing = true;
        let ticket = self.shared.model.record_sent(&upload.key, Value::Present(upload.content));
        let response = self.client.send(Request {
            method: "POST",
            path: &upload.key,
            query: vec![("uploadId", upload.id.clone())],
            body: body.as_bytes(),
            ..Request::default()
        })?;
        if response.status != 200 || xml::text(&response.text(), "ETag").is_none() {
            return self.failed_write("completing an upload", &response).map(|()| false);
        }
        self.shared.model.record_success(&ticket);
        Ok(true)
    }
}

fn drop_part(part: Option<Part>) -> bool {
    part.is_none()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
