//! The bundles that one packing makes, remembered: one that was cut off goes on behind those that are stored and whose
//! files are as they were.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tradewind_core::Algorithm;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};

use super::index::Member;
use super::open::{Bundle, name_of_bundle};
use super::packer::{Packed, Packer, check_size};
use super::waiting::{Found, Waiting};
use crate::Item;
use crate::files::FileSource;
use crate::journal::Entry;

/// A set of bundles.
pub struct Set {
    /// Random; all of them carry it.
    pub id: u64,
    bundle_bytes: u64,
    journal: Option<Entry>,
    /// The journal speaks of this set, not of the one before it.
    is_written: bool,
    /// Bundles that may be stored.
    earlier: BTreeMap<u32, Ended>,
    /// The last bundle that earlier packings may have begun.
    last: u32,
}

/// What the journal says. A set has no line before one of its bundles is about to be stored: until then what was said of the
/// one before it holds.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// A set is packed, in bundles of so many bytes; `last` is the last bundle that was begun of sets before it.
    Set { id: u64, bundle_bytes: u64, last: u32 },
    /// All of a bundle is there but its end. The last line of a number counts.
    Bundle { number: u32, ended: Ended },
}

/// What a bundle is known by that is about to be stored. One that has its name may be what was stored there before.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ended {
    /// Which files it is made of.
    pub files: u64,
    /// The checksum of its index, which has those of its members.
    pub index: u64,
}

/// Which files, and which versions of them.
pub struct Files(Hasher);

impl Default for Files {
    fn default() -> Self {
        Self(Hasher::new(Algorithm::Crc64Nvme))
    }
}

impl Files {
    /// One more of them.
    pub fn add(&mut self, name: &str, version: u64) {
        self.0.update(name.as_bytes());
        self.0.update(&[0]);
        self.0.update(&version.to_le_bytes());
    }

    /// A number that other files do not have.
    pub fn finish(self) -> u64 {
        self.0.finish().crc64_value()
    }
}

impl Set {
    /// The one that was cut off, or another.
    pub fn open(journal: Option<Entry>, bundle_bytes: u64) -> Result<Self> {
        let mut set =
            Self { id: 0, bundle_bytes, journal, is_written: false, earlier: BTreeMap::new(), last: 1 };
        for line in set.journal.iter().flat_map(Entry::earlier::<Line>) {
            match line {
                Line::Set { id, bundle_bytes, last } => {
                    set.last = set.last.max(last);
                    (set.id, set.is_written) = (id, bundle_bytes == set.bundle_bytes);
                }
                Line::Bundle { number, ended } => {
                    set.last = set.last.max(number.saturating_add(1));
                    set.earlier.insert(number, ended);
                }
            }
        }
        if !set.is_written {
            set.begin_anew()?;
        }
        Ok(set)
    }

    /// Another one, that nothing is stored of.
    fn begin_anew(&mut self) -> Result<()> {
        self.id = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("the system gives no random bytes: {e}")))?;
        self.is_written = false;
        self.earlier.clear();
        Ok(())
    }

    /// A bundle is about to be stored.
    pub fn ends(&mut self, number: u32, ended: Ended) {
        self.write(Some(&Line::Bundle { number, ended }));
    }

    /// Adds a line behind that which says of which set it is.
    fn write(&mut self, line: Option<&Line>) {
        let Some(entry) = &mut self.journal else { return };
        let mut written = Ok(());
        if !self.is_written {
            let begun = Line::Set { id: self.id, bundle_bytes: self.bundle_bytes, last: self.last };
            written = entry.begin_anew().and_then(|()| entry.add(&begun));
            self.is_written = written.is_ok();
        }
        if let Err(e) = written.and_then(|()| line.map_or(Ok(()), |line| entry.add(line))) {
            tracing::warn!(error = %e, "a bundle is not remembered: killed, the packing would not go on behind it");
        }
    }

    /// All of it is stored.
    pub fn over(self) {
        if let Some(Err(e)) = self.journal.map(Entry::remove) {
            tracing::warn!(error = %e, "a journal is left");
        }
    }

    /// The number of the last bundle that an earlier packing may have begun.
    pub const fn last(&self) -> u32 {
        self.last
    }

    /// Passes over files that are in bundles already. Answers the number of the bundle that the next one goes into. What was
    /// stored behind that would be taken for what follows it: it is removed, or of another set from now on.
    pub async fn pass_over(
        &mut self,
        packer: &Packer,
        waiting: &mut Waiting,
        packed: &mut Packed,
    ) -> Result<u32> {
        let mut looked = Looked { packer, waiting, packed, ready: VecDeque::new() };
        let mut number = 1;
        while let Some(&Ended { files, index }) = self.earlier.get(&number)
            && let Some(bundle) = self.stored(packer, number).await?
            && bundle.has_next()
            && bundle.index_checksum() == index
            && looked.are_those_of(&bundle, files).await?
        {
            looked.packed.add(&bundle, &packer.progress);
            packer.discard(number).await?;
            number += 1;
        }
        looked.put_back(&[]);
        if number == 1 {
            self.begin_anew()?;
        } else if let Err(e) = self.remove_behind(packer, number).await {
            if !e.says_nothing() {
                // Whoever may not remove them packs everything anew the next time.
                self.begin_anew()?;
                self.write(None);
            }
            return Err(e);
        }
        Ok(number)
    }

    /// Removes the bundles of this set behind one of them, those too that a journal that lost lines does not know.
    async fn remove_behind(&self, packer: &Packer, number: u32) -> Result<()> {
        let mut stored = Vec::new();
        for behind in number.saturating_add(1).. {
            if self.stored(packer, behind).await?.is_some() {
                stored.push(behind);
            } else if behind >= self.last {
                break;
            }
        }
        for behind in stored.into_iter().rev() {
            packer.to.remove(&packer.carrier, &name_of_bundle(&packer.key, behind)).await?;
        }
        Ok(())
    }

    /// A bundle of this set, as far as it can be read.
    async fn stored(&self, packer: &Packer, number: u32) -> Result<Option<Bundle>> {
        match Bundle::open(&packer.carrier, &packer.to, &name_of_bundle(&packer.key, number)).await {
            Ok(bundle) => Ok(Some(bundle).filter(|bundle| bundle.is_of(self.id, number))),
            Err(e) if e.says_nothing() => Err(e),
            Err(e) => {
                tracing::debug!(error = %e, number, "a bundle cannot be gone on from");
                Ok(None)
            }
        }
    }
}

/// Files that wait, with their versions. What cannot be read is told of, and is not among them.
struct Looked<'a> {
    packer: &'a Packer,
    waiting: &'a mut Waiting,
    packed: &'a mut Packed,
    ready: VecDeque<(Item, u64)>,
}

impl Looked<'_> {
    async fn peek(&mut self) -> Result<Option<&(Item, u64)>> {
        while self.ready.is_empty() {
            let batch = self.waiting.batch().await;
            if batch.is_empty() {
                break;
            }
            let (tree, links) = (self.packer.from.clone(), self.packer.links);
            let look = move |found: Found| {
                let item = found?;
                let looked = FileSource::open(&tree, &item.name, links, Default::default())
                    .and_then(|source| check_size(source.size()).map(|()| source.version()));
                match looked {
                    Ok(version) => Ok((item, version)),
                    Err(e) => Err((item.name, e)),
                }
            };
            let looked = tokio::task::spawn_blocking(move || batch.into_iter().map(look).collect::<Vec<_>>());
            for found in looked.await.map_err(|e| Error::new(Reason::Defect, e.to_string()))? {
                match found {
                    Ok(looked) => self.ready.push_back(looked),
                    Err((name, e)) => self.packed.outcome.add(name, Err(e), &self.packer.progress),
                }
            }
        }
        Ok(self.ready.front())
    }

    /// Whether the next files are those that a bundle was made of, and there are others for the one that follows it. They
    /// are taken; where they are not, those that were are put back.
    async fn are_those_of(&mut self, bundle: &Bundle, files: u64) -> Result<bool> {
        let mut found = Files::default();
        for (n, member) in bundle.members().iter().enumerate() {
            match self.peek().await? {
                Some((item, version)) if item.name == member.name => found.add(&item.name, *version),
                _ => {
                    self.put_back(&bundle.members()[..n]);
                    return Ok(false);
                }
            }
            self.ready.pop_front();
        }
        let is_same = found.finish() == files && self.peek().await?.is_some();
        if !is_same {
            self.put_back(bundle.members());
        }
        Ok(is_same)
    }

    /// Puts back what was looked at, behind members of a bundle.
    fn put_back(&mut self, members: &[Member]) {
        self.waiting.put_back(self.ready.drain(..).map(|(item, _)| item));
        let item = |member: &Member| Item {
            name: member.name.clone(),
            size: member.size,
            modified: member.modified,
        };
        self.waiting.put_back(members.iter().map(item));
    }
}
