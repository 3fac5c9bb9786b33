//! Makes the files of the machine that asks, from which objects come.

use futures::StreamExt as _;
use tradewind_core::error::{Error, Reason, Result};

use crate::drive::{Bed, Stop};
use crate::stock::Stock;

/// Files that are made at a time.
const HANDS: usize = 4;

/// Makes so many files, before there is any object; those that are there already serve. Each is the source of several
/// objects where there are more. A stop ends it early, with fewer.
pub(crate) async fn make_files(bed: &Bed, stock: &Stock, count: u64, stop: &Stop) -> Result<()> {
    let Some(files) = bed.files.as_ref().filter(|_| !stock.has_files() && stock.given_out() == 0) else {
        return Ok(());
    };
    // Names and contents are those of files then.
    stock.take_from_files(count);
    let made = (0..count).take_while(|_| !stop.is_asked()).map(|number| {
        let (name, content, size) = (stock.source_key(number), stock.content(number), stock.size(number));
        async move { files.make(&name, bed.content.clone(), content, size).await }
    });
    let mut made = futures::stream::iter(made).buffer_unordered(HANDS);
    while let Some(made) = made.next().await {
        made.map_err(|e| Error::with_source(Reason::Io, e.to_string(), e))?;
    }
    Ok(())
}
