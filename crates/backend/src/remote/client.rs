//! Sends requests to one service over pooled connections, again where that is safe and likely to help. What is rare lies
//! in boxes of its own: a request's future is made and moved for each request, whatever comes of it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Clock, Context, Observation, Timestamp, random};

use super::answer::Answer;
use super::payload::{Held, Payload};
use super::pool::{Connection, Pool};
use super::query::Query;
use tradewind_model::retry::{RetryBudget, RetryOptions};
use tradewind_wire::sigv4::ChunkSigner;

/// The most of an error's body that is read.
const MOST_REFUSAL_BYTES: usize = 64 << 10;
/// Sending a body may take this long per KiB, on top of the time that the answer may take.
const TIME_PER_KIB: Duration = Duration::from_millis(16);
/// So much longer may an answer take that the store works for.
const TIMES_OF_WORK: u32 = 10;

/// What was asked for, as far as it explains a refusal that says nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Service,
    Bucket,
    Object,
    Upload,
}

/// A refusal, as the protocol reads it.
pub(crate) struct Refused {
    pub error: Error,
    /// The store may take it later.
    pub is_passing: bool,
    /// It was certainly refused before anything was done.
    pub is_before_all: bool,
}

/// What is one protocol's own.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// What places in such a service begin with, for people: `s3://`.
    fn scheme(&self) -> &'static str;

    /// The path and query of a request, and its `Host`.
    fn address(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)>;

    /// Says in the headers who asks. Called anew for each attempt: it may come long after the one before it. Answers
    /// what signs the body's chunks, where the headers say that they are signed.
    fn authorize(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &Payload,
        now: Timestamp,
    ) -> Result<Option<ChunkSigner>>;

    /// What an answer without success means. `what` says what was asked for, for people.
    fn refuse(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        subject: Subject,
        what: &str,
    ) -> Refused;
}

/// A client of one service. Its clones share connections and the retry budget.
#[derive(Clone)]
pub(crate) struct Client {
    pub protocol: Arc<dyn Protocol>,
    /// The service's name, as observations say it.
    pub peer: Arc<str>,
    pub pool: Arc<Pool>,
    pub retries: RetryOptions,
    pub budget: Arc<RetryBudget>,
    pub clock: Arc<dyn Clock>,
    /// From the last byte of the request to the first of the answer.
    pub answer_time: Duration,
    /// Between two pieces of an answer.
    pub stall_time: Duration,
}

/// A request.
pub(crate) struct Call<'a> {
    pub method: Method,
    pub subject: Subject,
    pub bucket: Option<&'a str>,
    pub key: Option<&'a str>,
    pub query: Query,
    pub headers: HeaderMap,
    pub payload: Held,
    /// Carrying it out twice is as good as once.
    pub may_repeat: bool,
    /// It is asked while another answer is read.
    pub holds_one: bool,
    /// The store works on it before it answers: a copy, a completion.
    pub is_work: bool,
    /// Set where an attempt may have been carried out although its answer did not say so.
    pub doubt: Arc<AtomicBool>,
}

impl<'a> Call<'a> {
    /// A request about a bucket.
    pub fn bucket(method: Method, bucket: &'a BucketName) -> Self {
        Self { subject: Subject::Bucket, bucket: Some(bucket.as_str()), ..Self::service(method) }
    }

    /// A request about an object.
    pub fn object(method: Method, bucket: &'a BucketName, key: &'a str) -> Self {
        Self { subject: Subject::Object, key: Some(key), ..Self::bucket(method, bucket) }
    }

    /// A request about something in a place that is no bucket of the port's.
    pub fn within(method: Method, subject: Subject, place: &'a str, key: Option<&'a str>) -> Self {
        Self { subject, bucket: Some(place), key, ..Self::service(method) }
    }

    /// A request about the service.
    pub fn service(method: Method) -> Self {
        let may_repeat = method != Method::POST;
        Self {
            method,
            subject: Subject::Service,
            bucket: None,
            key: None,
            query: Query::default(),
            headers: HeaderMap::new(),
            payload: Held::default(),
            may_repeat,
            holds_one: false,
            is_work: false,
            doubt: Arc::default(),
        }
    }
}

/// A request that was sent, as far as errors and observations tell of it.
pub(crate) struct About {
    scheme: &'static str,
    endpoint: Arc<str>,
    method: Method,
    bucket: Option<Box<str>>,
    key: Option<Box<str>>,
    subject: Subject,
    is_work: bool,
    /// Of its body, in bytes.
    length: u64,
    /// So many of them may be on their way when the answer begins to be waited for.
    pub unseen: u64,
    begun: Duration,
    asked: Duration,
}

impl About {
    /// What it asks for, and of whom.
    pub fn what(&self) -> String {
        let bucket = self.bucket.as_deref().unwrap_or_default();
        let key = self.key.as_ref().map(|key| format!("/{key}")).unwrap_or_default();
        format!("{} {}{bucket}{key} on {}", self.method, self.scheme, self.endpoint)
    }
}

/// Why an attempt failed.
pub(crate) struct Failed {
    pub error: Error,
    /// Nothing of it can have been carried out.
    is_unsent: bool,
    /// It may succeed if it is sent again.
    is_passing: bool,
}

impl Failed {
    pub(super) fn unsent(error: Error) -> Self {
        let is_passing = error.kind().is_retryable();
        Self { error, is_unsent: true, is_passing }
    }
}

impl Client {
    /// Sends a request until it is answered with success, refused for good, or not worth another attempt.
    pub async fn send(&self, context: &Context, call: &Call<'_>) -> Result<Answer> {
        let begun = self.clock.now();
        let mut attempt = 1;
        loop {
            self.pool.check()?;
            match context.guard(self.attempt(call, begun)).await? {
                Ok(answer) => {
                    self.budget.earn();
                    return Ok(answer);
                }
                Err(failed) => {
                    if failed.is_passing && !failed.is_unsent {
                        call.doubt.store(true, Ordering::Relaxed);
                    }
                    Box::pin(self.wait(context, failed, call.may_repeat, attempt)).await?;
                }
            }
            attempt += 1;
        }
    }

    /// Waits before another attempt, or fails where there is to be none.
    pub(super) async fn wait(
        &self,
        context: &Context,
        failed: Failed,
        may_repeat: bool,
        attempt: u32,
    ) -> Result<()> {
        let is_safe = failed.is_unsent || may_repeat;
        if !is_safe || !failed.is_passing {
            return Err(failed.error);
        }
        if attempt >= self.retries.attempts || !self.budget.spend() {
            return Err(failed.error.after_retries());
        }
        tracing::debug!(error = %failed.error, attempt, "a request is sent again");
        self.rest(context, attempt + 1).await
    }

    /// Waits as long as is proper before an attempt, the first of which is number 1.
    pub async fn rest(&self, context: &Context, attempt: u32) -> Result<()> {
        let delay = self.retries.delay(attempt, random::for_delay());
        context.guard(self.clock.sleep_until(self.clock.now() + delay)).await
    }

    async fn attempt(&self, call: &Call<'_>, begun: Duration) -> Result<Answer, Failed> {
        let mut connection = self.pool.take(call.holds_one).await.map_err(Failed::unsent)?;
        let length = call.payload.length();
        let payload = Payload::Held(call.payload.clone());
        let (request, _) = self.request(call, payload, Some(length)).map_err(Failed::unsent)?;
        let about = self.about(call, begun, length);
        let mut is_unsent = false;
        let sending = connection.sender().try_send_request(request);
        let answered = {
            let sending = pin!(async {
                sending.await.map_err(|mut e| {
                    is_unsent = e.take_message().is_some();
                    e.into_error()
                })
            });
            self.answered(&about, sending, connection).await
        };
        answered.map_err(|failed| Failed { is_unsent: is_unsent || failed.is_unsent, ..failed })
    }

    pub(super) fn about(&self, call: &Call<'_>, begun: Duration, length: u64) -> About {
        About {
            scheme: self.protocol.scheme(),
            endpoint: self.peer.clone(),
            method: call.method.clone(),
            bucket: call.bucket.map(Into::into),
            key: call.key.map(Into::into),
            subject: call.subject,
            is_work: call.is_work,
            length,
            unseen: length,
            begun,
            asked: self.clock.now(),
        }
    }

    /// Waits for an answer, and reads it where it is a refusal.
    pub async fn answered(
        &self,
        about: &About,
        answered: Pin<&mut impl Future<Output = hyper::Result<Response<Incoming>>>>,
        mut connection: Connection,
    ) -> Result<Answer, Failed> {
        let kib = u32::try_from(about.unseen >> 10).unwrap_or(u32::MAX);
        let patience = self.answer_time.saturating_add(TIME_PER_KIB.saturating_mul(kib));
        let patience = if about.is_work { patience.saturating_mul(TIMES_OF_WORK) } else { patience };
        let lost = |error| Failed { error, is_unsent: false, is_passing: true };
        let answered = tokio::time::timeout(patience, connection.drive(answered));
        let answered = answered.await.map_err(|_| {
            let (what, seconds) = (about.what(), patience.as_secs());
            lost(Error::new(Reason::Io, format!("{what}: no answer within {seconds} s")))
        })?;
        let response = answered.map_err(|e| {
            let what = format!("{}: the connection failed: {e}", about.what());
            lost(Error::with_source(Reason::Io, what, e))
        })?;
        let observation = Observation {
            peer: Some(self.peer.clone()),
            reused: Some(connection.is_reused),
            queued: about.asked.saturating_sub(about.begun),
            first_byte: self.clock.now().saturating_sub(about.asked),
            wire_bytes: about.length,
        };
        let answer = Answer::new(response, (self.pool.clone(), connection), self.stall_time, observation);
        if answer.head.status.is_success() {
            return Ok(answer);
        }
        Err(Box::pin(self.refused(about, answer)).await)
    }

    async fn refused(&self, about: &About, answer: Answer) -> Failed {
        let (status, headers) = (answer.head.status, answer.head.headers.clone());
        // A body that cannot be read says no less than none.
        let body = answer.document(MOST_REFUSAL_BYTES).await.unwrap_or_default();
        let Refused { error, is_passing, is_before_all } =
            self.protocol.refuse(status, &headers, &body, about.subject, &about.what());
        Failed { error, is_unsent: is_before_all, is_passing }
    }

    pub(super) fn request(
        &self,
        call: &Call<'_>,
        payload: Payload,
        length: Option<u64>,
    ) -> Result<(Request<Payload>, Option<ChunkSigner>)> {
        let (uri, host) = self.protocol.address(call)?;
        let mut headers = call.headers.clone();
        headers.insert(HOST, host);
        // Without a length the body goes out in chunks, whose last one ends it.
        if let Some(length) = length
            && (length > 0 || matches!(call.method, Method::PUT | Method::POST))
        {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let now = self.clock.wall();
        let signer = self.protocol.authorize(&call.method, &uri, &mut headers, &payload, now)?;
        let mut request = Request::new(payload);
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((request, signer))
    }
}
