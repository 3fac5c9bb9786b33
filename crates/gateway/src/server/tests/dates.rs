//! Objects with times that HTTP cannot represent, such as those from a store with a wrong clock.

use std::sync::Arc;

use tradewind_core::testing::MemoryStore;
use tradewind_core::{Clock, SystemClock, Timestamp};

use super::client::Client;
use super::{SignerClock, WrongClock, config, start_gateway_on};

#[tokio::test]
async fn times_outside_of_http_dates_are_clamped() {
    const FIRST: (&str, &str) = ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00.000Z");
    const LAST: (&str, &str) = ("Fri, 31 Dec 9999 23:59:59 GMT", "9999-12-31T23:59:59.000Z");
    let times = [
        (i64::MIN, FIRST),
        (-62_135_596_800_001, FIRST),
        (-1, FIRST),
        (253_402_300_799_999, LAST),
        (253_402_300_800_000, LAST),
        (i64::MAX, LAST),
    ];
    for (millis, (in_header, in_xml)) in times {
        let wrong = WrongClock(SystemClock::new(), Timestamp::from_millis(millis));
        let clock: Arc<dyn Clock> = Arc::new(SignerClock(SystemClock::new()));
        let server = start_gateway_on(config(|_| ()), MemoryStore::new(Arc::new(wrong)), clock).await;
        let mut client = Client::new(&server).await;
        assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
        assert_eq!(client.request("PUT", "/bucket/key", &[], b"0123").await.status, 200);
        // This header makes the operations serve the request instead of the fast path.
        let by_operations = [("if-match", "*")];
        for method in ["GET", "HEAD"] {
            for headers in [&[][..], &by_operations[..]] {
                let response = client.request(method, "/bucket/key", headers, b"").await;
                assert_eq!(response.status, 200, "{method} {millis}");
                assert_eq!(response.header("last-modified"), Some(in_header), "{method} {millis}");
            }
        }
        let source = [("x-amz-copy-source", "/bucket/key")];
        let attributes = [("x-amz-object-attributes", "ETag")];
        let response = client.request("GET", "/bucket/key?attributes", &attributes, b"").await;
        assert_eq!(response.header("last-modified"), Some(in_header), "{millis}");
        let created = client.request("POST", "/bucket/upload?uploads", &[], b"").await;
        let (_, id) = created.text().split_once("<UploadId>").unwrap();
        let upload = format!("/bucket/upload?uploadId={}", id.split_once("</UploadId>").unwrap().0);
        let part = format!("{upload}&partNumber=1");
        for (method, target, headers) in [
            ("GET", "/", &[][..]),
            ("GET", "/bucket", &[]),
            ("GET", "/bucket?list-type=2", &[]),
            ("GET", "/bucket?uploads", &[]),
            ("PUT", "/bucket/copy", &source),
            ("PUT", &part, &source),
            ("GET", &upload, &[]),
        ] {
            let response = client.request(method, target, headers, b"").await;
            assert_eq!(response.status, 200, "{method} {target} {millis}: {}", response.text());
            assert!(response.text().contains(in_xml), "{method} {target} {millis}: {}", response.text());
        }
    }
}
