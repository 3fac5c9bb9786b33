//! Counts the payload of one request while it passes. Bytes of a download pass when they arrive. Bytes of an upload pass
//! when the store's end of the connection has acknowledged them: socket buffers take megabytes that a slow link
//! transmits for seconds. An object of one buffer, and the last buffer of any other, pass when the store confirms the
//! object. In a store without connections, all other bytes pass when it accepts them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::SendProgress;

use super::live_window::LiveWindow;
use crate::record::Payload;

/// Interval at which the progress of an upload is read while it waits for the store.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(20);

/// Counts the payload of one request.
pub(crate) struct PayloadMeter<'a> {
    window: &'a LiveWindow,
    payload: Payload,
}

impl<'a> PayloadMeter<'a> {
    /// Starts at zero.
    pub fn new(window: &'a LiveWindow) -> Self {
        Self { window, payload: Payload::default() }
    }

    /// Counts bytes that have passed since the last call.
    pub fn record_passed(&mut self, bytes: u64) {
        self.payload.add(self.window.bounds(), self.window.now(), bytes);
    }

    /// Counts bytes up to a total. A lower total than before changes nothing.
    fn record_passed_up_to(&mut self, total: u64) {
        self.record_passed(total.saturating_sub(self.payload.total()));
    }

    /// The counted payload.
    pub fn finish(self) -> Payload {
        self.payload
    }
}

/// Counts the payload of an upload.
pub(super) struct UploadMeter<'a, 'b> {
    meter: &'a mut PayloadMeter<'b>,
    progress: Arc<SendProgress>,
    /// Bytes that the store has accepted, possibly into local buffers.
    accepted: u64,
}

impl<'a, 'b> UploadMeter<'a, 'b> {
    /// A meter of the write whose context has `progress`.
    pub const fn new(meter: &'a mut PayloadMeter<'b>, progress: Arc<SendProgress>) -> Self {
        Self { meter, progress, accepted: 0 }
    }

    /// Waits for a step of the upload, and counts what passes during it. A step that ends makes `bytes` more accepted.
    pub async fn watch<T>(&mut self, bytes: u64, step: impl Future<Output = T>) -> T {
        let mut step = pin!(step);
        loop {
            let ended = tokio::time::timeout(PROGRESS_INTERVAL, &mut step).await;
            if ended.is_ok() {
                self.accepted += bytes;
            }
            let delivered = self.progress.delivered_bytes().unwrap_or(self.accepted);
            self.meter.record_passed_up_to(delivered.min(self.accepted));
            if let Ok(ended) = ended {
                return ended;
            }
        }
    }

    /// Counts all `size` bytes of the object: the store has confirmed it.
    pub fn confirm(self, size: u64) {
        self.meter.record_passed_up_to(size);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tradewind_core::SystemClock;
    use tradewind_core::send_progress::SendQueue;

    use super::*;

    /// A connection over a link that has delivered the given number of bytes.
    #[derive(Debug, Default)]
    struct SlowLink(AtomicU64);

    impl SendQueue for SlowLink {
        fn sent_bytes(&self) -> u64 {
            0
        }

        fn acknowledged_bytes(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn window_bytes(payload: &Payload) -> u64 {
        payload.intervals().map(|(_, bytes)| bytes).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn upload_counts_delivered_bytes_not_buffered_ones() {
        let window = LiveWindow::new(SystemClock::shared());
        window.open();
        let (progress, link) = (Arc::new(SendProgress::default()), Arc::new(SlowLink::default()));
        progress.start_request(link.clone());
        let mut meter = PayloadMeter::new(&window);
        let mut upload = UploadMeter::new(&mut meter, progress);
        upload.watch(4000, async {}).await;
        let step = async {
            link.0.store(1000, Ordering::Relaxed);
            tokio::time::sleep(10 * PROGRESS_INTERVAL).await;
            // These pass after the end of the window.
            window.close_at(window.now());
            link.0.store(2500, Ordering::Relaxed);
        };
        upload.watch(4000, step).await;
        upload.confirm(8000);
        let payload = meter.finish();
        assert_eq!((window_bytes(&payload), payload.total()), (1000, 8000));
    }

    #[tokio::test]
    async fn upload_without_connections_counts_accepted_bytes() {
        let window = LiveWindow::new(SystemClock::shared());
        window.open();
        let mut meter = PayloadMeter::new(&window);
        let mut upload = UploadMeter::new(&mut meter, Arc::default());
        upload.watch(4000, async {}).await;
        window.close_at(window.now());
        upload.watch(4000, async {}).await;
        upload.confirm(8000);
        let payload = meter.finish();
        assert_eq!((window_bytes(&payload), payload.total()), (4000, 8000));
    }
}
