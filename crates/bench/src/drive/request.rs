//! Executes, times and records one request of a worker, and writes objects.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tradewind_core::cache_status::CacheOutcome;
use tradewind_core::error::{Error, ErrorKind, Reason};
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Context, SendProgress};
use tradewind_pattern::{Content, ContentId};

use super::BenchEnv;
use super::load_state::LoadState;
use super::payload_meter::{PayloadMeter, UploadMeter};
use crate::files::SequentialFile;
use crate::operation::Operation;
use crate::record::{LoadRecord, Payload, RequestTiming};
use crate::samples::FinishedRequest;

/// Bytes per write to a staged object.
pub(crate) const WRITE_BYTES: u64 = 256 << 10;
/// Pause of a closed-loop worker after a failed request: a store that rejects at once would otherwise be called as fast
/// as the generator can. An open loop keeps its rate and does not pause.
pub(crate) const FAILURE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum attempts to create an object that must exist before a load begins.
pub(crate) const MAX_PREPARE_ATTEMPTS: u32 = 3;

/// The kind of a response that does not match what was written.
pub(crate) const WRONG_RESPONSE: &str = "WrongAnswer";

/// A successful request.
pub(crate) struct Completion {
    /// Time of the first byte.
    pub first_byte: Duration,
    /// Time of the last byte. Checking the response afterwards is not counted as the store's time.
    pub last_byte: Duration,
    /// Bytes of the object, and when they passed.
    pub payload: Payload,
    /// Of a read: whether a cache of the store had the object, if it says so.
    pub cache: Option<CacheOutcome>,
}

impl Completion {
    /// A response without a body: first and last byte at the same time.
    pub fn without_body(completed: Duration) -> Self {
        Self::upload(completed, Payload::default())
    }

    /// The response to an upload.
    pub const fn upload(completed: Duration, payload: Payload) -> Self {
        Self { first_byte: completed, last_byte: completed, payload, cache: None }
    }
}

/// A failed request: a short kind for counting, and a message.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub kind: String,
    pub message: String,
    /// The kind of the store's error, if the store failed.
    pub error_kind: Option<ErrorKind>,
    /// The bucket does not exist, so every other request would fail as well.
    pub is_missing_bucket: bool,
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        let kind = format!("{:?}", error.reason());
        let is_missing_bucket = error.reason() == Reason::NoSuchBucket;
        Self { kind, message: error.to_string(), error_kind: Some(error.kind()), is_missing_bucket }
    }
}

/// A failure of a source or target file.
impl From<io::Error> for RequestFailure {
    fn from(error: io::Error) -> Self {
        Self {
            kind: "File".to_owned(),
            message: error.to_string(),
            error_kind: None,
            is_missing_bucket: false,
        }
    }
}

impl RequestFailure {
    /// The response does not match what was written.
    pub fn wrong_response(message: String) -> Self {
        Self::without_error(WRONG_RESPONSE, message)
    }

    /// A failure that no error of the store caused.
    pub fn without_error(kind: &str, message: String) -> Self {
        Self { kind: kind.to_owned(), message, error_kind: None, is_missing_bucket: false }
    }
}

/// Executes a request that was scheduled for `scheduled` and records its result. A response that has arrived must be
/// checked without waiting: once requests are cancelled, a pending check would count as unanswered.
pub(crate) async fn execute_recorded<T>(
    shared: &LoadState<T>,
    record: &mut LoadRecord,
    (operation, scheduled): (Operation, Duration),
    request: impl Future<Output = Result<Completion, RequestFailure>>,
) -> FinishedRequest {
    let started = shared.now();
    let result = tokio::select! {
        biased;
        result = request => result,
        () = shared.cancelled.cancelled() => {
            record.record_truncated(shared.window(), operation, scheduled, shared.now());
            Err(RequestFailure {
                kind: "Unanswered".to_owned(),
                message: format!("{operation} got no response before the end"),
                error_kind: None,
                is_missing_bucket: false,
            })
        }
    };
    let ended = result.as_ref().map_or_else(|_| shared.now(), |completion| completion.last_byte);
    let window = shared.window();
    shared.record_completion(ended);
    let response = match result {
        Ok(Completion { first_byte, payload, cache, .. }) => {
            let bytes = payload.total();
            shared.progress.record_success(bytes);
            let timing = RequestTiming { scheduled, first_byte, ended };
            record.record_success(window, operation, timing, &payload);
            if let Some(cache) = cache {
                record.record_cache(window, operation, ended, cache);
            }
            Ok((first_byte, bytes))
        }
        Err(RequestFailure { kind, message, is_missing_bucket, .. }) => {
            if is_missing_bucket {
                shared.end_without_bucket(&message);
            }
            shared.progress.record_failure();
            record.record_failure(window, operation, ended, &kind, &message);
            Err(kind)
        }
    };
    FinishedRequest { scheduled, started: Some(started), ended, response }
}

/// Writes an object of `size` bytes, from generated content or from a file.
pub(crate) async fn put_object(
    env: &BenchEnv,
    context: &Context,
    address: &Address,
    object: (ContentId, u64),
    file: Option<SequentialFile>,
) -> Result<(), RequestFailure> {
    write_object(env, context, address, object, file, &mut None).await
}

/// Like [`put_object`]; `meter` counts the bytes as they pass. Returns the counted payload.
pub(crate) async fn put_object_metered(
    env: &BenchEnv,
    context: &Context,
    address: &Address,
    object: (ContentId, u64),
    file: Option<SequentialFile>,
    mut meter: PayloadMeter<'_>,
) -> Result<Payload, RequestFailure> {
    let (_, size) = object;
    if size <= WRITE_BYTES {
        // It counts when it is confirmed, so its progress is not needed.
        put_object(env, context, address, object, file).await?;
        meter.record_passed(size);
        return Ok(meter.finish());
    }
    let progress = Arc::new(SendProgress::default());
    let context = context.clone().with_send_progress(progress.clone());
    let mut upload = Some(UploadMeter::new(&mut meter, progress));
    write_object(env, &context, address, object, file, &mut upload).await?;
    if let Some(upload) = upload {
        upload.confirm(size);
    }
    Ok(meter.finish())
}

async fn write_object(
    env: &BenchEnv,
    context: &Context,
    address: &Address,
    (content, size): (ContentId, u64),
    mut file: Option<SequentialFile>,
    upload: &mut Option<UploadMeter<'_, '_>>,
) -> Result<(), RequestFailure> {
    let request = StageRequest { size: Some(size), ..StageRequest::default() };
    let mut staged = env.store.stage(context, address, request).await?;
    let mut offset = 0;
    while offset < size {
        let length = WRITE_BYTES.min(size - offset);
        let buffer = match &mut file {
            Some(file) => file.read(usize::try_from(length).unwrap_or(usize::MAX)).await?,
            None => generate(&env.content, content, offset, length),
        };
        offset += buffer.len() as u64;
        // The last buffer counts when the object is confirmed.
        let accepted = if offset < size { buffer.len() as u64 } else { 0 };
        watch(upload, accepted, staged.write(buffer)).await?;
    }
    let expected = Expected { size: Some(size), ..Expected::default() };
    watch(upload, 0, staged.commit(expected)).await?;
    Ok(())
}

/// Waits for a step of an upload that makes `accepted` more bytes accepted, and counts what passes if there is a meter.
async fn watch<T>(
    upload: &mut Option<UploadMeter<'_, '_>>,
    accepted: u64,
    step: impl Future<Output = T>,
) -> T {
    match upload {
        Some(upload) => upload.watch(accepted, step).await,
        None => step.await,
    }
}

pub(crate) fn generate(generator: &Content, content: ContentId, offset: u64, length: u64) -> Bytes {
    let mut buffer = BytesMut::zeroed(usize::try_from(length).unwrap_or(usize::MAX));
    generator.fill(content, offset, &mut buffer);
    buffer.freeze()
}
