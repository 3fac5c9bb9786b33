//! A request whose body is supplied while it is in flight. It is not retried, since the bytes sent are not kept: only one
//! of which nothing was written is sent on another connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::sync::{Notify, mpsc};
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::retry::Attempts;
use tradewind_wire::sigv4::ChunkSignatureChain;

use super::client::{Call, Client, FailedAttempt, RequestInfo};
use super::payload::{BodyEnd, Payload, StreamedBody};
use super::pool::{Connection, Reuse};
use super::response::StoreResponse;

/// Upper bound of the body's bytes that may still be in local socket buffers when the wait for the response begins.
const MAX_UNSENT_BYTES: u64 = 4 << 20;

/// The response, or an error with the request if nothing of it was written.
type ResponseResult = Result<Response<Incoming>, TrySendError<Request<Payload>>>;

type ResponseFuture = Pin<Box<dyn Future<Output = ResponseResult> + Send>>;

/// A request in flight. Dropping it aborts the request: a store commits nothing of an incomplete body.
pub(crate) struct StreamingRequest {
    client: Arc<Client>,
    context: Context,
    request_info: Box<RequestInfo>,
    /// See [`Call::caller_holds_connection`].
    caller_holds_connection: bool,
    body_sender: mpsc::Sender<Bytes>,
    /// The body's length is unknown: an empty buffer ends it.
    needs_end_marker: bool,
    /// Signs the chunks of the body, if they are signed.
    signer: Option<ChunkSignatureChain>,
    /// Notified by `100 Continue`, if the request has an `Expect` header.
    continue_received: Option<Arc<Notify>>,
    /// `None` once the response has been received.
    in_flight: Option<InFlight>,
    outcome: StreamedOutcome,
}

/// The outcome of a streamed request that failed.
#[derive(Debug, Clone)]
pub(crate) struct StreamedOutcome {
    body_end: BodyEnd,
    /// A response says that the request was rejected.
    is_rejected: Arc<AtomicBool>,
}

impl StreamedOutcome {
    /// Returns true if the store may carry out the request, or have carried it out. Ends the request: its body is not
    /// completed.
    pub fn is_unknown(&self) -> bool {
        !self.body_end.abandon() && !self.is_rejected.load(Ordering::Relaxed)
    }
}

/// The pending response of a request, and the connection that it arrives on.
struct InFlight {
    response: ResponseFuture,
    connection: Connection,
}

impl InFlight {
    /// Sends a request on a connection.
    fn start(context: &Context, mut connection: Connection, request: Request<Payload>) -> Self {
        if let (Some(progress), Some(queue)) = (&context.send_progress, connection.send_queue()) {
            progress.start_request(queue);
        }
        let response = Box::pin(connection.sender().try_send_request(request));
        connection.spawn_driver();
        Self { response, connection }
    }

    /// Takes the request out of its failure if it can be sent on another connection: this one was reused, and was closed
    /// before any of the request was written.
    fn take_unwritten(&self, failed: &mut ResponseResult) -> Option<Request<Payload>> {
        let error = failed.as_mut().err().filter(|_| self.connection.is_reused)?;
        error.take_message()
    }
}

impl Client {
    /// Starts a request whose body is supplied while it is sent. Only connecting is retried, so a connection that was idle
    /// for long is not reused. `length` is the length of the body on the wire, in bytes, if known. For a request with
    /// `Expect: 100-continue`, see [`StreamingRequest::wait_for_continue`].
    pub async fn start_streaming(
        self: &Arc<Self>,
        context: &Context,
        call: &Call<'_>,
        length: Option<u64>,
    ) -> Result<StreamingRequest> {
        let started = self.clock.now();
        let caller_holds_connection = call.caller_holds_connection;
        let connection = self.connect_for_stream(context, caller_holds_connection, Reuse::Recent).await?;
        let (body_sender, body) = StreamedBody::new(length);
        let outcome = StreamedOutcome { body_end: body.end(), is_rejected: Arc::default() };
        let (mut request, signer) = self.build_request(call, Payload::Streamed(body), length)?;
        let continue_received = request.headers().contains_key(EXPECT).then(|| {
            let received = Arc::new(Notify::new());
            let notified = received.clone();
            hyper::ext::on_informational(&mut request, move |_| notified.notify_one());
            received
        });
        let mut request_info = Box::new(self.request_info(call, started, length.unwrap_or_default()));
        request_info.unsent_bytes = request_info.unsent_bytes.min(MAX_UNSENT_BYTES);
        let in_flight = InFlight::start(context, connection, request);
        Ok(StreamingRequest {
            client: self.clone(),
            context: context.clone(),
            request_info,
            caller_holds_connection,
            body_sender,
            needs_end_marker: length.is_none(),
            signer,
            continue_received,
            in_flight: Some(in_flight),
            outcome,
        })
    }

    /// Returns a connection for a streamed request, with retries.
    async fn connect_for_stream(
        &self,
        context: &Context,
        caller_holds_connection: bool,
        reuse: Reuse,
    ) -> Result<Connection> {
        let mut attempts = Attempts::new();
        loop {
            self.wait_until_available(context).await?;
            self.pool.check_open()?;
            let attempt_at = self.clock.now();
            match context.guard(self.pool.acquire(caller_holds_connection, reuse)).await? {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    let failed = FailedAttempt::connecting(error, attempt_at, self.clock.now());
                    Box::pin(self.wait_before_retry(context, failed, true, &mut attempts)).await?;
                }
            }
        }
    }
}

impl StreamingRequest {
    /// The outcome of the request, to be evaluated if it fails.
    pub fn outcome(&self) -> StreamedOutcome {
        self.outcome.clone()
    }

    /// Takes the signer of the body's chunks; `None` if they are not signed, or on a second call.
    pub fn take_signer(&mut self) -> Option<ChunkSignatureChain> {
        self.signer.take()
    }

    /// Waits for `100 Continue` before the body is sent. Returns false if it does not arrive within `timeout`: some
    /// services and proxies never send it but accept the body. Fails with the service's error response.
    pub async fn wait_for_continue(&mut self, timeout: Duration) -> Result<bool> {
        let Some(continue_received) = self.continue_received.take() else { return Ok(true) };
        loop {
            let Some(InFlight { response, .. }) = &mut self.in_flight else { return Err(self.ended_early()) };
            let response_or_continue = async {
                tokio::select! {
                    () = continue_received.notified() => None,
                    early = response => Some(early),
                }
            };
            let waited = self.context.guard(tokio::time::timeout(timeout, response_or_continue)).await?;
            let early = match waited {
                Ok(None) => return Ok(true),
                Ok(Some(early)) => early,
                Err(_) => return Ok(false),
            };
            self.evaluate_early(early).await?;
        }
    }

    /// Sends a buffer, and waits until there is room for the next one. Fails with the store's error if it responds
    /// before it has received the whole body.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        loop {
            let Some(InFlight { response, .. }) = &mut self.in_flight else { return Err(self.ended_early()) };
            let body_sender = &self.body_sender;
            let sent = async {
                tokio::select! {
                    sent = body_sender.send(piece.clone()) => Ok(sent.is_ok()),
                    early = response => Err(early),
                }
            };
            let sent = self.context.guard(tokio::time::timeout(self.client.stall_timeout, sent)).await?;
            match sent.map_err(|_| self.record_stall())? {
                Ok(true) => return Ok(()),
                // The connection was closed; the response says why.
                Ok(false) => {
                    self.receive_response(None).await?;
                    return Err(self.ended_early());
                }
                Err(early) => self.evaluate_early(early).await?,
            }
        }
    }

    /// Ends the body and waits for the response.
    pub async fn finish(mut self) -> Result<StoreResponse> {
        if self.needs_end_marker {
            self.write(Bytes::new()).await?;
        }
        self.receive_response(None).await
    }

    /// Records that the store accepted no bytes in time. Returns the error.
    fn record_stall(&self) -> Error {
        if let Some(InFlight { connection, .. }) = &self.in_flight {
            let now = self.client.clock.now();
            let timed_out = self.request_info.timed_out(self.client.stall_timeout, now);
            self.client.pool.record_loss(connection, timed_out);
        }
        let (what, seconds) = (self.request_info.description(), self.client.stall_timeout.as_secs());
        Error::new(Reason::Io, format!("{what}: the store accepted no bytes for {seconds} s"))
    }

    /// Evaluates a response that arrived before the end of the body. Returns if the request was sent on another connection;
    /// otherwise fails with the store's error.
    async fn evaluate_early(&mut self, mut early: ResponseResult) -> Result<()> {
        let unwritten = self.in_flight.as_ref().and_then(|in_flight| in_flight.take_unwritten(&mut early));
        if let Some(request) = unwritten {
            return Box::pin(self.send_on_new_connection(request)).await;
        }
        self.receive_response(Some(early)).await?;
        Err(self.ended_early())
    }

    /// Sends a request of which nothing was written.
    async fn send_on_new_connection(&mut self, request: Request<Payload>) -> Result<()> {
        // The closed connection counts towards the limit until it is dropped.
        self.in_flight = None;
        let connecting =
            self.client.connect_for_stream(&self.context, self.caller_holds_connection, Reuse::Never);
        let connection = connecting.await?;
        self.in_flight = Some(InFlight::start(&self.context, connection, request));
        Ok(())
    }

    /// Waits for the response, unless it has arrived.
    async fn receive_response(&mut self, mut arrived: Option<ResponseResult>) -> Result<StoreResponse> {
        loop {
            let Some(InFlight { mut response, connection }) = self.in_flight.take() else {
                return Err(self.ended_early());
            };
            let (early, is_reused, mut unwritten) = (arrived.take(), connection.is_reused, None);
            let received = {
                let response_future = pin!(async {
                    let received = match early {
                        Some(early) => early,
                        None => response.as_mut().await,
                    };
                    received.map_err(|mut e| {
                        unwritten = e.take_message().filter(|_| is_reused);
                        e.into_error()
                    })
                });
                let received = self.client.receive_response(&self.request_info, response_future, connection);
                self.context.guard(received).await?
            };
            match (received, unwritten) {
                (Ok(response), _) => return Ok(response),
                (Err(_), Some(request)) => Box::pin(self.send_on_new_connection(request)).await?,
                (Err(failed), None) => {
                    if !failed.is_outcome_unknown() {
                        self.outcome.is_rejected.store(true, Ordering::Relaxed);
                    }
                    return Err(self.client.record_failure(failed));
                }
            }
        }
    }

    fn ended_early(&self) -> Error {
        let what = self.request_info.description();
        Error::new(Reason::Io, format!("{what}: the store ended the request before it had the whole body"))
    }
}
