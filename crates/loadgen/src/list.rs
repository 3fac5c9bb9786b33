//! Timing of LIST (version 2) on one connection. Every page is compared with its exact expected keys, so that a fast
//! but wrong page is a failure.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use memchr::memmem;
use tradewind_pattern::mix;

use crate::arguments::{List, ListMode};
use crate::drive::{error_response, event_loop, with_timeout};
use crate::keys::Keys;
use crate::record::{Failure, Report, Tally};
use crate::sign::{MAX_EXPIRY_SECONDS, Signer, encode};
use crate::wire::Connection;

const PAGE_KEYS: usize = 1000;

/// Runs the requests one after another.
pub fn list(run: &List) -> anyhow::Result<Report> {
    let keys = Keys::new(&run.target.keys)?;
    let signer = Signer::new(&run.target.identity, run.target.endpoint, MAX_EXPIRY_SECONDS)?;
    let timeout = Duration::try_from_secs_f64(run.target.timeout).context("timeout")?;
    let duration = Duration::try_from_secs_f64(run.seconds).context("seconds")?;
    let mut lister =
        Lister { run, keys, signer, connection: None, walk: Some(Walk { next: Some(0), token: None }) };
    let mut tally = Tally::new()?;
    let start = Instant::now();
    event_loop()?.block_on(async {
        for number in 0..run.repeat {
            if start.elapsed() >= duration || lister.walk.is_none() {
                break;
            }
            let request = lister.request(number);
            let started = Instant::now();
            match with_timeout(timeout, lister.exchange(&request.query)).await {
                Ok(page) => {
                    let latency = started.elapsed();
                    match lister.check(&request, &page) {
                        Ok(()) => tally.record_success(latency, page.len() as u64),
                        Err(failure) => tally.record_failure(&failure, &request.query),
                    }
                }
                Err(failure) => {
                    lister.connection = None;
                    tally.record_failure(&failure, &request.query);
                }
            }
            if run.mode == ListMode::Walk && tally.failures() > 0 {
                break;
            }
        }
    });
    let operation = match run.mode {
        ListMode::Delimiter => "list_delimiter",
        ListMode::Page => "list_page",
        ListMode::Walk => "list_walk",
    };
    Ok(Report::new(operation, tally, start.elapsed()))
}

/// A LIST request, and the index of the first key expected on its page.
struct Request {
    query: String,
    first: Option<u64>,
}

/// The position of a walk.
struct Walk {
    next: Option<u64>,
    token: Option<String>,
}

struct Lister<'a> {
    run: &'a List,
    keys: Keys,
    signer: Signer,
    connection: Option<Connection>,
    walk: Option<Walk>,
}

impl Lister<'_> {
    /// The request with the given number. Its query is sorted by name, as required for signing.
    fn request(&self, number: u64) -> Request {
        let mut query = String::new();
        let mut first = None;
        match (self.run.mode, &self.walk) {
            (ListMode::Delimiter, _) => query.push_str("delimiter=%2F&"),
            (ListMode::Walk, Some(walk)) => {
                first = walk.next;
                if let Some(token) = &walk.token {
                    query.push_str("continuation-token=");
                    encode(token, &mut query);
                    query.push('&');
                }
            }
            _ => {}
        }
        query.push_str("list-type=2&max-keys=1000&prefix=");
        encode(self.keys.prefix(), &mut query);
        if self.run.mode == ListMode::Page {
            let after = mix(mix(self.run.seed) ^ number) % self.keys.count();
            let mut key = String::new();
            self.keys.write(after, &mut key);
            query.push_str("&start-after=");
            encode(&key, &mut query);
            first = self.keys.successor(after);
        }
        Request { query, first }
    }

    async fn exchange(&mut self, query: &str) -> Result<Vec<u8>, Failure> {
        let mut request = b"GET ".to_vec();
        self.signer.append_target("GET", &format!("/{}", self.run.target.keys.bucket), query, &mut request);
        request.extend_from_slice(format!(" HTTP/1.1\r\nHost: {}\r\n\r\n", self.signer.host()).as_bytes());
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_reusable() => connection,
            _ => Connection::open(self.run.target.endpoint).await?,
        };
        connection.send(&request).await?;
        let head = connection.receive_head().await?;
        if head.status != 200 {
            return Err(error_response(&mut connection, &head).await);
        }
        let mut page = Vec::new();
        connection
            .receive_body(&head, |bytes| {
                page.extend_from_slice(bytes);
                Ok(())
            })
            .await?;
        self.connection = Some(connection);
        Ok(page)
    }

    fn check(&mut self, request: &Request, page: &[u8]) -> Result<(), Failure> {
        let found = elements(page, "Key");
        if self.run.mode == ListMode::Delimiter {
            let prefixes = memmem::find_iter(page, b"<CommonPrefixes>").count() as u64;
            let (expected_prefixes, expected_keys) = self.keys.expected_listing_counts();
            let expected = (expected_prefixes.min(PAGE_KEYS as u64), expected_keys.min(PAGE_KEYS as u64));
            return if (prefixes, found.len() as u64) == expected {
                Ok(())
            } else {
                let detail = format!("{prefixes} prefixes and {} keys instead of {expected:?}", found.len());
                Err(Failure::new("page", detail))
            };
        }
        let mut next = request.first;
        let mut expected = String::new();
        for (position, key) in found.iter().enumerate() {
            let Some(index) = next else {
                return Err(Failure::new("page", format!("key {key:?} after the last")));
            };
            self.keys.write(index, &mut expected);
            if *key != expected.as_bytes() {
                let key = String::from_utf8_lossy(key);
                return Err(Failure::new(
                    "page",
                    format!("key {position} is {key:?} instead of {expected:?}"),
                ));
            }
            next = self.keys.successor(index);
        }
        if found.len() != PAGE_KEYS && next.is_some() {
            return Err(Failure::new("page", format!("{} keys on a page that is not the last", found.len())));
        }
        if self.run.mode == ListMode::Walk {
            let token = elements(page, "NextContinuationToken").first().map(|text| unescape(text));
            if next.is_some() && token.is_none() {
                return Err(Failure::new("page", "no continuation token before the last page"));
            }
            self.walk = token.map(|token| Walk { next, token: Some(token) });
        }
        Ok(())
    }
}

/// The texts between `<name>` and `</name>`.
fn elements<'a>(xml: &'a [u8], name: &str) -> Vec<&'a [u8]> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = xml;
    while let Some(start) = memmem::find(rest, open.as_bytes()) {
        rest = &rest[start + open.len()..];
        let Some(length) = memmem::find(rest, close.as_bytes()) else { break };
        found.push(&rest[..length]);
        rest = &rest[length..];
    }
    found
}

/// Decodes the XML escapes in a token.
fn unescape(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let escapes = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    escapes.iter().fold(text.into_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_elements_are_found_and_unescaped() {
        let xml = b"<A><Key>one</Key><Key>two&amp;</Key><Key>cut";
        let found = elements(xml, "Key");
        assert_eq!(found, [&b"one"[..], b"two&amp;"]);
        assert_eq!(unescape(found[1]), "two&");
    }
}
