//! The scheduler of a rotating disk over a local store on a real file system.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{context, write_all};
use tradewind_core::{Address, ObjectStore as _, SystemClock};
use tradewind_layers::{DiskQueue, Sliced};
use tradewind_model::slices::{DiskSpeed, RequestKind};

const OBJECT_BYTES: u64 = 16 << 20;

/// Drops the clean pages of all segments.
fn drop_pages(store: &Path) {
    for entry in std::fs::read_dir(store.join("segments")).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// The kernel reads ahead of a client that is slower than the disk, so that the page cache has almost all pieces.
#[tokio::test]
async fn cold_stream_of_a_slow_client_takes_a_turn_for_each_slice() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let speed = DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
    let disk = DiskQueue::new(speed, SystemClock::shared());
    let store = Sliced::new(super::local(directory.path()), disk.clone());
    let address = Address::parse("bucket", "stream").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let request = StageRequest { size: Some(OBJECT_BYTES), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &address, request).await.unwrap();
    let bytes: Vec<u8> = (0..OBJECT_BYTES).map(|place| (place % 251) as u8).collect();
    write_all(&mut *staged, bytes.into()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        drop_pages(&entry.unwrap().path());
    }
    let before = disk.report();
    let mut body = store.get(&context(), &address, GetRequest::default()).await.unwrap().body;
    let mut received = 0;
    while let Some(piece) = body.next().await {
        received += piece.unwrap().len() as u64;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(received, OBJECT_BYTES);
    let after = disk.report();
    let reads = after.statistics.groups.iter().filter(|(group, _)| group.kind != RequestKind::Change);
    let read_bytes: u64 = reads.map(|(_, counts)| counts.read_bytes).sum();
    assert_eq!((read_bytes, after.page_cache_bytes), (OBJECT_BYTES, before.page_cache_bytes), "{after:?}");
    let streams = after.statistics.groups.iter().filter(|(group, _)| group.kind == RequestKind::Stream);
    let turns: u64 = streams.map(|(_, counts)| counts.turns).sum();
    let slices = (OBJECT_BYTES - (256 << 10)) / speed.slice_bytes();
    assert!(turns >= slices && slices > 0, "{turns} turns for {slices} slices");
}
