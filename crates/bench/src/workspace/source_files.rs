//! Creates the client's local files that uploads read from.

use futures::StreamExt as _;
use tradewind_core::error::{Error, Reason, Result};

use crate::drive::{BenchEnv, StopSignal};
use crate::object_set::ObjectSet;

/// Files created concurrently.
const FILE_CONCURRENCY: usize = 4;

/// Creates `count` source files before the first object exists. Existing files are reused. If there are more objects
/// than files, several objects share a file. A stop ends it early, with fewer files.
pub(crate) async fn create_source_files(
    env: &BenchEnv,
    object_set: &ObjectSet,
    count: u64,
    stop: &StopSignal,
) -> Result<()> {
    let Some(files) = env.files.as_ref().filter(|_| !object_set.has_files() && object_set.allocated() == 0)
    else {
        return Ok(());
    };
    // From here on, names and contents of sources are those of files.
    object_set.use_source_files(count);
    let creating = (0..count).take_while(|_| !stop.is_triggered()).map(|number| {
        let (name, content, size) =
            (object_set.source_key(number), object_set.content(number), object_set.size(number));
        async move { files.create_source(&name, env.content.clone(), content, size).await }
    });
    let mut creating = futures::stream::iter(creating).buffer_unordered(FILE_CONCURRENCY);
    while let Some(created) = creating.next().await {
        created.map_err(|e| Error::with_source(Reason::Io, e.to_string(), e))?;
    }
    Ok(())
}
