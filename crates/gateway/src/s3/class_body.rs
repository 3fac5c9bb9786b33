//! A request body that begins with a class section (Chen et al., appendix A.1; [`tradewind_core::class::format`]).
//!
//! The checksums that the client declares cover all bytes that it sent, the section included. The store sees only the
//! data, so they are computed and verified here.

use bytes::{Buf as _, Bytes};
use futures::StreamExt as _;
use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::class::Classes;
use tradewind_core::class::format::{self, ClassSection, Decoder};

use super::call::Call;
use super::checksums::DeclaredChecksums;
use super::failure::{Failure, Result};
use crate::body::RequestBody;

/// Bytes hashed between yields, so that hashing never occupies a worker thread for long.
const HASH_BYTES: usize = 128 << 10;

/// Bytes that are decoded without a pause in which other tasks run.
const MAX_DECODED_BYTES: usize = 16 << 10;

/// A body whose class section was read. The data follows.
pub(super) struct ClassBody<'a> {
    call: &'a Call,
    declared: DeclaredChecksums,
    body: RequestBody,
    /// `None` once it was taken.
    section: Option<ClassSection>,
    /// Data received with the end of the section.
    rest: Bytes,
    sent: SentBytes,
}

impl<'a> ClassBody<'a> {
    /// Reads the body up to the end of its class section.
    ///
    /// # Errors
    /// `InvalidArgument` if the section is malformed or truncated; the errors of the body.
    pub(super) async fn open(call: &'a Call, declared: DeclaredChecksums) -> Result<Self> {
        let length = call.payload_length()?;
        let mut body = call.take_body().unwrap_or_else(RequestBody::empty);
        let mut sent = SentBytes::new(&declared);
        let mut decoder = Decoder::default();
        while let Some(bytes) = body.next().await {
            let mut bytes = bytes?;
            sent.update(&bytes).await;
            while !bytes.is_empty() {
                let mut input = &bytes[..bytes.len().min(MAX_DECODED_BYTES)];
                let given = input.len();
                let section = decoder.feed(&mut input)?;
                let taken = given - input.len();
                bytes.advance(taken);
                if decoder.announced_bytes().is_some_and(|announced| announced > length) {
                    return Err(format::truncated().into());
                }
                if section.is_some() {
                    return Ok(Self { call, declared, body, section, rest: bytes, sent });
                }
                tokio::task::yield_now().await;
            }
        }
        Err(format::truncated().into())
    }

    /// The class section. Only the first call returns it.
    pub(super) fn take_section(&mut self) -> Result<ClassSection> {
        self.section.take().ok_or_else(|| Failure::invalid_request("The class section was read before."))
    }

    /// The classes of the data, and its size, in a body of `length` bytes.
    pub(super) fn classes(&mut self, length: u64) -> Result<(Classes, u64)> {
        let section = self.take_section()?;
        let size = length.saturating_sub(section.head.section_bytes());
        Ok((section.classes_for(size)?, size))
    }

    /// The next bytes of the data; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        let Some(bytes) = self.body.next().await.transpose()? else { return Ok(None) };
        self.sent.update(&bytes).await;
        Ok(Some(bytes))
    }

    /// Compares the bytes that the client sent with what it declared. Call after the last bytes.
    pub(super) fn verify(self) -> Result<()> {
        let expected = self.declared.expected(self.call, Some(self.call.payload_length()?))?;
        let computed: Vec<_> = self.sent.hasher.map(Hasher::finish).into_iter().collect();
        let md5 = self.sent.md5.map(|md5| md5.finalize().into());
        Ok(expected.verify(self.sent.bytes, md5, &computed)?)
    }
}

/// The digests of all bytes that the client sent.
struct SentBytes {
    bytes: u64,
    hasher: Option<Hasher>,
    md5: Option<Md5>,
}

impl SentBytes {
    fn new(declared: &DeclaredChecksums) -> Self {
        Self {
            bytes: 0,
            hasher: declared.algorithm().map(Hasher::new),
            md5: declared.md5.is_some().then(Md5::new),
        }
    }

    async fn update(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len() as u64;
        if self.hasher.is_none() && self.md5.is_none() {
            return;
        }
        for block in bytes.chunks(HASH_BYTES) {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(block);
            }
            if let Some(md5) = &mut self.md5 {
                md5.update(block);
            }
            tokio::task::yield_now().await;
        }
    }
}
