//! Packing of files into bundles, in the order in which they are listed; a full bundle is closed and the next one
//! opened. A bundle is uploaded while it is assembled, and becomes visible only when it is complete.

use futures::StreamExt as _;
use tradewind_core::Algorithm;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Result};
use tradewind_model::bundle::BundleSize;
use tradewind_model::plan::split_evenly;
use tradewind_parallel::buffer_pool::BUFFER_BYTES;
use tradewind_parallel::{StreamingUpload, UploadSource as _};

use super::archive;
use super::file_queue::FileQueue;
use super::file_reader::{self, Batch, FileRead, read_ahead};
use super::index::{IndexWriter, Member};
use super::packer::{PackOutcome, Packer, check_member_size};
use super::reader::bundle_key;
use super::set::{BundleFingerprint, BundleSet, FilesHasher};
use crate::files::FileSource;
use crate::workers::ActionFeed;

/// The bundle that is being assembled.
struct OpenBundle {
    number: u32,
    key: String,
    sequence: StreamingUpload,
    filling: BundleSize,
    index: IndexWriter,
    files: FilesHasher,
    /// Offset after the last member and its padding.
    end: u64,
    /// Total size of the members.
    bytes: u64,
}

impl Packer {
    /// Packs all files of the feed.
    ///
    /// A file that cannot be read, or changes while it is read, is reported and not packed. Packing ends if a bundle
    /// cannot be stored; that failure is in the outcome.
    pub async fn pack(&self, actions: ActionFeed) -> Result<PackOutcome> {
        let set = format!("all of {}", self.to.describe(&self.key));
        let set = BundleSet::open(self.open_journal(&set), self.limits.bytes)?;
        let mut packing = Packing { packer: self, set, packed: PackOutcome::default(), open: None };
        let mut queue = FileQueue::new(actions);
        // The failure is in the outcome already.
        if packing.resume(&mut queue).await.is_err() {
            return Ok(packing.packed);
        }
        packing.pack_remaining(queue).await
    }
}

/// A bundle could not be stored; the failure is in the outcome already.
struct AlreadyReported;

struct Packing<'a> {
    packer: &'a Packer,
    set: BundleSet,
    packed: PackOutcome,
    open: Option<OpenBundle>,
}

impl Packing<'_> {
    /// Resumes after the bundles that an earlier packing stored.
    async fn resume(&mut self, queue: &mut FileQueue) -> Result<(), AlreadyReported> {
        let number = match self.set.skip_packed(self.packer, queue, &mut self.packed).await {
            Ok(1) => return Ok(()),
            Ok(number) => number,
            Err(e) => {
                let key = self.packer.key.clone();
                return self.report(&key, e);
            }
        };
        // The stored bundles declare that another one follows, so it must exist even if it stays empty.
        self.open(number).await.map(drop)
    }

    /// Packs the remaining files.
    async fn pack_remaining(mut self, queue: FileQueue) -> Result<PackOutcome> {
        let mut batches = read_ahead(self.packer.from.clone(), self.packer.links, queue);
        while let Some(batch) = batches.next().await {
            if self.pack_batch(batch?).await.is_err() {
                return Ok(self.packed);
            }
        }
        if self.finish().await.is_ok() {
            // Abort the uploads that an earlier packing left beyond the last bundle.
            let last = u32::try_from(self.packed.bundles.len()).unwrap_or(u32::MAX);
            for number in last.saturating_add(1)..=self.set.last() {
                self.packer.abort_upload(number).await?;
            }
            self.set.finish();
        }
        Ok(self.packed)
    }

    async fn pack_batch(&mut self, mut batch: Batch) -> Result<(), AlreadyReported> {
        for (name, read) in std::mem::take(&mut batch.files) {
            match read {
                FileRead::Buffered(mut member, frame, version) => {
                    let open = self.bundle_for(frame.len() as u64, &member).await?;
                    member.offset = open.sequence.written() + member.offset - frame.start as u64;
                    let size = member.size;
                    let written = open.sequence.write(&batch.archive[frame]).await;
                    if let Err(e) = written {
                        return self.abandon(e).await;
                    }
                    open.add(&member, version);
                    self.packer.progress.add_bytes(i64::try_from(size).unwrap_or(i64::MAX));
                    self.packer.progress.add_done();
                }
                FileRead::Large(source) => self.pack_large(name, source).await?,
                FileRead::Failed(e) => self.packed.outcome.record(name, Err(e), &self.packer.progress),
            }
        }
        Ok(())
    }

    /// Packs a file too large to buffer. Only after its last byte is it known whether it changed while it was read. If
    /// so, the bundle is rolled back to the start of the file.
    async fn pack_large(&mut self, name: String, source: FileSource) -> Result<(), AlreadyReported> {
        let progress = self.packer.progress.clone();
        if let Err(e) = check_member_size(source.size()) {
            self.packed.outcome.record(name, Err(e), &progress);
            return Ok(());
        }
        let mut head = Vec::new();
        let mut member = file_reader::write_member_header(&mut head, &name, &source);
        let frame = head.len() as u64 + member.size;
        let open = self.bundle_for(frame, &member).await?;
        open.sequence.mark();
        let (mut hasher, mut reported) = (Hasher::new(Algorithm::Crc64Nvme), 0);
        let written = async {
            open.sequence.write(&head).await?;
            member.offset = open.sequence.written();
            let mut buffer = vec![0; BUFFER_BYTES];
            for (offset, length) in split_evenly(member.size, BUFFER_BYTES as u64) {
                let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
                if let Err(e) = source.read_at(offset, piece) {
                    return Ok(Err(e));
                }
                hasher.update(piece);
                open.sequence.write(piece).await?;
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                progress.add_bytes(length);
                reported += length;
            }
            open.sequence.write(&archive::END_OF_ARCHIVE[..archive::padding_len(member.size)]).await?;
            Ok(source.check_unchanged())
        };
        match written.await {
            Ok(Ok(())) => {
                open.sequence.clear_mark();
                member.checksum = hasher.finish().crc64_value();
                open.add(&member, source.version());
                progress.add_done();
            }
            Ok(Err(e)) => {
                open.sequence.roll_back();
                progress.add_bytes(-reported);
                self.packed.outcome.record(name, Err(e), &progress);
            }
            Err(e) => return self.abandon(e).await,
        }
        Ok(())
    }

    /// The bundle for a member of `frame` bytes with header and padding. Closes the open bundle if it is full.
    async fn bundle_for(&mut self, frame: u64, member: &Member) -> Result<&mut OpenBundle, AlreadyReported> {
        let is_full = |open: &OpenBundle| !open.filling.fits(frame, member.index_bytes());
        let mut number = 1;
        if let Some(full) = self.open.take_if(|open| is_full(open)) {
            number = full.number + 1;
            self.close(full, true).await?;
        }
        self.open(number).await
    }

    async fn open(&mut self, number: u32) -> Result<&mut OpenBundle, AlreadyReported> {
        if self.open.is_none() {
            match OpenBundle::start(self.packer, number) {
                Ok(bundle) => self.open = Some(bundle),
                Err(e) => self.report(&bundle_key(&self.packer.key, number), e)?,
            }
        }
        self.open.as_mut().ok_or(AlreadyReported)
    }

    async fn close(&mut self, full: OpenBundle, has_next: bool) -> Result<(), AlreadyReported> {
        let OpenBundle { number, key, mut sequence, index, files, bytes, .. } = full;
        let members = u64::from(index.members());
        if has_next {
            self.set
                .record_bundle(number, BundleFingerprint { files: files.finish(), index: index.checksum() });
        }
        let written = async {
            sequence.write(&archive::END_OF_ARCHIVE).await?;
            sequence.write(&index.finish(self.set.id, number, has_next)).await
        };
        let stored = match written.await {
            Ok(()) => sequence.finish().await,
            Err(e) => {
                sequence.fail(&e).await;
                Err(e)
            }
        };
        if let Err(e) = stored {
            return self.report(&key, e);
        }
        self.packed.outcome.copied += members;
        self.packed.outcome.bytes += bytes;
        self.packed.bundles.push(key);
        Ok(())
    }

    /// Stores the last bundle. Without any file an empty bundle is stored, unless files failed: then an existing
    /// object of that name is left unchanged.
    async fn finish(&mut self) -> Result<(), AlreadyReported> {
        let nothing_stored = self.open.is_none() && self.packed.bundles.is_empty();
        if nothing_stored && self.packed.outcome.failed > 0 {
            return Ok(());
        }
        self.open(1).await?;
        match self.open.take() {
            Some(last) => self.close(last, false).await,
            None => Ok(()),
        }
    }

    /// Abandons the open bundle.
    async fn abandon(&mut self, error: Error) -> Result<(), AlreadyReported> {
        let Some(open) = self.open.take() else { return Err(AlreadyReported) };
        open.sequence.fail(&error).await;
        self.report(&open.key, error)
    }

    fn report(&mut self, key: &str, error: Error) -> Result<(), AlreadyReported> {
        let location = self.packer.to.describe(key);
        self.packed.outcome.record(location, Err(error), &self.packer.progress);
        Err(AlreadyReported)
    }
}

impl OpenBundle {
    fn start(packer: &Packer, number: u32) -> Result<Self> {
        let (key, sequence) = packer.bundle_upload(number)?;
        let (filling, index) = (BundleSize::new(packer.limits), IndexWriter::new(packer.limits.index_bytes));
        Ok(Self { number, key, sequence, filling, index, files: FilesHasher::default(), end: 0, bytes: 0 })
    }

    fn add(&mut self, member: &Member, version: u64) {
        self.files.add(&member.name, version);
        // Members are contiguous, so the difference includes the header.
        let end = member.end() + archive::padding_len(member.size) as u64;
        self.filling.add(end - self.end, member.index_bytes());
        self.end = end;
        self.index.add(member);
        self.bytes += member.size;
    }
}
