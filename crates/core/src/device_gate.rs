//! Admission to the device of a leaf. A layer that schedules a device gives its requests a [`DeviceGate`] in their
//! [`Context`](crate::Context), so that reads wait for the device in the leaf.

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;

/// Admits the reads of one request to the device.
///
/// A leaf with a device calls [`enter`](Self::enter) before each read that its page cache cannot answer, and before all
/// others unless [`passes_cached_reads`](Self::passes_cached_reads). It starts no I/O of that read before `enter`
/// returns. Leaves without a device ignore the gate.
#[async_trait]
pub trait DeviceGate: fmt::Debug + Send + Sync {
    /// Returns when the request may read from the device. A request calls it for its reads one after another.
    /// Dropping the future leaves the queue.
    ///
    /// Fails with [`Overloaded`](crate::Reason::Overloaded) if too many requests wait, and at the deadline of the
    /// request.
    async fn enter(&self) -> Result<()>;

    /// Returns true if the next read need not enter the gate when the page cache answers it. A hit of the page cache
    /// may start a read-ahead of the kernel, so that it is right for short reads only.
    fn passes_cached_reads(&self) -> bool;
}
