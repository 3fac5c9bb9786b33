//! Bytes on their way through: large objects take a turn for each piece.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::{Body, Observation, Staged};
use tradewind_model::lanes::{Kind, Priority, Size};
use tradewind_model::store_model::Operation;

use super::turns::Request;

/// The body of a read that has been answered.
pub(super) fn reading(body: Body, mut request: Request, deadline: &Deadline) -> Body {
    let length = body.length();
    let body = match body.into_bytes() {
        Ok(bytes) => {
            request.come(bytes.len());
            request.done();
            return Body::from_bytes(bytes);
        }
        Err(body) => body,
    };
    if length == 0 {
        request.done();
    }
    Body::from_stream(length, Reading { body, request, deadline: deadline.clone(), left: length, turn: None })
}

/// Who reads slowly keeps nobody from anything: it is asked for a turn only when it wants more.
struct Reading {
    body: Body,
    request: Request,
    deadline: Deadline,
    left: u64,
    /// The turn of what has come, which comes before the next piece.
    turn: Option<BoxFuture<'static, Result<()>>>,
}

impl Stream for Reading {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(turn) = &mut this.turn {
            let passed = ready!(turn.as_mut().poll(cx));
            this.turn = None;
            if let Err(error) = passed {
                return Poll::Ready(Some(Err(error)));
            }
        }
        this.request.wait();
        let piece = ready!(Pin::new(&mut this.body).poll_next(cx));
        let bytes = piece.as_ref().map_or(0, |piece| piece.as_ref().map_or(0, Bytes::len));
        this.request.come(bytes);
        this.left = this.left.saturating_sub(bytes as u64);
        if this.left == 0 && matches!(piece, Some(Ok(_))) {
            this.request.done();
        } else if bytes > 0
            && this.request.kind().size == Size::Large
            && let Some(turn) = this.request.turn(bytes as u64)
        {
            let deadline = this.deadline.clone();
            this.turn = Some(Box::pin(async move { deadline.guard(turn).await }));
        }
        Poll::Ready(piece)
    }
}

/// A write that has begun.
pub(super) struct Writing {
    inner: Box<dyn Staged>,
    request: Request,
    operation: Operation,
    priority: Priority,
    deadline: Deadline,
    written: u64,
}

impl Writing {
    pub fn wrap(
        inner: Box<dyn Staged>,
        request: Request,
        operation: Operation,
        priority: Priority,
        deadline: &Deadline,
    ) -> Box<dyn Staged> {
        Box::new(Self { inner, request, operation, priority, deadline: deadline.clone(), written: 0 })
    }
}

#[async_trait]
impl Staged for Writing {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.written += bytes.len() as u64;
        // Nobody said how large it would be.
        self.request.grow(Kind::new(self.operation, self.priority, self.written))?;
        loop {
            let is_large = self.request.kind().size == Size::Large;
            let piece = if is_large {
                bytes.split_to(self.request.piece().min(bytes.len()))
            } else {
                std::mem::take(&mut bytes)
            };
            let turn = if is_large { self.request.turn(piece.len() as u64) } else { None };
            if let Some(turn) = turn {
                self.deadline.guard(turn).await?;
            }
            let length = piece.len();
            self.request.wait();
            let written = self.inner.write(piece).await;
            self.request.come(length);
            written?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { inner, mut request, .. } = *self;
        request.wait();
        let committed = inner.commit(expected).await;
        request.come(0);
        if committed.is_ok() {
            request.done();
        }
        committed
    }
}
