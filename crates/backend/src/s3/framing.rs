//! The framing of request bodies that are sent before all of their bytes have arrived, and what a rejection of a streamed
//! write says about it and about its checksum headers.

use std::sync::atomic::Ordering;

use tradewind_core::error::{Error, Reason};

use super::S3Store;
use super::checksum_headers::{HeaderKind, Omission, WriteId, names_checksum_header};

/// The framing of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// No framing, no signature over the body.
    Unframed,
    /// `aws-chunked` with a trailing checksum.
    Trailer,
    /// `aws-chunked` with a signature for each chunk.
    SignedChunks,
    /// The body is sent once it is complete, and its hash is signed.
    Whole,
}

/// The headers of a request with a streamed body, as far as a service may reject them.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamedHeaders {
    pub framing: Framing,
    /// A checksum in a header.
    pub has_checksum: bool,
    /// The reason why it has no checksum, if that is due to a refusal or to the settings.
    pub omission: Option<Omission>,
    /// The reason why it has no trailer, if that is due to a refusal.
    pub trailer_omission: Option<Omission>,
}

impl S3Store {
    /// The framing of a body that is sent before all of it has arrived. With `may_have_trailer`, the body may be followed by
    /// its checksum, and the service verifies it.
    pub(super) fn choose_framing(&self, may_have_trailer: bool) -> Framing {
        if self.shared.credentials.is_none() {
            // An unsigned request cannot declare its framing.
            Framing::Unframed
        } else if may_have_trailer {
            Framing::Trailer
        } else if self.endpoint.peer.is_tls {
            Framing::Unframed
        } else if self.rejects_signed_chunks.load(Ordering::Relaxed) {
            Framing::Whole
        } else {
            Framing::SignedChunks
        }
    }

    /// Records the success of a streamed write.
    pub(super) fn learn_from_success(&self, write: &WriteId, sent: StreamedHeaders) {
        self.record_trial(HeaderKind::Write, write, sent.omission, None);
        self.record_trial(HeaderKind::Trailer, write, sent.trailer_omission, None);
    }

    /// Evaluates a failed write with a streamed body. If the service refuses its trailer or its checksum headers, a retry
    /// omits them. If the service does not support signed chunks, they are not used again. In these cases the error becomes
    /// retryable.
    pub(super) fn learn_from_failure(&self, write: &WriteId, sent: StreamedHeaders, error: Error) -> Error {
        let now = self.client.clock.now();
        let is_named = names_checksum_header(&error);
        self.record_trial(HeaderKind::Trailer, write, sent.trailer_omission, Some(&error));
        // A trailer is sent only if the service has returned a checksum, so that it does not refuse the other headers. Not
        // every service names it.
        if sent.framing == Framing::Trailer && (is_named || error.reason() == Reason::Unsupported) {
            self.checksum_headers.suspect_refusal(HeaderKind::Trailer, write, now);
            let message = format!("{error}; a retry omits the trailing checksum");
            return Error::with_source(Reason::Io, message, error);
        }
        if sent.has_checksum && is_named {
            self.checksum_headers.suspect_refusal(HeaderKind::Write, write, now);
            let message = format!("{error}; a retry omits checksum headers");
            return Error::with_source(Reason::Io, message, error);
        }
        self.record_trial(HeaderKind::Write, write, sent.omission, Some(&error));
        if sent.framing != Framing::SignedChunks || error.reason() != Reason::Unsupported {
            return error;
        }
        self.rejects_signed_chunks.store(true, Ordering::Relaxed);
        // A retry uses another framing.
        let message = format!("{error}; the store does not support signed chunks");
        Error::with_source(Reason::Io, message, error)
    }
}
