//! TLS with the whole binary: objects are written and read, plain HTTP is rejected, a client rejects an untrusted
//! server, and a server with invalid certificate files reports the reason and does not start.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, date_time_ymd};
use rustls::version::{TLS12, TLS13};
use support::authority::Authority;
use support::content::Content;
use support::s3::{Request, S3};
use support::server::{Server, ServerSetup, root_key};

struct TestDir {
    directory: tempfile::TempDir,
}

impl TestDir {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn start(&self) -> ServerSetup {
        ServerSetup::new(&self.path("data"), &self.path("log"))
    }

    fn serve(&self, (certificate, key): &(String, String)) -> Server {
        let (certificate, key) = (self.file("chain.pem", certificate), self.file("key.pem", key));
        self.start().flag("--tls-cert", certificate).flag("--tls-key", key).start().unwrap()
    }

    /// The error of a server that must not start with these files.
    fn refused(&self, certificate: Option<&Path>, key: Option<&Path>) -> String {
        let mut start = ServerSetup { log: self.path("refused"), ..self.start() };
        let _ = fs::remove_file(&start.log);
        for (flag, file) in [("--tls-cert", certificate), ("--tls-key", key)] {
            if let Some(file) = file {
                start = start.flag(flag, file);
            }
        }
        start.start().unwrap_err().to_string()
    }
}

/// Appears in the metrics after a bucket was created.
const CREATED: &str = "operation=\"CreateBucket\"";

fn metrics(server: &Server) -> String {
    S3::anonymous(server.admin).get("metrics").unwrap().text()
}

#[test]
fn objects_are_written_and_read_over_tls() {
    let (dir, authority) = (TestDir::new(), Authority::new("ours"));
    let mut server = dir.serve(&authority.identity("127.0.0.1", |_| {}));
    let connect = |version| S3::new(server.endpoint, root_key()).over_tls(authority.trust(&[version]));
    assert_eq!(connect(&TLS13).put("first", &[]).unwrap().status, 200);
    let mut bodies = Vec::new();
    for (id, version) in [(1, &TLS12), (2, &TLS13)] {
        let mut client = connect(version);
        // Smaller than a TLS record, and much larger than a socket's buffer.
        for size in [5_000, 6_000_001] {
            let (path, body) = (format!("first/{id}-{size}"), Content { id, size }.bytes());
            let put = client.put(&path, &body).unwrap();
            assert_eq!(put.status, 200, "{}", put.text());
            let head = Request { method: "HEAD", path: &path, ..Request::default() };
            let head = client.send(head).unwrap();
            assert_eq!((head.status, head.header("content-length")), (200, Some(&*size.to_string())));
            assert_eq!((head.header("etag"), head.body.len()), (put.header("etag"), 0));
            assert!(connect(version).get(&path).unwrap().body == body, "{path} differs");
            bodies.push((path, body));
        }
    }
    assert!(metrics(&server).contains(CREATED), "{}", metrics(&server));
    assert!(server.terminate().unwrap().success(), "{}", server.logged());

    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    for (path, body) in bodies {
        assert!(client.get(&path).unwrap().body == body, "{path} differs without TLS");
    }
    assert!(server.terminate().unwrap().success());
}

/// The location in a response has the scheme of the client's connection.
#[test]
fn the_location_of_a_completed_upload_is_an_https_url() {
    let (dir, authority) = (TestDir::new(), Authority::new("ours"));
    let mut server = dir.serve(&authority.identity("127.0.0.1", |_| {}));
    let mut client = S3::new(server.endpoint, root_key()).over_tls(authority.trust(&[&TLS13]));
    client.put("first", &[]).unwrap();
    let begin = Request {
        method: "POST",
        path: "first/k",
        query: vec![("uploads", String::new())],
        ..Request::default()
    };
    let created = client.send(begin).unwrap().text();
    let id = created.split("<UploadId>").nth(1).and_then(|rest| rest.split('<').next()).unwrap().to_owned();
    let query = vec![("partNumber", "1".to_owned()), ("uploadId", id.clone())];
    let part = client
        .send(Request { method: "PUT", path: "first/k", query, body: b"part", ..Request::default() })
        .unwrap();
    let etag = part.header("etag").unwrap();
    let parts = format!("<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>");
    let order = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let query = vec![("uploadId", id)];
    let end =
        Request { method: "POST", path: "first/k", query, body: order.as_bytes(), ..Request::default() };
    let done = client.send(end).unwrap();
    let location = format!("<Location>https://{}/first/k</Location>", server.endpoint);
    assert!(done.status == 200 && done.text().contains(&location), "{}", done.text());
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
}

#[test]
fn plain_http_on_the_tls_port_is_rejected() {
    let (dir, authority) = (TestDir::new(), Authority::new("ours"));
    let mut server = dir.serve(&authority.identity("127.0.0.1", |_| {}));
    let mut plain = TcpStream::connect(server.endpoint).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A single write: the server may close the connection after the first.
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", server.endpoint);
    plain.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The connection may be closed or reset, but must not stay open.
    match plain.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
    assert!(S3::new(server.endpoint, root_key()).put("first", &[]).is_err());
    let mut client = S3::new(server.endpoint, root_key()).over_tls(authority.trust(&[&TLS13]));
    assert_eq!(client.put("first", &[]).unwrap().status, 200, "other clients are still served");
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
}

#[test]
fn a_client_rejects_an_untrusted_server() {
    let (trusted, other) = (Authority::new("ours"), Authority::new("another"));
    let expire = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    for (identity, error) in [
        (trusted.identity("127.0.0.1", expire), "Expired"),
        (other.identity("127.0.0.1", |_| {}), "UnknownIssuer"),
        (trusted.identity("elsewhere.example", |_| {}), "NotValidForName"),
    ] {
        let dir = TestDir::new();
        let mut server = dir.serve(&identity);
        let mut client = S3::new(server.endpoint, root_key()).over_tls(trusted.trust(&[&TLS13]));
        let refused = format!("{:?}", client.put("first", &[]).unwrap_err());
        assert!(refused.contains(error), "{error} was expected: {refused}");
        assert!(!metrics(&server).contains(CREATED), "a request was served: {}", metrics(&server));
        assert!(server.terminate().unwrap().success(), "{}", server.logged());
    }
}

#[test]
fn invalid_certificate_files_are_reported_with_the_reason() {
    let (dir, authority) = (TestDir::new(), Authority::new("ours"));
    let (certificate, key) = authority.identity("127.0.0.1", |_| {});
    let (_, others_key) = authority.identity("127.0.0.1", |_| {});
    let (certificate, key) = (dir.file("chain.pem", &certificate), dir.file("key.pem", &key));
    let (others_key, empty) = (dir.file("other.pem", &others_key), dir.file("empty.pem", ""));
    let nothing = dir.path("nothing.pem");
    for (files, status, words) in [
        ((Some(&certificate), None), 2, vec!["--tls-cert", "private key", "--tls-key"]),
        ((None, Some(&key)), 2, vec!["--tls-key", "certificate", "--tls-cert"]),
        ((Some(&certificate), Some(&nothing)), 1, vec!["cannot read", "TLS key", "nothing.pem"]),
        ((Some(&nothing), Some(&key)), 1, vec!["cannot read", "TLS certificates", "nothing.pem"]),
        ((Some(&certificate), Some(&others_key)), 1, vec!["TLS certificate and key cannot be used"]),
        ((Some(&empty), Some(&key)), 1, vec!["TLS certificate", "no certificate"]),
        ((Some(&certificate), Some(&empty)), 1, vec!["TLS private key cannot be read"]),
        ((Some(&key), Some(&certificate)), 1, vec!["TLS certificate", "no certificate"]),
    ] {
        let error = dir.refused(files.0.map(PathBuf::as_path), files.1.map(PathBuf::as_path));
        assert!(error.contains(&format!("exit status: {status}")), "{files:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{word:?} was expected for {files:?}: {error}");
        }
        assert!(!error.contains("panicked") && !error.contains("BEGIN"), "{error}");
    }
}
