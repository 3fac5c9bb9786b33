//! Sends requests to one store: signed, over pooled connections, again where that is safe and likely to help.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderValue, Method, Request};
use hyper::body::Incoming;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Clock, Context, Observation};
use tradewind_wire::sigv4::{self, Signer};

use super::answer::Answer;
use super::endpoint::{Endpoint, Query};
use super::failure::{Refusal, Subject};
use super::payload::Payload;
use super::pool::{Connection, Pool};
use crate::retry::{RetryBudget, RetryOptions};

/// The most of an error's body that is read.
const MOST_REFUSAL_BYTES: usize = 64 << 10;
/// Sending a body may take this long per KiB, on top of the time that the answer may take.
const TIME_PER_KIB: Duration = Duration::from_millis(16);

/// A client of one store.
pub(super) struct Client {
    pub endpoint: Endpoint,
    pub signer: Option<Signer>,
    pub pool: Arc<Pool>,
    pub retries: RetryOptions,
    pub budget: RetryBudget,
    pub clock: Arc<dyn Clock>,
    /// From the last byte of the request to the first of the answer.
    pub answer_time: Duration,
    /// Between two pieces of an answer.
    pub stall_time: Duration,
}

/// A request.
pub(super) struct Call<'a> {
    pub method: Method,
    pub subject: Subject,
    pub bucket: Option<&'a BucketName>,
    pub key: Option<&'a str>,
    pub query: Query,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// Carrying it out twice is as good as once.
    pub may_repeat: bool,
}

impl<'a> Call<'a> {
    /// A request about a bucket.
    pub fn bucket(method: Method, bucket: &'a BucketName) -> Self {
        Self { subject: Subject::Bucket, bucket: Some(bucket), ..Self::service(method) }
    }

    /// A request about an object.
    pub fn object(method: Method, bucket: &'a BucketName, key: &'a str) -> Self {
        Self { subject: Subject::Object, key: Some(key), ..Self::bucket(method, bucket) }
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
            payload: Payload::default(),
            may_repeat,
        }
    }

    fn describe(&self, endpoint: &Endpoint) -> String {
        let bucket = self.bucket.map_or("", BucketName::as_str);
        let key = self.key.map(|key| format!("/{key}")).unwrap_or_default();
        format!("{} s3://{bucket}{key} on {endpoint}", self.method)
    }
}

/// Why an attempt failed.
struct Failed {
    error: Error,
    /// Nothing of it can have been carried out.
    is_unsent: bool,
    /// It may succeed if it is sent again.
    is_passing: bool,
}

impl Client {
    /// Sends a request until it is answered with success, refused for good, or not worth another attempt.
    pub async fn send(&self, context: &Context, call: &Call<'_>) -> Result<Answer> {
        let begun = self.clock.now();
        let mut attempt = 1;
        loop {
            self.pool.check()?;
            let failed = match context.guard(self.attempt(call, begun)).await? {
                Ok(answer) => {
                    self.budget.earn();
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            let is_safe = failed.is_unsent || call.may_repeat;
            if !is_safe || !failed.is_passing || attempt >= self.retries.attempts || !self.budget.spend() {
                return Err(failed.error);
            }
            let delay = self.retries.delay(attempt + 1, random());
            tracing::debug!(error = %failed.error, attempt, delay = ?delay, "a request is sent again");
            context.guard(self.clock.sleep_until(self.clock.now() + delay)).await?;
            attempt += 1;
        }
    }

    async fn attempt(&self, call: &Call<'_>, begun: Duration) -> Result<Answer, Failed> {
        let unsent = |error: Error| {
            let is_passing = error.kind().is_retryable();
            Failed { error, is_unsent: true, is_passing }
        };
        let mut connection = self.pool.take().await.map_err(unsent)?;
        let request = self.request(call).map_err(unsent)?;
        let asked = self.clock.now();
        let kib = u32::try_from(call.payload.length() >> 10).unwrap_or(u32::MAX);
        let patience = self.answer_time.saturating_add(TIME_PER_KIB.saturating_mul(kib));
        let sending = connection.sender.try_send_request(request);
        let answered = tokio::time::timeout(patience, sending).await.map_err(|_| Failed {
            error: Error::new(
                Reason::Io,
                format!("{}: no answer within {} s", call.describe(&self.endpoint), patience.as_secs()),
            ),
            is_unsent: false,
            is_passing: true,
        })?;
        let response = answered.map_err(|mut e| {
            let is_unsent = e.take_message().is_some();
            let cause = e.into_error();
            let what = format!("{}: the connection failed: {cause}", call.describe(&self.endpoint));
            Failed { error: Error::with_source(Reason::Io, what, cause), is_unsent, is_passing: true }
        })?;
        let observation = Observation {
            peer: Some(self.endpoint.to_string().into()),
            reused: Some(connection.is_reused),
            queued: asked.saturating_sub(begun),
            first_byte: self.clock.now().saturating_sub(asked),
            wire_bytes: call.payload.length(),
        };
        let answer = self.answer(response, connection, observation);
        if answer.head.status.is_success() { Ok(answer) } else { Err(self.refused(call, answer).await) }
    }

    fn answer(
        &self,
        response: http::Response<Incoming>,
        connection: Connection,
        observation: Observation,
    ) -> Answer {
        Answer::new(response, (self.pool.clone(), connection), self.stall_time, observation)
    }

    async fn refused(&self, call: &Call<'_>, answer: Answer) -> Failed {
        let status = answer.head.status;
        // A body that cannot be read says no less than none.
        let body = answer.collect(MOST_REFUSAL_BYTES).await.unwrap_or_default();
        let refusal = Refusal::read(&body);
        let (is_passing, is_unsent) = (refusal.is_passing(status), refusal.is_before_all(status));
        let error = refusal.into_error(status, call.subject, &call.describe(&self.endpoint));
        Failed { error, is_unsent, is_passing }
    }

    /// Signed now: an attempt may come long after the one before it.
    fn request(&self, call: &Call<'_>) -> Result<Request<Payload>> {
        let uri = self.endpoint.target(call.bucket, call.key, &call.query)?;
        let mut headers = call.headers.clone();
        headers.insert(HOST, self.endpoint.host_header(call.bucket)?);
        if call.payload.length() > 0 || matches!(call.method, Method::PUT | Method::POST) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(call.payload.length()));
        }
        if let Some(signer) = &self.signer {
            let payload =
                if call.payload.length() == 0 { sigv4::Payload::Empty } else { sigv4::Payload::Unsigned };
            signer.sign(&call.method, &uri, &mut headers, payload, self.clock.wall()).map_err(|e| {
                Error::with_source(Reason::InvalidArgument, format!("the request cannot be signed: {e}"), e)
            })?;
        }
        let mut request = Request::new(call.payload.clone());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// Where the system gives no random bytes, delays are not drawn at random: clients that failed together come back
/// together, and nothing worse.
fn random() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
