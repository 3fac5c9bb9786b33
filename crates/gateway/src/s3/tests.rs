//! Requests to the operations, in process, on the memory store. They are given as the server passes them on: already
//! authenticated and without framing.

mod answers;
mod checksums;
mod classes;
mod completions;
mod copies;
mod error_documents;
mod listing;
mod multipart;
mod objects;
mod rejections;
mod unset;
mod versions;

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt as _;
use tradewind_core::context::Deadline;
use tradewind_core::testing::MemoryStore;
use tradewind_core::{BucketName, Budget, Context, ObjectStore, SystemClock};

use super::{Operations, Options};
use crate::auth::{Authenticated, Buckets, Identity, Permissions, Trailers};
use crate::body::RequestBody;
use crate::error::{Code, WireError};
use crate::request_id::RequestId;

/// Operations on an empty store. Requests use the root key by default.
struct TestServer {
    operations: Operations,
    store: Arc<dyn ObjectStore>,
    budget: Budget,
}

/// A builder of a request.
struct RequestBuilder<'a> {
    server: &'a TestServer,
    method: &'a str,
    uri: String,
    headers: HeaderMap,
    body: Vec<Result<Bytes, Code>>,
    length: Option<u64>,
    identity: Identity,
    trailers: HeaderMap,
}

/// A response with its whole body.
#[derive(Debug)]
struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl TestServer {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self::with_store(MemoryStore::new(SystemClock::shared()), options)
    }

    fn with_store(store: Arc<dyn ObjectStore>, options: Options) -> Self {
        let operations = Operations::new(store.clone(), options);
        Self { operations, store, budget: Budget::new(64 << 20) }
    }

    /// A server with the bucket `abc`.
    async fn with_bucket() -> Self {
        let server = Self::new();
        assert_eq!(server.send("PUT", "/abc").await.status, 200);
        server
    }

    fn request<'a>(&'a self, method: &'a str, uri: impl Into<String>) -> RequestBuilder<'a> {
        RequestBuilder {
            server: self,
            method,
            uri: uri.into(),
            headers: HeaderMap::new(),
            body: Vec::new(),
            length: Some(0),
            identity: Identity::key("root".into(), Permissions::ReadWrite, Buckets::All),
            trailers: HeaderMap::new(),
        }
    }

    async fn send(&self, method: &str, uri: &str) -> TestResponse {
        self.request(method, uri).send().await
    }

    /// Deletes a bucket without the operations, as another process would.
    async fn delete_bucket_in_store(&self, name: &str) {
        let deadline = Deadline::none(SystemClock::shared());
        let window = self.budget.admit(1 << 20, &deadline).await.unwrap();
        let context = Context::new(deadline, window);
        self.store.delete_bucket(&context, &BucketName::new(name).unwrap()).await.unwrap();
    }

    async fn put(&self, uri: &str, body: &'static [u8]) -> TestResponse {
        self.request("PUT", uri).body(body).send().await
    }
}

impl RequestBuilder<'_> {
    fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    fn body(mut self, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        self.length = Some(body.len() as u64);
        self.body = vec![Ok(body)];
        self
    }

    /// Sets the declared length, which may be wrong.
    fn declared_length(mut self, length: Option<u64>) -> Self {
        self.length = length;
        self
    }

    /// Makes the body end with this error.
    fn ending_with(mut self, code: Code) -> Self {
        self.body.push(Err(code));
        self
    }

    fn trailer(mut self, name: &'static str, value: &str) -> Self {
        self.trailers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        self
    }

    fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    async fn send(self) -> TestResponse {
        let trailers = Trailers::default();
        let announced: Vec<HeaderName> = self.trailers.keys().cloned().collect();
        let (publish, values) = (trailers.clone(), self.trailers);
        let frames = self.body.into_iter().map(|item| item.map_err(|code| WireError::new(code, "broken")));
        let body = stream::iter(frames.collect::<Vec<_>>());
        let body = futures::StreamExt::chain(
            body,
            stream::poll_fn(move |_| {
                publish.publish(values.clone());
                std::task::Poll::Ready(None)
            }),
        );
        let mut request = Request::new(RequestBody::new(self.length, body));
        *request.method_mut() = self.method.parse().unwrap();
        *request.uri_mut() = self.uri.parse().unwrap();
        *request.headers_mut() = self.headers;
        let deadline = Deadline::none(SystemClock::shared());
        let window = self.server.budget.admit(1 << 20, &deadline).await.unwrap();
        request.extensions_mut().insert(Context::new(deadline, window));
        request.extensions_mut().insert(Authenticated {
            identity: Arc::new(self.identity),
            trailers,
            announced_trailers: announced,
            decoded_length: self.length,
            request_id: RequestId::next(),
            payload_sha256: None,
        });
        let (parts, body) = self.server.operations.call(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        TestResponse { status: parts.status, headers: parts.headers, body }
    }
}

impl TestResponse {
    #[track_caller]
    fn assert_success(self) -> Self {
        assert!(self.status.is_success(), "{self:?}");
        self
    }

    #[track_caller]
    fn assert_error(&self, code: &str, status: u16) {
        assert_eq!((self.element("Code").as_deref(), self.status.as_u16()), (Some(code), status), "{self:?}");
        assert!(self.element("Message").is_some_and(|message| !message.is_empty()));
        assert!(self.element("RequestId").is_some());
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn elements(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        self.text().split(&open).skip(1).map(|rest| rest.split(&close).next().unwrap().to_owned()).collect()
    }

    fn element(&self, name: &str) -> Option<String> {
        self.elements(name).into_iter().next()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}
