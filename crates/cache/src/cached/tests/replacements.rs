//! Objects that are replaced by others with an equal entity tag and size. A place of the SSD then has extents of both, one
//! after the other, and only the id of the content tells them apart.

use futures::StreamExt;
use tradewind_core::object::{ETag, Identity};
use tradewind_core::store::Select;
use tradewind_core::{ByteRange, Timestamp};

use super::*;

const NUMBER: u64 = 100;
/// Seven extents, and more than a read gathers before its body begins.
const SIZES: [usize; 2] = [500_000, 3 << 20];

/// Writes a version of an object. All versions have the same entity tag.
async fn put_version(store: &dyn ObjectStore, version: u64, size: usize) {
    let identity = Identity { etag: ETag::from_tag("equal"), modified: Timestamp::from_millis(1) };
    let request = StageRequest { identity: Some(identity), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address(NUMBER), request).await.unwrap();
    write_all(&mut *staged, pattern(size, version)).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

impl Desk {
    async fn body(&self) -> Body {
        self.cached.get(&context(), &address(NUMBER), GetRequest::default()).await.unwrap().body
    }

    /// Reads the object and returns true if it has the bytes of a version.
    async fn reads_version(&self, version: u64, size: usize) -> bool {
        let is_version = drain(self.body().await).await.unwrap() == pattern(size, version);
        self.cached.flush().await;
        is_version
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replacement_with_an_equal_tag_returns_its_own_bytes() {
    for size in SIZES {
        for memory_bytes in [0, 1 << 20] {
            let desk = Desk::open(memory_bytes, 16 << 20).await;
            for version in 0..4 {
                put_version(&*desk.cached, version, size).await;
                assert!(desk.reads_version(version, size).await, "{version} after its write");
                let before = desk.store.calls(Operation::Get);
                assert!(desk.reads_version(version, size).await, "{version} from the SSD");
                assert_eq!(desk.store.calls(Operation::Get), before, "{version} is cached");
            }
            desk.cached.close().await.unwrap();
        }
    }
}

/// Its extents come to the places of the extents of the newer object.
#[tokio::test(flavor = "multi_thread")]
async fn fill_that_ends_after_the_replacement_is_not_read() {
    for size in SIZES {
        for is_cached_before_the_end in [false, true] {
            let desk = Desk::open(0, 16 << 20).await;
            put_version(&*desk.cached, 1, size).await;
            let mut filling = desk.body().await;
            let mut bytes = filling.next().await.unwrap().unwrap().to_vec();
            put_version(&*desk.cached, 2, size).await;
            if is_cached_before_the_end {
                // Without a flush, which would wait for the fill.
                let newer = drain(desk.body().await).await.unwrap();
                assert!(newer == pattern(size, 2), "{size}");
            }
            bytes.extend_from_slice(&drain(filling).await.unwrap());
            assert!(bytes == pattern(size, 1), "the read ends with its content");
            desk.cached.flush().await;
            desk.cached.finish_evictions().await;
            assert!(desk.reads_version(2, size).await, "{size} {is_cached_before_the_end}");
            assert!(desk.reads_version(2, size).await, "from the SSD");
            let before = desk.store.calls(Operation::Get);
            assert!(desk.reads_version(2, size).await);
            assert_eq!(desk.store.calls(Operation::Get), before, "it is cached");
            desk.cached.close().await.unwrap();
        }
    }
}

/// A range fills the content of the known head while a read of the whole object fills another one.
#[tokio::test(flavor = "multi_thread")]
async fn fills_of_two_contents_of_an_object_leave_its_bytes() {
    let size = SIZES[1];
    let desk = Desk::open(0, 16 << 20).await;
    put_version(&*desk.cached, 1, size).await;
    let part = |first: u64, last: u64| GetRequest {
        select: Select::Range(ByteRange::Inclusive { first, last }),
        ..GetRequest::default()
    };
    let read = async |request| {
        drain(desk.cached.get(&context(), &address(NUMBER), request).await.unwrap().body).await.unwrap()
    };
    read(part(0, 99)).await;
    desk.cached.flush().await;
    for _ in 0..3 {
        let mut whole = desk.body().await;
        let first = whole.next().await.unwrap().unwrap();
        let end = size as u64 - 1;
        assert!(read(part(1 << 20, end)).await == pattern(size, 1).slice(1 << 20..));
        let mut bytes = first.to_vec();
        bytes.extend_from_slice(&drain(whole).await.unwrap());
        assert!(bytes == pattern(size, 1));
        desk.cached.flush().await;
    }
    assert!(desk.reads_version(1, size).await);
    put_version(&*desk.cached, 2, size).await;
    assert!(desk.reads_version(2, size).await && desk.reads_version(2, size).await);
    desk.cached.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_extent_is_filled_again_in_its_place() {
    for size in SIZES {
        let desk = Desk::open(0, 16 << 20).await;
        put_version(&*desk.cached, 1, size).await;
        assert!(desk.reads_version(1, size).await);
        let extents = desk.cached.ssd_extents();
        let path = desk._root.path().join("extents");
        let stored = std::fs::read(&path).unwrap();
        // The bytes of one extent, wherever it is.
        let expected = pattern(size, 1);
        let sample = &expected[2 * EXTENT_BYTES + 1000..][..64];
        let offset = stored.windows(64).position(|window| window == sample).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 64], offset as u64).unwrap();
        assert!(desk.reads_version(1, size).await, "after the damage");
        assert!(desk.reads_version(1, size).await, "after the fill");
        let before = desk.store.calls(Operation::Get);
        assert!(desk.reads_version(1, size).await);
        assert_eq!(desk.store.calls(Operation::Get), before, "it is cached");
        assert_eq!(desk.cached.ssd_extents(), extents, "nothing stays behind");
        assert!(desk.cached.counters().ssd_corrupt > 0);
        desk.cached.close().await.unwrap();
    }
}
