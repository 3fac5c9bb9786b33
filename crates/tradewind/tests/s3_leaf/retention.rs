//! Retentions through a server in front of a service: another S3 service keeps them as user metadata, a Tradewind server
//! gets them in a header.

use std::net::SocketAddr;

use super::classes::other_service;
use super::support::http_server::HttpServer;
use super::support::s3::{Request, Response, S3};
use super::support::sign::Credentials;
use super::support::xml;
use super::{ID, SECRET, gateway, gateway_over, leaf_over};

const RETENTION: &str = "x-dss-retention";
const SPAN: &str = "x-dss-retention-span";
const METADATA: &str = "x-amz-meta-dss-retention";

/// A client of the server in front, and one of the service.
struct Desk {
    front: S3,
    service: S3,
    /// The header in which the service has the retention.
    stored_in: &'static str,
    _other: Option<HttpServer>,
}

impl Desk {
    async fn over_tradewind() -> Self {
        Self::in_front_of(gateway().await, SPAN, None).await
    }

    async fn over_another_service() -> Self {
        let service = other_service().await;
        Self::in_front_of(service.address, METADATA, Some(service)).await
    }

    async fn in_front_of(service: SocketAddr, stored_in: &'static str, other: Option<HttpServer>) -> Self {
        let front = gateway_over(leaf_over(service, |_| {})).await;
        let connect =
            |address| S3::new(address, Credentials { id: ID.to_owned(), secret: SECRET.to_owned() });
        let mut desk = Self { front: connect(front), service: connect(service), stored_in, _other: other };
        let created = tokio::task::block_in_place(|| desk.front.put("bkt", &[]));
        assert_eq!(created.unwrap().status, 200);
        desk
    }

    fn send(&mut self, method: &str, path: &str, headers: &[(&'static str, &str)]) -> Response {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let body: &[u8] = if method == "PUT" && !path.contains("copy") { b"data" } else { b"" };
        self.front.send(Request { method, path, headers, body, ..Request::default() }).unwrap()
    }

    fn put(&mut self, path: &str, headers: &[(&'static str, &str)]) -> Response {
        self.send("PUT", path, headers)
    }

    fn copy(&mut self, to: &str, headers: &[(&'static str, &str)]) {
        let source = [("x-amz-copy-source", "/bkt/k")];
        let response = self.send("PUT", to, &[&source, headers].concat());
        assert_eq!(response.status, 200, "{to}: {}", response.text());
    }

    /// The seconds that remain and the absolute time, equal in GET, HEAD and the service. The user metadata has neither.
    fn found(&mut self, path: &str) -> Option<(u32, String)> {
        let [got, head] = ["GET", "HEAD"].map(|method| self.send(method, path, &[]));
        assert_eq!((got.status, head.status, &got.body[..]), (200, 200, &b"data"[..]), "{path}");
        let span = got.header(SPAN).map(str::to_owned);
        assert_eq!(head.header(SPAN), span.as_deref(), "{path}");
        assert_eq!((got.header(METADATA), head.header(METADATA)), (None, None), "{path}");
        let stored = self.service.send(Request { method: "HEAD", path, ..Request::default() }).unwrap();
        assert_eq!(stored.header(self.stored_in), span.as_deref(), "{path}");
        let remaining = head.header(RETENTION).map(|seconds| seconds.parse().unwrap());
        assert_eq!(remaining.is_some(), span.is_some(), "{path}");
        remaining.zip(span)
    }

    /// Sets a retention by a write, a copy and an upload.
    fn is_set_and_kept(&mut self) {
        assert_eq!(self.put("bkt/k", &[(RETENTION, "3600"), ("x-dss-object-class", "31")]).status, 200);
        let (remaining, span) = self.found("bkt/k").unwrap();
        assert!((3500..=3600).contains(&remaining) && span.ends_with("-3600"), "{remaining} {span}");

        self.copy("bkt/copy", &[]);
        self.copy("bkt/copy-replaced", &[("x-amz-metadata-directive", "REPLACE")]);
        for path in ["bkt/copy", "bkt/copy-replaced"] {
            assert_eq!(self.found(path).unwrap().1, span, "{path} ends with its source");
        }
        for (path, value) in [("bkt/copy-ended", ""), ("bkt/copy-zero", "0")] {
            self.copy(path, &[(RETENTION, value)]);
            assert_eq!(self.found(path), None, "{path}");
        }
        self.copy("bkt/copy-short", &[(RETENTION, "600")]);
        assert!(self.found("bkt/copy-short").unwrap().1.ends_with("-600"));
        assert_eq!(self.put("bkt/passed-on", &[(SPAN, &span)]).status, 200);
        assert_eq!(self.found("bkt/passed-on").unwrap().1, span);

        let uploaded = self.upload("bkt/upload", "7200");
        assert!((7100..=7200).contains(&uploaded.0) && uploaded.1.ends_with("-7200"), "{uploaded:?}");
        assert_eq!(self.put("bkt/k", &[]).status, 200);
        assert_eq!(self.found("bkt/k"), None, "a write without the header replaces it");
    }

    /// Completes an upload of one part that was begun with a retention.
    fn upload(&mut self, path: &str, seconds: &str) -> (u32, String) {
        let (query, headers) = (vec![("uploads", String::new())], vec![(RETENTION, seconds.to_owned())]);
        let create = Request { method: "POST", path, query, headers, ..Request::default() };
        let created = self.front.send(create).unwrap();
        let upload = xml::text(&created.text(), "UploadId").unwrap();
        let query = vec![("partNumber", "1".to_owned()), ("uploadId", upload.clone())];
        let part = Request { method: "PUT", path, query, body: b"data", ..Request::default() };
        let part = self.front.send(part).unwrap();
        let complete = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>\
             </CompleteMultipartUpload>",
            part.header("etag").unwrap()
        );
        let (query, body) = (vec![("uploadId", upload)], complete.as_bytes());
        let complete = Request { method: "POST", path, query, body, ..Request::default() };
        let completed = self.front.send(complete).unwrap();
        assert_eq!(completed.status, 200, "{}", completed.text());
        self.found(path).unwrap()
    }

    /// Rejects bad values of all requests, and changes nothing.
    fn rejects_bad_values(&mut self) {
        assert_eq!(self.put("bkt/k", &[(RETENTION, "3600")]).status, 200);
        let before = self.found("bkt/k");
        let bad = ["-1", "x", "1.5", "315360001", "99999999999999999999"].map(|value| (RETENTION, value));
        let bad_spans = ["5000", "5000-0", "x-60", "99999999999-60"].map(|value| (SPAN, value));
        for header in bad.into_iter().chain(bad_spans) {
            let source = ("x-amz-copy-source", "/bkt/k");
            for response in [
                self.put("bkt/k", &[header]),
                self.put("bkt/copy", &[source, header]),
                self.send("POST", "bkt/k", &[header]),
                self.send("GET", "bkt/k", &[header]),
            ] {
                let (status, code) = (response.status, response.code());
                assert_eq!((status, &*code), (400, "InvalidArgument"), "{header:?}: {}", response.text());
            }
        }
        for (headers, code) in [
            (&[(RETENTION, "")][..], "InvalidArgument"),
            (&[(RETENTION, "60"), (SPAN, "5000-60")], "InvalidRequest"),
        ] {
            let response = self.put("bkt/k", headers);
            assert_eq!((response.status, &*response.code()), (400, code), "{}", response.text());
        }
        assert_eq!(self.found("bkt/k").map(|found| found.1), before.map(|found| found.1));
        assert_eq!(self.send("GET", "bkt/copy", &[]).status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_in_a_tradewind_service_is_set_kept_and_changed() {
    let mut desk = Desk::over_tradewind().await;
    tokio::task::spawn_blocking(move || {
        desk.is_set_and_kept();
        assert_eq!(desk.send("POST", "bkt/k", &[(RETENTION, "900")]).status, 200);
        assert!(desk.found("bkt/k").unwrap().1.ends_with("-900"));
        assert_eq!(desk.send("POST", "bkt/k", &[(RETENTION, "")]).status, 200);
        assert_eq!(desk.found("bkt/k"), None);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_in_another_service_is_set_and_kept_as_user_metadata() {
    let mut desk = Desk::over_another_service().await;
    tokio::task::spawn_blocking(move || {
        desk.is_set_and_kept();
        let response = desk.send("POST", "bkt/k", &[(RETENTION, "900")]);
        assert_eq!((response.status, &*response.code()), (501, "NotImplemented"), "{}", response.text());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_retentions_in_front_of_services_are_rejected() {
    for mut desk in [Desk::over_tradewind().await, Desk::over_another_service().await] {
        tokio::task::spawn_blocking(move || desk.rejects_bad_values()).await.unwrap();
    }
}
