//! Listings: in byte order, paged without loss or repetition, rolled up at delimiters, and each page
//! a snapshot that includes every write acknowledged before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;

use crate::checksum::{Algorithm, ChecksumScope};
use crate::listing::{ListEntry, ListPosition, ListRequest, ObjectSummary};
use crate::store::{Feature, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, key_address, pattern};
use super::objects::odd_keys;

super::theme! { "listing":
    pages_through_thousands_of_odd_keys,
    rolls_up_at_delimiters,
    of_nothing_is_empty,
    says_what_head_says,
    holds_every_acknowledged_write,
    is_one_snapshot needs Snapshots,
}

/// Writes each key, several concurrently.
async fn fill(desk: &Fixture, keys: &BTreeSet<String>) {
    let puts = futures::stream::iter(keys.clone()).map(|key| async move {
        desk.put(&key, key.clone()).await;
    });
    puts.buffer_unordered(64).collect::<Vec<()>>().await;
}

async fn pages_through_thousands_of_odd_keys(desk: Fixture) {
    let mut keys: BTreeSet<String> = odd_keys(&desk).into_iter().collect();
    let nul = if desk.supports(Feature::NulInKeys) { "\0" } else { "\u{1}" };
    let odd = ["/", "//", nul, "..", "é", "日本", "\u{10ffff}", "a"];
    for n in 0.. {
        if keys.len() == 2500 {
            break;
        }
        keys.insert(format!("{}{}{}", odd[n % 8], odd[n / 8 % 8], n * 7919 % 10_007));
    }
    fill(&desk, &keys).await;
    for limit in [1000, 333, 2500, 5000] {
        let listed = desk.list_all(ListRequest { limit, ..ListRequest::default() }).await;
        assert!(listed.iter().map(ListEntry::name).eq(&keys), "in pages of {limit}");
        for entry in &listed {
            let ListEntry::Key(key, summary) = entry else { panic!("{entry:?} without a delimiter") };
            assert_eq!(summary.size, key.len() as u64);
        }
    }
    for (prefix, delimiter) in [("", "/"), ("/", "/"), (nul, nul), ("..", "é"), ("日", "本/")] {
        for limit in [100, 1000] {
            let request = ListRequest {
                prefix: prefix.to_owned(),
                delimiter: Some(delimiter.to_owned()),
                after: None,
                limit,
            };
            compare(&desk, &keys, request).await;
        }
    }
    let last =
        ListRequest { after: keys.last().map(ListPosition::after), limit: 10, ..ListRequest::default() };
    assert!(desk.list(last).await.is_empty());
}

/// The names that a listing must contain: the definition, step by step.
fn expected(keys: &BTreeSet<String>, request: &ListRequest) -> Vec<String> {
    let rolled_up = |key: &String| {
        let rest = key.strip_prefix(&request.prefix)?;
        let delimiter = request.delimiter.as_deref().unwrap_or_default();
        Some(match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(at) => format!("{}{}{delimiter}", request.prefix, &rest[..at]),
            None => key.clone(),
        })
    };
    let names: BTreeSet<String> = keys.iter().filter_map(rolled_up).collect();
    let after = request.after_name();
    names.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after)).collect()
}

async fn compare(desk: &Fixture, keys: &BTreeSet<String>, request: ListRequest) {
    let listed = desk.list_all(request.clone()).await;
    let names: Vec<&str> = listed.iter().map(ListEntry::name).collect();
    assert_eq!(names, expected(keys, &request), "{request:?}");
    for entry in &listed {
        let is_key = keys.contains(entry.name())
            && expected(
                &BTreeSet::from([entry.name().to_owned()]),
                &ListRequest { after: None, ..request.clone() },
            ) == [entry.name()];
        match entry {
            ListEntry::Key(name, _) => assert!(is_key, "{name:?} is no key of its own"),
            ListEntry::CommonPrefix(name) => {
                let delimiter = request.delimiter.as_deref().expect("only a delimiter rolls up");
                assert!(name.ends_with(delimiter));
            }
        }
    }
}

async fn rolls_up_at_delimiters(desk: Fixture) {
    let keys: BTreeSet<String> = [
        "a",
        "a/",
        "a/b",
        "a/b/c",
        "a/b/d",
        "a//",
        "a//x",
        "a0",
        "ab/c",
        "b",
        "b/",
        "photos/1/a",
        "photos/1/b",
        "photos/2",
        "/",
        "/x",
        "//",
        "é/a",
        "é/b",
        "éa",
    ]
    .map(str::to_owned)
    .into();
    fill(&desk, &keys).await;
    for prefix in ["", "a", "a/", "a/b", "photos/", "é", "/", "zz"] {
        for delimiter in [None, Some("/"), Some("//"), Some("b"), Some("é/"), Some("")] {
            for after in
                [None, Some("a"), Some("a/"), Some("a/b"), Some("a0"), Some("photos/1/a"), Some("\u{fff}")]
            {
                let request = |limit| ListRequest {
                    prefix: prefix.to_owned(),
                    delimiter: delimiter.map(str::to_owned),
                    after: after.map(ListPosition::after),
                    limit,
                };
                compare(&desk, &keys, request(1)).await;
                compare(&desk, &keys, request(3)).await;
            }
        }
    }
}

async fn of_nothing_is_empty(desk: Fixture) {
    assert!(desk.names().await.is_empty());
    desk.put("k", "bytes").await;
    let none = ListRequest { prefix: "x".to_owned(), limit: 10, ..ListRequest::default() };
    assert!(desk.list(none).await.is_empty());
    let page = desk.store.list(&context(), &key_address("k").bucket, &ListRequest::default()).await;
    let page = page.expect("an empty page");
    assert!(page.entries.is_empty() && page.next.is_none(), "a limit of zero is an empty last page");
}

async fn says_what_head_says(desk: Fixture) {
    let algorithms = vec![Algorithm::Sha256];
    desk.put_as("sha", pattern(70_000, 1), StageRequest { algorithms, ..StageRequest::default() }).await;
    desk.put("plain", pattern(10, 1)).await;
    for (key, size) in [("cold", 70_000), ("cold/small", 10)] {
        let mut metadata = crate::metadata::Metadata::default();
        metadata.headers.storage_class = Some("STANDARD_IA".to_owned());
        desk.put_as(key, pattern(size, 2), StageRequest { metadata, ..StageRequest::default() }).await;
    }
    let listed = desk.list_all(ListRequest { limit: 10, ..ListRequest::default() }).await;
    assert_eq!(listed.len(), 4);
    for entry in listed {
        let ListEntry::Key(key, summary) = entry else { panic!("{entry:?} without a delimiter") };
        let info = desk.head(&key).await;
        let algorithm = if key == "sha" { Algorithm::Sha256 } else { Algorithm::Crc64Nvme };
        let expected = ObjectSummary {
            size: info.size,
            etag: info.etag,
            modified: info.modified,
            generation: info.generation,
            checksum: Some((algorithm, ChecksumScope::FullObject))
                .filter(|_| desk.capabilities().listing_reports_checksums),
            storage_class: info
                .metadata
                .headers
                .storage_class
                .filter(|_| desk.supports(Feature::ListedStorageClass)),
        };
        assert_eq!(summary, expected, "{key}");
    }
}

/// A client whose write or delete was acknowledged sees it in the listing, with or without concurrent writers.
async fn holds_every_acknowledged_write(desk: Fixture) {
    let writers = (0..8).map(|writer| {
        let desk = desk.clone();
        tokio::spawn(async move {
            for n in 0..15 {
                let key = format!("w{writer}/{n}");
                desk.put(&key, "x").await;
                let page = ListRequest { prefix: key.clone(), limit: 1, ..ListRequest::default() };
                assert_eq!(
                    desk.list(page.clone()).await[0].name(),
                    key,
                    "an acknowledged write is not listed"
                );
                if n % 3 == 0 {
                    desk.delete(&key).await;
                    let left = desk.list(page).await;
                    assert!(left.iter().all(|entry| entry.name() != key), "a deleted key is listed");
                }
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.expect("a writer sees its writes");
    }
    assert_eq!(desk.names().await.len(), 8 * 10);
}

/// One writer repeatedly gives a new size first to the first key and then to the last. In one
/// snapshot the last key is never ahead of the first, and at most one version behind it.
async fn is_one_snapshot(desk: Fixture) {
    let keys: BTreeSet<String> = (0..200).map(|n| format!("m{n:03}")).collect();
    fill(&desk, &keys).await;
    desk.put("a", "").await;
    desk.put("z", "").await;
    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (desk, done) = (desk.clone(), done.clone());
        async move {
            let mut size = 0;
            while !done.load(Ordering::Acquire) {
                size += 1;
                desk.put("a", pattern(size, 1)).await;
                desk.put("z", pattern(size, 1)).await;
                tokio::task::yield_now().await;
            }
            size
        }
    });
    let mut last_seen = 0;
    for n in 0..200 {
        let page = desk.list(ListRequest { limit: 1000, ..ListRequest::default() }).await;
        assert_eq!(page.len(), 202);
        let size = |entry: &ListEntry<ObjectSummary>| match entry {
            ListEntry::Key(_, summary) => summary.size,
            ListEntry::CommonPrefix(name) => panic!("{name:?} without a delimiter"),
        };
        let (first, last) = (size(&page[0]), size(&page[201]));
        assert!(first == last || first == last + 1, "page {n} mixes states: {first} and {last}");
        assert!(first >= last_seen, "page {n} goes back");
        last_seen = first;
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::Release);
    let sizes = writer.await.expect("the writer succeeds");
    super::print_line(&format!("  {sizes} sizes were written concurrently"));
}
