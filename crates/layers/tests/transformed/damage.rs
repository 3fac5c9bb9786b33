//! Stored bytes that are damaged, truncated, exchanged or moved are detected.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::error::{Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, ObjectStore, Select};
use tradewind_core::{Address, Body, ByteRange, Context, Span};
use tradewind_layers::transformed::TransformPolicy;

use super::support::{
    Desk, POLICIES, address, compressible, get, keyring, memory, put, select, stored_bytes,
};

/// A store whose stored bytes are those of `tampered` once it is set.
#[derive(Debug)]
struct Tampering {
    inner: Arc<dyn ObjectStore>,
    tampered: Mutex<Option<Bytes>>,
}

#[async_trait]
impl ObjectStore for Tampering {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let range = request.select;
        let found = self.inner.get(context, address, request).await?;
        let Some(tampered) = self.tampered.lock().clone() else { return Ok(found) };
        let size = tampered.len() as u64;
        let span = match range {
            Select::Range(range) => range.resolve(size)?,
            Select::Whole | Select::Part(_) => Span::whole(size),
        };
        let [first, end] = [span.offset, span.end()].map(|offset| usize::try_from(offset).unwrap());
        Ok(GetResponse { span, body: Body::from_bytes(tampered.slice(first..end)), ..found })
    }
}

struct DamageDesk {
    desk: Desk,
    tampering: Arc<Tampering>,
}

impl DamageDesk {
    async fn new(policy: TransformPolicy) -> Self {
        let tampering = Arc::new(Tampering { inner: memory(), tampered: Mutex::default() });
        let desk = Desk::with_store(tampering.clone(), policy, keyring(&["main"])).await;
        Self { desk, tampering }
    }

    /// Reads with these stored bytes: of each of several reads, whether it failed. A read that succeeds must return the
    /// bytes that were written.
    async fn failures(&self, name: &str, tampered: Bytes, plain: &Bytes) -> Vec<bool> {
        *self.tampering.tampered.lock() = Some(tampered);
        let mut failures = Vec::new();
        let size = plain.len();
        for (first, end) in [(0, size), (70_000, 70_001), (size - 1, size)] {
            let range = ByteRange::Inclusive { first: first as u64, last: end as u64 - 1 };
            let range = if end - first == size { Select::Whole } else { Select::Range(range) };
            let outcome = select(&*self.desk.layered, name, range).await;
            if let Ok((_, bytes)) = &outcome {
                assert!(*bytes == plain[first..end], "wrong bytes were served");
            }
            let is_corrupt = outcome.is_err_and(|error| {
                // A range that is beyond truncated bytes looks like a replaced object, until attempts are used up.
                assert!(matches!(error.reason(), Reason::CorruptData | Reason::Overloaded), "{error:?}");
                true
            });
            failures.push(is_corrupt);
        }
        *self.tampering.tampered.lock() = None;
        failures
    }
}

#[tokio::test]
async fn every_damaged_byte_is_detected_by_the_reads_that_need_it() {
    for policy in POLICIES {
        let desk = DamageDesk::new(policy).await;
        // Three chunks, of which the second is read alone by a range.
        let plain = Bytes::from([vec![7; 65_536], vec![8; 65_536], vec![9; 100]].concat());
        put(&*desk.desk.layered, "k", plain.clone()).await;
        let stored = stored_bytes(&*desk.desk.below, "k").await;
        let table = stored.len() - 16;
        // All bytes if there are few, else those of headers, table and a sample.
        let offsets = (0..stored.len()).filter(|offset| {
            stored.len() < 2000 || *offset < 64 || *offset >= table - 200 || offset % 4001 == 0
        });
        for offset in offsets {
            let mut damaged = stored.to_vec();
            damaged[offset] ^= 1 << (offset % 8);
            let failures = desk.failures("k", damaged.into(), &plain).await;
            let is_table = offset >= table;
            // A few bits of a Zstandard frame have no meaning; what is not encrypted is right without them.
            if !policy.encrypt.is_empty() || is_table {
                assert_eq!(failures[0], !is_table, "a whole read needs every byte but the table: {offset}");
            }
            if is_table {
                // The entries are those of the second and the third chunk. The latter is also the end of the former,
                // where too high an entry costs no more than the read of a part of the next frame.
                let is_of_second = offset < table + 8;
                assert!(failures[1] || !is_of_second, "{offset}");
                assert_eq!(failures[2], !is_of_second, "{offset}");
            }
        }
    }
}

#[tokio::test]
async fn truncated_and_extended_bytes_are_detected() {
    for policy in POLICIES {
        let desk = DamageDesk::new(policy).await;
        let plain = compressible(200_000);
        put(&*desk.desk.layered, "k", plain.clone()).await;
        let stored = stored_bytes(&*desk.desk.below, "k").await;
        let table = stored.len() - 3 * 8;
        for length in [0, 1, 8, 9, 1000, table - 1] {
            let failures = desk.failures("k", stored.slice(..length), &plain).await;
            assert!(failures[0] && failures[2], "{length}");
        }
        let shifted: Bytes = [b"x", &stored[..]].concat().into();
        assert_eq!(desk.failures("k", shifted, &plain).await, [true; 3]);
    }
}

#[tokio::test]
async fn chunks_of_another_object_or_place_are_detected() {
    for policy in POLICIES {
        let desk = DamageDesk::new(policy).await;
        let plain = compressible(200_000);
        for name in ["a", "b"] {
            put(&*desk.desk.layered, name, plain.clone()).await;
        }
        // With the same plain bytes, chunks that are only compressed differ in their check values alone.
        let other = stored_bytes(&*desk.desk.below, "b").await;
        assert_eq!(desk.failures("a", other, &plain).await, [true; 3]);
        let equal = Bytes::from(vec![5; 4 * 65_536]);
        put(&*desk.desk.layered, "c", equal.clone()).await;
        let stored = stored_bytes(&*desk.desk.below, "c").await;
        let table = stored.len() - 3 * 8;
        let second = u64::from_le_bytes(stored[table..table + 8].try_into().unwrap());
        let second = usize::try_from(second).unwrap();
        // The first two chunks in the other order: both have the same length.
        let swapped = [&stored[second..2 * second], &stored[..second], &stored[2 * second..]].concat();
        let failures = desk.failures("c", swapped.into(), &equal).await;
        assert_eq!(failures, [true, true, false]);
    }
}

/// A store in which one object has the record and the bytes of another.
#[derive(Debug)]
struct Renaming(Arc<dyn ObjectStore>);

#[async_trait]
impl ObjectStore for Renaming {
    tradewind_core::forward_methods! {
        to: |layer| &layer.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(&self, context: &Context, _: &Address, request: GetRequest) -> Result<GetResponse<Body>> {
        self.0.get(context, &address("mail/theirs"), request).await
    }
}

#[tokio::test]
async fn encrypted_object_under_another_key_is_detected() {
    for policy in [POLICIES[1], POLICIES[2]] {
        let renaming = Arc::new(Renaming(memory()));
        let desk = Desk::with_store(renaming, policy, keyring(&["main"])).await;
        for name in ["mail/theirs", "mail/mine"] {
            put(&*desk.layered, name, compressible(100)).await;
        }
        let read = get(&*desk.layered, "mail/theirs", GetRequest::default()).await.unwrap();
        assert!(read.2 == compressible(100));
        let moved = get(&*desk.layered, "mail/mine", GetRequest::default()).await.unwrap_err();
        assert_eq!(moved.reason(), Reason::CorruptData);
    }
}
