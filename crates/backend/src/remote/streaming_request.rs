//! A request whose body is supplied while it is in flight. It is not retried, since the bytes sent are not kept.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::EXPECT;
use hyper::body::Incoming;
use tokio::sync::{Notify, mpsc};
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::retry::Attempts;
use tradewind_wire::sigv4::ChunkSignatureChain;

use super::client::{Call, Client, FailedAttempt, RequestInfo};
use super::payload::{BodyEnd, Payload, StreamedBody};
use super::pool::Connection;
use super::response::StoreResponse;

/// Upper bound of the body's bytes that may still be in local socket buffers when the wait for the response begins.
const MAX_UNSENT_BYTES: u64 = 4 << 20;

type ResponseFuture = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// A request in flight. Dropping it aborts the request: a store commits nothing of an incomplete body.
pub(crate) struct StreamingRequest {
    client: Arc<Client>,
    context: Context,
    request_info: Box<RequestInfo>,
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

impl Client {
    /// Starts a request whose body is supplied while it is sent. Only connecting is retried. `length` is the length of
    /// the body on the wire, in bytes, if known. For a request with `Expect: 100-continue`, see
    /// [`StreamingRequest::wait_for_continue`].
    pub async fn start_streaming(
        self: &Arc<Self>,
        context: &Context,
        call: &Call<'_>,
        length: Option<u64>,
    ) -> Result<StreamingRequest> {
        let started = self.clock.now();
        let mut attempts = Attempts::new();
        let mut connection = loop {
            self.wait_until_available(context).await?;
            self.pool.check_open()?;
            let attempt_at = self.clock.now();
            match context.guard(self.pool.acquire(call.caller_holds_connection)).await? {
                Ok(connection) => break connection,
                Err(error) => {
                    let failed = FailedAttempt::connecting(error, attempt_at, self.clock.now());
                    Box::pin(self.wait_before_retry(context, failed, true, &mut attempts)).await?;
                }
            }
        };
        if let (Some(progress), Some(queue)) = (&context.send_progress, connection.send_queue()) {
            progress.start_request(queue);
        }
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
        let response = Box::pin(connection.sender().send_request(request));
        connection.spawn_driver();
        Ok(StreamingRequest {
            client: self.clone(),
            context: context.clone(),
            request_info,
            body_sender,
            needs_end_marker: length.is_none(),
            signer,
            continue_received,
            in_flight: Some(InFlight { response, connection }),
            outcome,
        })
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
        let Some(InFlight { response, .. }) = &mut self.in_flight else { return Err(self.ended_early()) };
        let response_or_continue = async {
            tokio::select! {
                () = continue_received.notified() => None,
                early = response => Some(early),
            }
        };
        let early = match self.context.guard(tokio::time::timeout(timeout, response_or_continue)).await? {
            Ok(None) => return Ok(true),
            Ok(Some(early)) => early,
            Err(_) => return Ok(false),
        };
        let Some(InFlight { connection, .. }) = self.in_flight.take() else { return Err(self.ended_early()) };
        self.receive_response(async { early }, connection).await?;
        Err(self.ended_early())
    }

    /// Sends a buffer, and waits until there is room for the next one. Fails with the store's error if it responds
    /// before it has received the whole body.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        let Some(InFlight { response, .. }) = &mut self.in_flight else { return Err(self.ended_early()) };
        let body_sender = &self.body_sender;
        let sent = async {
            tokio::select! {
                sent = body_sender.send(piece) => Ok(sent.is_ok()),
                early = response => Err(early),
            }
        };
        let stalled = |_| {
            let (what, seconds) = (self.request_info.description(), self.client.stall_timeout.as_secs());
            Error::new(Reason::Io, format!("{what}: the store accepted no bytes for {seconds} s"))
        };
        let sent = tokio::time::timeout(self.client.stall_timeout, sent);
        let early = match self.context.guard(sent).await?.map_err(stalled)? {
            Ok(true) => return Ok(()),
            // The connection was closed; the response says why.
            Ok(false) => None,
            Err(early) => Some(early),
        };
        let Some(InFlight { response, connection }) = self.in_flight.take() else {
            return Err(self.ended_early());
        };
        let response_future = async {
            match early {
                Some(early) => early,
                None => response.await,
            }
        };
        match self.receive_response(response_future, connection).await {
            Ok(_) => Err(self.ended_early()),
            Err(e) => Err(e),
        }
    }

    /// Ends the body and waits for the response.
    pub async fn finish(mut self) -> Result<StoreResponse> {
        if self.needs_end_marker {
            self.write(Bytes::new()).await?;
        }
        let Some(InFlight { response, connection }) = self.in_flight.take() else {
            return Err(self.ended_early());
        };
        self.receive_response(response, connection).await
    }

    async fn receive_response(
        &mut self,
        response_future: impl Future<Output = hyper::Result<Response<Incoming>>>,
        connection: Connection,
    ) -> Result<StoreResponse> {
        let response_future = pin!(response_future);
        let received = self.client.receive_response(&self.request_info, response_future, connection);
        self.context.guard(received).await?.map_err(|failed| {
            if !failed.is_outcome_unknown() {
                self.outcome.is_rejected.store(true, Ordering::Relaxed);
            }
            self.client.record_failure(failed)
        })
    }

    fn ended_early(&self) -> Error {
        let what = self.request_info.description();
        Error::new(Reason::Io, format!("{what}: the store ended the request before it had the whole body"))
    }
}
