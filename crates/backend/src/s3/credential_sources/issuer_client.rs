//! Sends the requests for credentials: few and small, each over a connection of its own, within a bounded time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri};
use rustls::ClientConfig;
use tradewind_core::context::{Context, Deadline};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Budget, Clock, Timestamp, random};
use tradewind_model::retry::RetryOptions;
use tradewind_wire::sigv4::{ChunkSignatureChain, Payload as SignedBody, Signer};

use super::rejection::{self, Rejection};
use super::service_url::ServiceUrl;
use crate::remote::ProxyRules;
use crate::remote::client::{Call, ClassifiedError, ErrorResponse, Protocol};
use crate::remote::client_options::ClientOptions;
use crate::remote::header_fields::host_value;
use crate::remote::payload::{BufferedBody, Payload};
use crate::remote::pool::PoolOptions;
use crate::remote::status::{is_retryable_status, is_unavailable_status};

/// Maximum time of one request for credentials, with its retries.
pub const MAX_ISSUE_TIME: Duration = Duration::from_secs(30);
/// The wait for an outage, which leaves time for the last attempt.
const MAX_OUTAGE: Duration = Duration::from_secs(28);
/// The shortest and the longest delay between two attempts during an outage.
const MIN_OUTAGE_DELAY: Duration = Duration::from_millis(100);
const MAX_OUTAGE_DELAY: Duration = Duration::from_secs(4);
/// Longest response with credentials.
const MAX_RESPONSE_BYTES: usize = 256 << 10;
/// Read buffer of a connection. Responses are small.
const READ_BYTES: usize = 32 << 10;

/// A client of the services that issue credentials.
#[derive(Debug, Clone)]
pub struct IssuerClient {
    /// TLS configuration with the trusted certificates. Required for an https URL and for an https proxy.
    pub tls: Option<Arc<ClientConfig>>,
    /// The proxies. Services of this machine or its host, such as instance metadata, are reached directly.
    pub proxies: ProxyRules,
    /// The clock of signatures and deadlines.
    pub clock: Arc<dyn Clock>,
}

/// Limits of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestLimits {
    pub connect_timeout: Duration,
    pub response_timeout: Duration,
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Maximum time of all attempts, without the wait for an outage.
    pub total: Duration,
    /// The failures that are waited out, for [`MAX_ISSUE_TIME`] in total.
    pub outages: WaitedOutages,
}

/// The failures of a service that may pass soon: it restarts, or throttles. A store's outages are waited out alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitedOutages {
    /// None: the user has set the number of attempts.
    None,
    /// Responses only: it is unknown whether the service exists.
    Responses,
    /// Responses and failed connections.
    All,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            max_attempts: 3,
            total: MAX_ISSUE_TIME,
            outages: WaitedOutages::All,
        }
    }
}

/// A request for credentials. It may be sent again: a second response does no harm.
pub(super) struct IssueRequest<'a> {
    pub method: Method,
    pub url: &'a ServiceUrl,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// `None` sends an unsigned request.
    pub signer: Option<Arc<Signer>>,
    pub limits: RequestLimits,
}

impl<'a> IssueRequest<'a> {
    /// An unsigned request without a body, with the default limits.
    pub fn new(method: Method, url: &'a ServiceUrl) -> Self {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { method, url, headers, body, signer: None, limits: RequestLimits::default() }
    }
}

impl IssuerClient {
    /// Sends a request and returns the body of its response. An outage of the service is waited out. An error response
    /// becomes an error whose source is a [`Rejection`](rejection::Rejection).
    pub(super) async fn send(&self, request: IssueRequest<'_>) -> Result<Bytes> {
        let (started, retries) = (self.clock.now(), RetryOptions::for_commands());
        let mut failures = 0;
        loop {
            let left = MAX_ISSUE_TIME.saturating_sub(self.clock.now().saturating_sub(started));
            let error = match self.send_once(&request, left).await {
                Err(error) if request.limits.waits_out(&error, failures > 0) => error,
                ended => return ended,
            };
            failures += 1;
            // The first retry is attempt 2.
            let delay =
                retries.delay(failures + 1, random::jitter_seed()).clamp(MIN_OUTAGE_DELAY, MAX_OUTAGE_DELAY);
            let waited = self.clock.now().saturating_sub(started);
            if waited + delay >= MAX_ISSUE_TIME {
                let message = format!("retried for {} s: {error}", waited.as_secs());
                return Err(error.with_message(message));
            }
            if failures == 1 {
                tracing::warn!("{error}; waiting up to {} s for {}", MAX_ISSUE_TIME.as_secs(), request.url);
            }
            self.clock.sleep_until(self.clock.now() + delay).await;
        }
    }

    /// Sends a request with its number of attempts, for `left` at most.
    async fn send_once(&self, request: &IssueRequest<'_>, left: Duration) -> Result<Bytes> {
        let IssueRequest { method, url, headers, body, signer, limits } = request;
        let total = limits.total().min(left);
        let uri = url.uri()?;
        // Messages omit the query.
        let path = uri.path().trim_start_matches('/').to_owned();
        let host = host_value(url.peer.to_string())?;
        let protocol = Arc::new(IssuerProtocol { host, uri, signer: signer.clone() });
        let client = self.client_options(*limits).client(&url.peer, protocol, self.clock.clone())?;
        let deadline = Deadline::none(self.clock.clone());
        let window = Budget::new(1).admit(1, &deadline).await?;
        let context = Context::new(deadline, window);
        let mut call = Call::service(method.clone());
        call.key = Some(&path);
        call.headers = headers.clone();
        call.payload = BufferedBody::from_buffers([body.clone()]);
        call.may_repeat = true;
        let sending =
            async { client.send(&context, &call).await?.collect_document(MAX_RESPONSE_BYTES).await };
        tokio::time::timeout(total, sending).await.map_err(|e| {
            let seconds = total.as_secs_f64().round();
            Error::with_source(Reason::Io, format!("{url} did not answer within {seconds} s"), e)
        })?
    }

    fn client_options(&self, limits: RequestLimits) -> ClientOptions {
        ClientOptions {
            connections: PoolOptions {
                max_connections: 1,
                connect_timeout: limits.connect_timeout,
                read_bytes: READ_BYTES,
                proxies: self.proxies.clone(),
                ..PoolOptions::default()
            },
            tls: self.tls.clone(),
            retries: limits.retries(),
            response_timeout: limits.response_timeout,
            stall_timeout: limits.response_timeout,
        }
    }
}

impl RequestLimits {
    /// Returns true if the request is sent again after an error response. The client waits out what it knows to be an outage;
    /// a service of unknown existence is asked once for each response.
    fn waits_out(&self, error: &Error, is_retry: bool) -> bool {
        let Some(status) = Rejection::cause_of(error).map(|rejection| rejection.status) else { return false };
        // As for a store, an internal error is not waited out.
        let is_internal = is_retryable_status(status) && !is_retry;
        self.outages == WaitedOutages::Responses && (is_unavailable_status(status) || is_internal)
    }

    /// The retries of the client. A host name that cannot be resolved and an error of TLS are no outage.
    fn retries(&self) -> RetryOptions {
        match self.outages {
            WaitedOutages::None | WaitedOutages::Responses => {
                RetryOptions { max_attempts: self.max_attempts, ..RetryOptions::default() }
            }
            WaitedOutages::All => RetryOptions {
                max_attempts: self.max_attempts.max(2),
                max_outage: MAX_OUTAGE,
                max_retry_after: MAX_OUTAGE,
                ..RetryOptions::default()
            },
        }
    }

    /// Maximum time of all attempts.
    fn total(&self) -> Duration {
        if self.outages == WaitedOutages::All { MAX_ISSUE_TIME } else { self.total }
    }
}

/// One resource of a service that issues credentials.
struct IssuerProtocol {
    host: HeaderValue,
    uri: Uri,
    signer: Option<Arc<Signer>>,
}

impl Protocol for IssuerProtocol {
    /// None: messages name the path and the host.
    fn scheme(&self) -> &'static str {
        ""
    }

    fn request_target(&self, _call: &Call<'_>) -> Result<(Uri, HeaderValue)> {
        Ok((self.uri.clone(), self.host.clone()))
    }

    fn authorize(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &Payload,
        now: Timestamp,
    ) -> Result<Option<ChunkSignatureChain>> {
        let (Some(signer), Payload::Buffered(body, _)) = (&self.signer, body) else { return Ok(None) };
        signer.sign(None, method, uri, headers, SignedBody::Sha256(body.sha256()), now).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("the request cannot be signed: {e}"), e)
        })
    }

    fn classify_and_record(&self, response: &ErrorResponse<'_>) -> ClassifiedError {
        rejection::classify(response)
    }
}
