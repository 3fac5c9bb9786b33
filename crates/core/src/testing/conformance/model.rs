//! Random sequences of operations on a store and on the memory store: all results must be equal
//! except for values that a store may choose itself (times, generations, upload ids). A failing
//! sequence is shortened before it is printed.

mod model_store;
mod step;

use std::sync::Arc;

use futures::future::BoxFuture;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::clock::SystemClock;
use crate::store::ObjectStore;
use crate::testing::MemoryStore;

use model_store::ModelStore;
use step::Step;

/// The limit of sequences tried to shorten a failing one.
const MAX_CUTS: usize = 300;

/// Plays `steps` operations drawn from `seed` on a fresh store, without and with versions. Panics with a short sequence
/// if the store and the reference differ.
///
/// The store must own its buckets and have every capability of the port; without [`Capabilities::versions`], no
/// sequence uses versions.
///
/// [`Capabilities::versions`]: crate::store::Capabilities::versions
pub async fn model(make: impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>>, seed: u64, steps: usize) {
    let probe = make().await;
    let versions: &[bool] = if probe.capabilities().versions { &[false, true] } else { &[false] };
    for &with_versions in versions {
        let sequence = draw(seed, steps, with_versions);
        let Err(first) = play(&make, &sequence).await else { continue };
        let (short, difference) = cut(&make, sequence, first).await;
        panic!("seed {seed}: the store differs from the reference after\n{short:#?}\n{difference}");
    }
}

fn draw(seed: u64, steps: usize, with_versions: bool) -> Vec<Step> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let tree = vec(step::any_step(with_versions), steps).new_tree(&mut runner);
    tree.expect("the strategy filters nothing").current()
}

/// Plays a sequence on a fresh store and on a fresh reference; the error describes the first difference.
async fn play(
    make: &impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>>,
    sequence: &[Step],
) -> Result<(), String> {
    let mut tested = ModelStore::open(make().await).await;
    let mut reference = ModelStore::open(MemoryStore::new(SystemClock::shared())).await;
    if !tested.has_upload_order() {
        tested.ignore_upload_order();
        reference.ignore_upload_order();
    }
    let mut outcome = Ok(());
    for (n, step) in sequence.iter().enumerate() {
        let (got, expected) = (tested.apply(step).await, reference.apply(step).await);
        if got != expected {
            outcome = Err(format!("step {n}, {step:?}\n     store: {got}\n reference: {expected}"));
            break;
        }
    }
    if outcome.is_ok() {
        let (got, expected) = (tested.survey().await, reference.survey().await);
        if got != expected {
            outcome = Err(format!("in the end\n     store: {got:#?}\n reference: {expected:#?}"));
        }
    }
    tested.close().await;
    outcome
}

/// Removes runs of steps, long ones first, as long as the rest still fails.
async fn cut(
    make: &impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>>,
    mut sequence: Vec<Step>,
    mut difference: String,
) -> (Vec<Step>, String) {
    let (mut run, mut tries) = (sequence.len().div_ceil(2), 0);
    while run > 0 {
        let mut at = 0;
        while at < sequence.len() && tries < MAX_CUTS {
            let mut shorter = sequence.clone();
            shorter.drain(at..(at + run).min(sequence.len()));
            tries += 1;
            match play(make, &shorter).await {
                Ok(()) => at += run,
                Err(e) => (sequence, difference) = (shorter, e),
            }
        }
        run /= 2;
    }
    (sequence, difference)
}
