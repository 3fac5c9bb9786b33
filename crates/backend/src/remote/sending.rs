//! A request that is under way while its body is handed over. It goes out once: what was sent of it is gone.

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

/// So much of a body that was handed over may still lie in this machine, in bytes: no more than that is waited for.
const MOST_UNSEEN: u64 = 4 << 20;

type Answered = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// The request. Dropping it breaks it off: a store that has not all of a body commits nothing of it.
pub(crate) struct Sending {
    client: Arc<Client>,
    context: Context,
    about: Box<About>,
    feed: mpsc::Sender<Bytes>,
    /// Nobody said how long the body is: an empty piece ends it.
    needs_end: bool,
    /// What signs the chunks of the body, where they are signed.
    signer: Option<ChunkSigner>,
    /// Comes where the service says that it wants the body, where it was asked to say so.
    invitation: Option<Arc<Notify>>,
    under_way: Option<(Answered, Connection)>,
}

impl Client {
    /// Begins a request whose body is handed over while it is sent: once. `length` is that of the body on the wire, in
    /// bytes, where it is known. Where the request expects to be told to go on, see [`Sending::invited`].
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
            let told = invitation.clone();
            hyper::ext::on_informational(&mut request, move |_| told.notify_one());
            invitation
        });
        let mut about = Box::new(self.about(call, begun, length.unwrap_or_default()));
        about.unseen = about.unseen.min(MOST_UNSEEN);
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
        let answered: Answered = Box::pin(answered);
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

    /// What signs the chunks of the body, where they are signed. Once.
    pub fn take_signer(&mut self) -> Option<ChunkSigner> {
        self.signer.take()
    }

    /// Waits until the service wants the body, before any of it is handed over; the error is its refusal. Whether it
    /// said so within `time`: some services, and some proxies before them, never do, and take the body nevertheless.
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

    /// Hands over a piece, and waits until there is room for the next. A store that answers before it has everything
    /// refuses it: that is the error then.
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
            Error::new(Reason::Io, format!("{what}: the store took no bytes for {seconds} s"))
        };
        let sent = tokio::time::timeout(self.client.stall_time, sent);
        let early = match self.context.guard(sent).await?.map_err(stalled)? {
            Ok(true) => return Ok(()),
            // The connection took no more; why, its answer says.
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

    /// Waits for the answer once all has been handed over.
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
        Error::new(Reason::Io, format!("{what}: the store took no more before it had all of the body"))
    }
}
