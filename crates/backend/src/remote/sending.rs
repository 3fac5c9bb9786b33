//! A request whose body is supplied while it is in flight. It is not retried, since the bytes sent are not kept.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::EXPECT;
use hyper::body::Incoming;
use tokio::sync::{Notify, mpsc};
use tradewind_core::Context;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::ChunkSigner;

use super::answer::Answer;
use super::client::{About, Call, Client, Failed};
use super::payload::{Fed, Payload};
use super::pool::Connection;

/// Upper bound of the body's bytes that may still be in local socket buffers when the wait for the response begins.
const MAX_UNSENT_BYTES: u64 = 4 << 20;

type ResponseFuture = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// A request in flight. Dropping it aborts the request: a store commits nothing of an incomplete body.
pub(crate) struct Sending {
    client: Arc<Client>,
    context: Context,
    about: Box<About>,
    feed: mpsc::Sender<Bytes>,
    /// The body's length is unknown: an empty buffer ends it.
    needs_end: bool,
    /// Signs the chunks of the body, if they are signed.
    signer: Option<ChunkSigner>,
    /// Notified by `100 Continue`, if the request has an `Expect` header.
    invitation: Option<Arc<Notify>>,
    under_way: Option<(ResponseFuture, Connection)>,
}

impl Client {
    /// Starts a request whose body is supplied while it is sent. Only connecting is retried. `length` is the length of
    /// the body on the wire, in bytes, if known. For a request with `Expect: 100-continue`, see [`Sending::invited`].
    pub async fn begin(
        self: &Arc<Self>,
        context: &Context,
        call: &Call<'_>,
        length: Option<u64>,
    ) -> Result<Sending> {
        let begun = self.clock.now();
        let mut attempt = 1;
        let mut connection = loop {
            self.pool.check()?;
            match context.guard(self.pool.take(call.holds_one)).await? {
                Ok(connection) => break connection,
                Err(error) => Box::pin(self.wait(context, Failed::unsent(error), true, attempt)).await?,
            }
            attempt += 1;
        };
        let (feed, fed) = Fed::new(length);
        let (mut request, signer) = self.request(call, Payload::Fed(fed), length)?;
        let invitation = request.headers().contains_key(EXPECT).then(|| {
            let invitation = Arc::new(Notify::new());
            let notified = invitation.clone();
            hyper::ext::on_informational(&mut request, move |_| notified.notify_one());
            invitation
        });
        let mut about = Box::new(self.about(call, begun, length.unwrap_or_default()));
        about.unseen = about.unseen.min(MAX_UNSENT_BYTES);
        let answered = connection.sender().send_request(request);
        connection.drive_apart();
        Ok(Sending::new(
            self.clone(),
            context.clone(),
            about,
            (feed, length.is_none()),
            signer,
            invitation,
            (answered, connection),
        ))
    }
}

impl Sending {
    pub fn new(
        client: Arc<Client>,
        context: Context,
        about: Box<About>,
        (feed, needs_end): (mpsc::Sender<Bytes>, bool),
        signer: Option<ChunkSigner>,
        invitation: Option<Arc<Notify>>,
        (answered, connection): (
            impl Future<Output = hyper::Result<Response<Incoming>>> + Send + 'static,
            Connection,
        ),
    ) -> Self {
        let answered: ResponseFuture = Box::pin(answered);
        Self {
            client,
            context,
            about,
            feed,
            needs_end,
            signer,
            invitation,
            under_way: Some((answered, connection)),
        }
    }

    /// Takes the signer of the body's chunks; `None` if they are not signed, or on a second call.
    pub fn take_signer(&mut self) -> Option<ChunkSigner> {
        self.signer.take()
    }

    /// Waits for `100 Continue` before the body is sent. Returns false if it does not arrive within `time`: some
    /// services and proxies never send it but accept the body. Fails with the service's error response.
    pub async fn invited(&mut self, time: Duration) -> Result<bool> {
        let Some(invitation) = self.invitation.take() else { return Ok(true) };
        let Some((answered, _)) = &mut self.under_way else { return Err(self.ended_early()) };
        let invited = async {
            tokio::select! {
                () = invitation.notified() => None,
                early = answered => Some(early),
            }
        };
        let early = match self.context.guard(tokio::time::timeout(time, invited)).await? {
            Ok(None) => return Ok(true),
            Ok(Some(early)) => early,
            Err(_) => return Ok(false),
        };
        let Some((_, connection)) = self.under_way.take() else { return Err(self.ended_early()) };
        self.answer(async { early }, connection).await?;
        Err(self.ended_early())
    }

    /// Sends a buffer, and waits until there is room for the next one. Fails with the store's error if it responds
    /// before it has received the whole body.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        let Some((answered, _)) = &mut self.under_way else { return Err(self.ended_early()) };
        let feed = &self.feed;
        let sent = async {
            tokio::select! {
                sent = feed.send(piece) => Ok(sent.is_ok()),
                early = answered => Err(early),
            }
        };
        let stalled = |_| {
            let (what, seconds) = (self.about.what(), self.client.stall_time.as_secs());
            Error::new(Reason::Io, format!("{what}: the store accepted no bytes for {seconds} s"))
        };
        let sent = tokio::time::timeout(self.client.stall_time, sent);
        let early = match self.context.guard(sent).await?.map_err(stalled)? {
            Ok(true) => return Ok(()),
            // The connection was closed; the response says why.
            Ok(false) => None,
            Err(early) => Some(early),
        };
        let Some((answered, connection)) = self.under_way.take() else { return Err(self.ended_early()) };
        let answered = async {
            match early {
                Some(early) => early,
                None => answered.await,
            }
        };
        match self.answer(answered, connection).await {
            Ok(_) => Err(self.ended_early()),
            Err(e) => Err(e),
        }
    }

    /// Ends the body and waits for the response.
    pub async fn finish(mut self) -> Result<Answer> {
        if self.needs_end {
            self.write(Bytes::new()).await?;
        }
        let Some((answered, connection)) = self.under_way.take() else { return Err(self.ended_early()) };
        self.answer(answered, connection).await
    }

    async fn answer(
        &mut self,
        answered: impl Future<Output = hyper::Result<Response<Incoming>>>,
        connection: Connection,
    ) -> Result<Answer> {
        let answered = pin!(answered);
        let answering = self.client.answered(&self.about, answered, connection);
        self.context.guard(answering).await?.map_err(|failed| failed.error)
    }

    fn ended_early(&self) -> Error {
        let what = self.about.what();
        Error::new(Reason::Io, format!("{what}: the store ended the request before it had the whole body"))
    }
}
