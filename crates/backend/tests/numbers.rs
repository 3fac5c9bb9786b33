//! Numbers in the responses of a service, at their limits and in wrong forms: a wrong number is an error, never another
//! number.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options, S3Store};
use tradewind_backend::swift::{Auth, SwiftOptions, SwiftStore};
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::UploadId;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::testing::context;
use tradewind_core::version::ListVersions;
use tradewind_core::{Address, ByteRange, ObjectStore, SystemClock};
use tradewind_model::retry::RetryOptions;

/// Texts that are no number, or no possible size.
const WRONG: [&str; 15] = [
    "-1",
    "-0",
    "+5",
    "",
    "5 5",
    "5,5",
    "5x",
    "0x5",
    "5.5",
    "1e3",
    "nan",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
];
const SIZES: &[&str] = &["0", "2147483648", "9007199254740992"];
const PART_SIZES: &[&str] = &["0", "2147483648", "281474976710656"];
const PART_NUMBERS: &[&str] = &["1", "10000"];
const RANGE_ENDS: &[&str] = &["4"];
const RANGE_SIZES: &[&str] = &["5", "2147483648", "9007199254740992"];
/// The object with an ETag that is no MD5.
const OBJECT: &str = "ETag: \"e\"\r\nLast-Modified: Sun, 22 Nov 2026 02:58:55 GMT\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    S3,
    Swift,
}

/// The number that a request has received, if its result has it.
type Received = BoxFuture<'static, Result<Option<u64>>>;

/// A number in a response.
struct Field {
    name: &'static str,
    service: Service,
    right: &'static [&'static str],
    /// The response with a number.
    response: fn(&str) -> String,
    /// Requests it.
    request: fn(Arc<dyn ObjectStore>) -> Received,
}

fn here() -> Address {
    Address::parse("bucket", "key").unwrap()
}

fn with_body(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

fn listed(size: &str) -> String {
    format!(
        "<Key>key</Key><Size>{size}</Size><LastModified>2026-01-02T03:04:05Z</LastModified><ETag>e</ETag>"
    )
}

fn part(number: &str, size: &str) -> String {
    let part = format!("<PartNumber>{number}</PartNumber><Size>{size}</Size><ETag>e</ETag>");
    with_body("200 OK", "", &format!("<ListPartsResult><Part>{part}</Part></ListPartsResult>"))
}

fn attributes(number: &str, size: &str) -> String {
    let part = format!("<PartNumber>{number}</PartNumber><Size>{size}</Size>");
    let parts = format!("<ObjectParts><Part>{part}</Part></ObjectParts>");
    let root = "GetObjectAttributesResponse";
    with_body("200 OK", "", &format!("<{root}>{parts}</{root}>"))
}

fn range(first: &str, last: &str, size: &str) -> String {
    let headers = format!("{OBJECT}Content-Range: bytes {first}-{last}/{size}\r\n");
    with_body("206 Partial Content", &headers, "bytes")
}

fn swift_listing(bytes: &str) -> String {
    let time = "2026-11-22T02:58:55.000000";
    let entry = format!(r#"{{"name": "key", "bytes": {bytes}, "hash": "e", "last_modified": "{time}"}}"#);
    with_body("200 OK", "", &format!("[{entry}]"))
}

fn head(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let found = store.head(&context(), &here(), GetRequest::default()).await?;
        Ok(Some(found.info.size))
    }
    .boxed()
}

fn get_range(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let select = Select::Range(ByteRange::Inclusive { first: 0, last: 4 });
        store.get(&context(), &here(), GetRequest { select, ..GetRequest::default() }).await?;
        Ok(None)
    }
    .boxed()
}

fn list(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let request = ListRequest { limit: 10, ..ListRequest::default() };
        let page = store.list(&context(), &here().bucket, &request).await?;
        match page.entries.into_iter().next() {
            Some(ListEntry::Key(_, object)) => Ok(Some(object.size)),
            other => panic!("{other:?}"),
        }
    }
    .boxed()
}

fn list_versions(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let request = ListVersions { limit: 10, ..ListVersions::default() };
        let page = store.list_versions(&context(), &here().bucket, &request).await?;
        match page.entries.into_iter().next() {
            Some(ListEntry::Key(_, listed)) => Ok(Some(listed.object.unwrap().size)),
            other => panic!("{other:?}"),
        }
    }
    .boxed()
}

fn list_parts(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let upload = UploadId("upload".to_owned());
        let page = store.list_parts(&context(), &here(), &upload, None, 10).await?;
        assert_eq!(page.parts.len(), 1, "a part must not be dropped");
        Ok(None)
    }
    .boxed()
}

fn object_parts(store: Arc<dyn ObjectStore>) -> Received {
    async move {
        let (parts, _) = store.object_parts(&context(), &here(), None, 10).await?;
        assert_eq!(parts.len(), 1, "a part must not be dropped");
        Ok(None)
    }
    .boxed()
}

const FIELDS: &[Field] = &[
    Field {
        name: "Content-Length of HEAD",
        service: Service::S3,
        right: SIZES,
        response: |number| format!("HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n{OBJECT}\r\n"),
        request: head,
    },
    Field {
        name: "Content-Length of GET",
        service: Service::S3,
        right: RANGE_SIZES.split_at(1).0,
        response: |number| {
            format!(
                "HTTP/1.1 206 P\r\nContent-Length: {number}\r\nContent-Range: bytes 0-4/5\r\n{OBJECT}\r\nbytes"
            )
        },
        request: get_range,
    },
    Field {
        name: "size in Content-Range",
        service: Service::S3,
        right: RANGE_SIZES,
        response: |number| range("0", "4", number),
        request: get_range,
    },
    Field {
        name: "start in Content-Range",
        service: Service::S3,
        right: &["0"],
        response: |number| range(number, "4", "9"),
        request: get_range,
    },
    Field {
        name: "end in Content-Range",
        service: Service::S3,
        right: RANGE_ENDS,
        response: |number| range("0", number, "9"),
        request: get_range,
    },
    Field {
        name: "Size in ListObjectsV2",
        service: Service::S3,
        right: SIZES,
        response: |number| {
            let entry = listed(number);
            with_body(
                "200 OK",
                "",
                &format!("<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"),
            )
        },
        request: list,
    },
    Field {
        name: "Size in ListObjectVersions",
        service: Service::S3,
        right: SIZES,
        response: |number| {
            let entry = format!("<Version>{}<VersionId>v</VersionId></Version>", listed(number));
            with_body("200 OK", "", &format!("<ListVersionsResult>{entry}</ListVersionsResult>"))
        },
        request: list_versions,
    },
    Field {
        name: "PartNumber in ListParts",
        service: Service::S3,
        right: PART_NUMBERS,
        response: |number| part(number, "5"),
        request: list_parts,
    },
    Field {
        name: "Size in ListParts",
        service: Service::S3,
        right: PART_SIZES,
        response: |number| part("1", number),
        request: list_parts,
    },
    Field {
        name: "PartNumber in GetObjectAttributes",
        service: Service::S3,
        right: PART_NUMBERS,
        response: |number| attributes(number, "5"),
        request: object_parts,
    },
    Field {
        name: "Size in GetObjectAttributes",
        service: Service::S3,
        right: PART_SIZES,
        response: |number| attributes("1", number),
        request: object_parts,
    },
    Field {
        name: "Content-Length of HEAD",
        service: Service::Swift,
        right: SIZES,
        response: |number| format!("HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n{OBJECT}\r\n"),
        request: head,
    },
    Field {
        name: "size in Content-Range",
        service: Service::Swift,
        right: RANGE_SIZES,
        response: |number| range("0", "4", number),
        request: get_range,
    },
    Field {
        name: "bytes in a listing",
        service: Service::Swift,
        right: SIZES,
        response: swift_listing,
        request: list,
    },
];

/// A service that responds to each request with `response`, and issues tokens with a lifetime. Returns its address.
async fn serve(response: String, lifetime: String) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(respond(stream, response.clone(), lifetime.clone()));
        }
    });
    address
}

async fn respond(mut stream: TcpStream, response: String, lifetime: String) -> Option<()> {
    let address = stream.local_addr().ok()?;
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let text = String::from_utf8(std::mem::take(&mut head)).ok()?;
        let response = match text.starts_with("GET /auth") {
            true => format!(
                "HTTP/1.1 200 OK\r\nX-Auth-Token: t\r\nX-Auth-Token-Expires: {lifetime}\r\n\
                 X-Storage-Url: http://{address}/v1/a\r\nContent-Length: 0\r\n\r\n"
            ),
            false => response.clone(),
        };
        let end = if text.starts_with("HEAD") { response.find("\r\n\r\n")? + 4 } else { response.len() };
        stream.write_all(&response.as_bytes()[..end]).await.ok()?;
    }
}

async fn store(service: Service, response: String, lifetime: &str) -> Arc<dyn ObjectStore> {
    let address = serve(response, lifetime.to_owned()).await;
    let (retries, clock) = (RetryOptions::disabled(), SystemClock::shared());
    match service {
        Service::S3 => {
            let endpoint = Endpoint::parse(&format!("http://{address}"), AddressingStyle::Path).unwrap();
            let options = S3Options { retries, ..S3Options::new(endpoint, "us-east-1".to_owned(), None) };
            S3Store::new(options, clock).unwrap()
        }
        Service::Swift => {
            let url = format!("http://{address}/auth/v1.0");
            let auth = Auth::V1 { url, user: "a:u".to_owned(), key: "k".to_owned() };
            SwiftStore::new(SwiftOptions { retries, ..SwiftOptions::new(auth) }, clock).unwrap()
        }
    }
}

#[tokio::test]
async fn right_numbers_are_received_and_wrong_ones_are_errors() {
    for field in FIELDS {
        let what = |number: &str| format!("{:?}, {} = {number:?}", field.service, field.name);
        for number in field.right {
            let store = store(field.service, (field.response)(number), "600").await;
            let received = (field.request)(store).await;
            let received = received.unwrap_or_else(|e| panic!("{}: {e:?}", what(number)));
            assert!(received.is_none_or(|received| received.to_string() == *number), "{}", what(number));
        }
        for number in WRONG {
            let store = store(field.service, (field.response)(number), "600").await;
            match (field.request)(store).await {
                Err(e) => assert_eq!(e.reason(), Reason::Io, "{}: {e:?}", what(number)),
                Ok(received) => panic!("{}: {received:?}", what(number)),
            }
        }
    }
}

/// The lifetime of a token only decides when it is renewed.
#[tokio::test]
async fn token_with_any_lifetime_can_be_used() {
    for lifetime in WRONG.iter().chain(SIZES) {
        let store = store(Service::Swift, swift_listing("5"), lifetime).await;
        assert_eq!(list(store).await.unwrap(), Some(5), "{lifetime:?}");
    }
}
