//! Standard input and output as source and destination.

use std::io::{self, Read as _};

use anyhow::bail;
use bytes::Bytes;
use tokio::sync::mpsc;
use tradewind_core::error::{Error, Reason};
use tradewind_core::threads::thread_error;
use tradewind_core::{Address, VersionId};
use tradewind_parallel::{Fetch, store_stream};
use tradewind_transfer::class_rules::{ClassRules, ClassifiedObject};
use tradewind_transfer::copy::metadata_for_name;
use tradewind_transfer::writer::OutputWriter;

use super::CommandOutcome;
use super::objects::object_address;
use super::summary::mentions_name;
use super::transfer::Session;
use crate::locations::ObjectsLocation;
use crate::settings::ByteSize;

/// The size of one read from standard input.
const PIECE_BYTES: usize = 256 << 10;

/// Stores standard input as an object.
pub(super) async fn store_stdin(
    session: &Session,
    to: &ObjectsLocation,
    classes: &ClassRules,
    expected_size: Option<ByteSize>,
) -> anyhow::Result<CommandOutcome> {
    if to.key.is_empty() || to.key.ends_with('/') {
        bail!("{to} is not one object; to store standard input, give a complete key");
    }
    let (pieces, mut received) = mpsc::channel(2);
    // A read whose result is no longer needed ends with the process.
    let read = move || {
        let mut input = io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = match input.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    Ok(Bytes::from(piece))
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    Err(Error::with_source(Reason::Defect, format!("cannot read standard input: {e}"), e))
                }
            };
            let is_over = read.is_err();
            if pieces.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".to_owned()).spawn(read).map_err(thread_error)?;
    let input = futures::stream::poll_fn(move |cx| received.poll_recv(cx));
    let address = Address::parse(to.bucket.as_str(), &to.key)?;
    let mut metadata = metadata_for_name(&to.key);
    metadata.classes.object = classes.class_of(&ClassifiedObject {
        bucket: to.bucket.as_str(),
        key: &to.key,
        size: None,
        content_type: metadata.headers.content_type.as_deref(),
        ..ClassifiedObject::default()
    });
    let store = session.store(&to.scheme)?;
    let expected_bytes = expected_size.map(|size| size.0);
    store_stream(&session.transfer_context, &store, &address, input, metadata, expected_bytes).await?;
    Ok(CommandOutcome::Done)
}

/// Writes an object, or one of its versions, to standard output.
pub(super) async fn write_to_stdout(
    session: &Session,
    from: &ObjectsLocation,
    version: Option<&VersionId>,
) -> anyhow::Result<CommandOutcome> {
    let address = object_address(from)?.with_version(version.cloned());
    let fetch = Fetch::open(&session.transfer_context, &session.store(&from.scheme)?, &address, None).await?;
    let writer = OutputWriter::new(io::stdout())?;
    let all = match fetch.write_in_order(|piece| writer.write(piece)).await {
        Ok(_) => writer.finish().await,
        Err(e) => Err(e),
    };
    stdout_outcome(all, from)
}

/// The outcome of a command that wrote objects to standard output.
pub(super) fn stdout_outcome(
    all: tradewind_core::Result<()>,
    from: &ObjectsLocation,
) -> anyhow::Result<CommandOutcome> {
    match all {
        // The reader closed the pipe, which is not an error.
        Err(e) if e.reason() == Reason::Cancelled => {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        Err(e) if mentions_name(&e.to_string(), &from.key) => return Err(e.into()),
        Err(e) => return Err(anyhow::Error::new(e).context(from.to_string())),
        Ok(()) => {}
    }
    Ok(CommandOutcome::Done)
}
