//! The layer `deduplicated`, with its bucket of chunks in the store below.

use std::sync::Arc;

use anyhow::Context as _;
use tradewind_core::context::Deadline;
use tradewind_core::{Budget, Clock, Context, ObjectStore};
use tradewind_layers::Deduplicated;

use crate::settings::DeduplicatedSettings;

/// Memory of the requests that open the layer.
const WINDOW_BYTES: usize = 1 << 20;

/// Puts the layer on a store. The server prepares it if it is new to the store.
pub(super) async fn deduplicate(
    set: &DeduplicatedSettings,
    below: Arc<dyn ObjectStore>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<Deduplicated>> {
    let deadline = Deadline::none(clock.clone());
    let window = Budget::new(WINDOW_BYTES).admit(WINDOW_BYTES, &deadline).await?;
    let opened = Deduplicated::open_unprepared(&Context::new(deadline, window), below, set.policy()).await;
    opened.with_context(|| format!("{}: the layer cannot be opened", set.source))
}
