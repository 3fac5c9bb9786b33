//! One window of memory, four layers, sixty-four requests: layers degrade without memory
//! and never wait for it, so that every request completes.

use std::time::Duration;

use futures::StreamExt;
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context, stack_layers};
use tradewind_core::{Address, Budget, Context, SystemClock};

const WINDOW: usize = 256 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_window_serves_64_requests_through_four_layers() {
    let store = stack_layers(MemoryStore::new(SystemClock::shared()), 4);
    let budget = Budget::new(WINDOW);
    store.create_bucket(&context(), &Address::parse("bucket", "k").unwrap().bucket).await.unwrap();
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..64_u8 {
        let (store, budget) = (store.clone(), budget.clone());
        requests.spawn(async move {
            let deadline = Deadline::none(SystemClock::shared());
            let window = budget.admit(WINDOW, &deadline).await.unwrap();
            let context = Context::new(deadline, window);
            let address = Address::parse("bucket", &format!("key-{n}")).unwrap();
            let mut staged = store.stage(&context, &address, StageRequest::default()).await.unwrap();
            for _ in 0..8 {
                staged.write(vec![n; 100_000].into()).await.unwrap();
            }
            staged.commit(Expected::default()).await.unwrap();
            // A slow reader: it retains three times the window and still gets the rest.
            let found = store.get(&context, &address, GetRequest::default()).await.unwrap();
            let pieces: Vec<_> = found.body.map(Result::unwrap).collect().await;
            assert!(pieces.concat() == vec![n; 800_000]);
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(60), requests.join_all()).await;
    assert_eq!(all.expect("no request waits forever").len(), 64);
    assert_eq!(budget.free(), WINDOW, "all memory is released");
}
