//! Packing: files become members of a bundle in the order in which they are found, and of the next one where a bundle is
//! full. A bundle is sent while it is made, and is there when all of it is.

use futures::StreamExt as _;
use tradewind_core::Algorithm;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Result};
use tradewind_model::bundle::Filling;
use tradewind_model::plan::Plan;
use tradewind_volume::buffers::BUFFER_BYTES;
use tradewind_volume::{Sequence, Source as _};

use super::ahead::{self, Batch, Read, read_ahead};
use super::archive;
use super::index::{Member, Writer};
use super::open::name_of_bundle;
use super::packer::{Packed, Packer, check_size};
use super::set::{Ended, Files, Set};
use super::waiting::Waiting;
use crate::files::FileSource;
use crate::moves::Decided;

/// A bundle that is being made.
struct Filled {
    number: u32,
    key: String,
    sequence: Sequence,
    filling: Filling,
    index: Writer,
    files: Files,
    /// Behind the last member.
    end: u64,
    /// Of files.
    bytes: u64,
}

impl Packer {
    /// Packs everything that is decided. A file that cannot be read, or is written to meanwhile, is in no bundle, and told
    /// of; where a bundle cannot be stored, packing ends.
    pub async fn pack(&self, decided: Decided) -> Result<Packed> {
        let set = format!("all of {}", self.to.describe(&self.key));
        let set = Set::open(self.remember(&set), self.limits.bytes)?;
        let mut packing = Packing { packer: self, set, packed: Packed::default(), open: None };
        let mut waiting = Waiting::new(decided);
        // Where it fails that is told already.
        if packing.go_on(&mut waiting).await.is_err() {
            return Ok(packing.packed);
        }
        packing.all(waiting).await
    }
}

/// A bundle could not be stored, which was told.
struct Failed;

struct Packing<'a> {
    packer: &'a Packer,
    set: Set,
    packed: Packed,
    open: Option<Filled>,
}

impl Packing<'_> {
    /// Goes on behind bundles that an earlier packing stored.
    async fn go_on(&mut self, waiting: &mut Waiting) -> Result<(), Failed> {
        let number = match self.set.pass_over(self.packer, waiting, &mut self.packed).await {
            Ok(1) => return Ok(()),
            Ok(number) => number,
            Err(e) => {
                let key = self.packer.key.clone();
                return self.tell(&key, e);
            }
        };
        // Those that are stored say that it follows, even if nothing goes into it.
        self.open(number).await.map(drop)
    }

    /// Packs what waits.
    async fn all(mut self, waiting: Waiting) -> Result<Packed> {
        let mut batches = read_ahead(self.packer.from.clone(), self.packer.links, waiting);
        while let Some(batch) = batches.next().await {
            if self.batch(batch?).await.is_err() {
                return Ok(self.packed);
            }
        }
        if self.end().await.is_ok() {
            // What an earlier packing began behind the last one.
            let last = u32::try_from(self.packed.bundles.len()).unwrap_or(u32::MAX);
            for behind in last.saturating_add(1)..=self.set.last() {
                self.packer.discard(behind).await?;
            }
            self.set.over();
        }
        Ok(self.packed)
    }

    async fn batch(&mut self, mut batch: Batch) -> Result<(), Failed> {
        for (name, read) in std::mem::take(&mut batch.files) {
            match read {
                Read::Whole(mut member, frame, version) => {
                    let open = self.room_for(frame.len() as u64, &member).await?;
                    member.offset = open.sequence.written() + member.offset - frame.start as u64;
                    let size = member.size;
                    let written = open.sequence.write(&batch.archive[frame]).await;
                    if let Err(e) = written {
                        return self.fail(e).await;
                    }
                    open.add(&member, version);
                    self.packer.progress.carried(i64::try_from(size).unwrap_or(i64::MAX));
                    self.packer.progress.done();
                }
                Read::Large(source) => self.large(name, source).await?,
                Read::Failed(e) => self.packed.outcome.add(name, Err(e), &self.packer.progress),
            }
        }
        Ok(())
    }

    /// A file that is not held in memory: it is known only behind its last byte whether all of them are of one version.
    /// Where they are not, the bundle goes on from where the file began.
    async fn large(&mut self, name: String, source: FileSource) -> Result<(), Failed> {
        let progress = self.packer.progress.clone();
        if let Err(e) = check_size(source.size()) {
            self.packed.outcome.add(name, Err(e), &progress);
            return Ok(());
        }
        let mut head = Vec::new();
        let mut member = ahead::begin(&mut head, &name, &source);
        let frame = head.len() as u64 + member.size;
        let open = self.room_for(frame, &member).await?;
        open.sequence.mark();
        let (mut hasher, mut told) = (Hasher::new(Algorithm::Crc64Nvme), 0);
        let written = async {
            open.sequence.write(&head).await?;
            member.offset = open.sequence.written();
            let mut buffer = vec![0; BUFFER_BYTES];
            for (offset, length) in Plan::chunks(member.size, BUFFER_BYTES as u64) {
                let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
                if let Err(e) = source.read_at(offset, piece) {
                    return Ok(Err(e));
                }
                hasher.update(piece);
                open.sequence.write(piece).await?;
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                progress.carried(length);
                told += length;
            }
            open.sequence.write(&archive::END[..archive::padding(member.size)]).await?;
            Ok(source.check())
        };
        match written.await {
            Ok(Ok(())) => {
                open.sequence.keep();
                member.checksum = hasher.finish().crc64_value();
                open.add(&member, source.version());
                progress.done();
            }
            Ok(Err(e)) => {
                open.sequence.go_back();
                progress.carried(-told);
                self.packed.outcome.add(name, Err(e), &progress);
            }
            Err(e) => return self.fail(e).await,
        }
        Ok(())
    }

    /// The bundle that a member goes into.
    async fn room_for(&mut self, frame: u64, member: &Member) -> Result<&mut Filled, Failed> {
        let is_full = |open: &Filled| !open.filling.takes(frame, member.index_bytes());
        let mut number = 1;
        if let Some(full) = self.open.take_if(|open| is_full(open)) {
            number = full.number + 1;
            self.close(full, true).await?;
        }
        self.open(number).await
    }

    async fn open(&mut self, number: u32) -> Result<&mut Filled, Failed> {
        if self.open.is_none() {
            match Filled::begin(self.packer, number) {
                Ok(begun) => self.open = Some(begun),
                Err(e) => self.tell(&name_of_bundle(&self.packer.key, number), e)?,
            }
        }
        self.open.as_mut().ok_or(Failed)
    }

    async fn close(&mut self, full: Filled, has_next: bool) -> Result<(), Failed> {
        let Filled { number, key, mut sequence, index, files, bytes, .. } = full;
        let members = u64::from(index.members());
        if has_next {
            self.set.ends(number, Ended { files: files.finish(), index: index.checksum() });
        }
        let written = async {
            sequence.write(&archive::END).await?;
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
            return self.tell(&key, e);
        }
        self.packed.outcome.copied += members;
        self.packed.outcome.bytes += bytes;
        self.packed.bundles.push(key);
        Ok(())
    }

    /// Stores what is left. Of nothing a bundle is made too, unless there was something that could not be packed: then what
    /// has its name stays.
    async fn end(&mut self) -> Result<(), Failed> {
        let is_nothing = self.open.is_none() && self.packed.bundles.is_empty();
        if is_nothing && self.packed.outcome.failed > 0 {
            return Ok(());
        }
        self.open(1).await?;
        match self.open.take() {
            Some(last) => self.close(last, false).await,
            None => Ok(()),
        }
    }

    /// Gives the open bundle up.
    async fn fail(&mut self, error: Error) -> Result<(), Failed> {
        let Some(open) = self.open.take() else { return Err(Failed) };
        open.sequence.fail(&error).await;
        self.tell(&open.key, error)
    }

    fn tell(&mut self, key: &str, error: Error) -> Result<(), Failed> {
        let place = self.packer.to.describe(key);
        self.packed.outcome.add(place, Err(error), &self.packer.progress);
        Err(Failed)
    }
}

impl Filled {
    fn begin(packer: &Packer, number: u32) -> Result<Self> {
        let (key, sequence) = packer.sequence(number)?;
        let (filling, index) = (Filling::new(packer.limits), Writer::new(packer.limits.index_bytes));
        Ok(Self { number, key, sequence, filling, index, files: Files::default(), end: 0, bytes: 0 })
    }

    fn add(&mut self, member: &Member, version: u64) {
        self.files.add(&member.name, version);
        // Members follow each other without a gap.
        let end = member.end() + archive::padding(member.size) as u64;
        self.filling.add(end - self.end, member.index_bytes());
        self.end = end;
        self.index.add(member);
        self.bytes += member.size;
    }
}
