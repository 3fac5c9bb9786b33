//! A model of the state that the server must have: for every key, the writes that were sent and whether they were
//! acknowledged.
//!
//! Each write has the tick at which it was sent and, if any, the tick of its response. A read may return a value unless
//! an acknowledged write supersedes it: one that was sent after the value's write was acknowledged, and acknowledged
//! before the read began. A write without a response may have happened or not; after a restart, the observed value
//! decides.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::content::Content;

/// The value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Absent,
    Present(Content),
}

/// Identifies a write in a key's history.
#[derive(Debug, Clone)]
pub struct Ticket {
    key: String,
    sent: u64,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    value: Value,
    sent: u64,
    acknowledged: Option<u64>,
}

/// An acknowledged part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    pub size: usize,
    pub etag: String,
}

/// An unfinished multipart upload.
#[derive(Debug, Clone)]
pub struct Upload {
    pub key: String,
    pub id: String,
    pub content: Content,
    pub parts: Vec<Part>,
    /// Its completion was sent, and the outcome is unknown.
    pub is_completing: bool,
}

/// A version that was acknowledged and not deleted.
#[derive(Debug, Clone)]
pub struct KeptVersion {
    pub key: String,
    pub id: String,
    pub content: Content,
    acknowledged: u64,
}

#[derive(Debug, Default)]
struct ModelState {
    tick: u64,
    keys: BTreeMap<String, Vec<Write>>,
    /// Uploads waiting for a worker to resume them.
    uploads: Vec<Upload>,
    versions: Vec<KeptVersion>,
    /// The versioning of all buckets; `None` before it was set.
    versioning: Option<&'static str>,
    acknowledged: u64,
    acknowledged_bytes: u64,
    in_doubt: u64,
}

/// Shared by all workers.
#[derive(Debug, Default)]
pub struct Model(Mutex<ModelState>);

impl ModelState {
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn history(&mut self, key: &str) -> &mut Vec<Write> {
        self.keys
            .entry(key.to_owned())
            .or_insert_with(|| vec![Write { value: Value::Absent, sent: 0, acknowledged: Some(0) }])
    }
}

impl Write {
    /// Returns true if it is certain at `tick` that `other` has superseded this write.
    fn is_hidden_by(&self, other: &Self, tick: u64) -> bool {
        let is_later = self.acknowledged.is_some_and(|end| end < other.sent);
        is_later && other.acknowledged.is_some_and(|end| end < tick)
    }
}

impl Model {
    fn state(&self) -> std::sync::MutexGuard<'_, ModelState> {
        self.0.lock().unwrap()
    }

    /// A unique number for a content.
    pub fn next_id(&self) -> u64 {
        self.state().next_tick()
    }

    /// The tick at which a read begins.
    pub fn begin_read(&self) -> u64 {
        self.state().next_tick()
    }

    /// Records a write before it is sent.
    pub fn record_sent(&self, key: &str, value: Value) -> Ticket {
        let mut state = self.state();
        let sent = state.next_tick();
        state.in_doubt += 1;
        state.history(key).push(Write { value, sent, acknowledged: None });
        Ticket { key: key.to_owned(), sent }
    }

    /// Records a successful response to a write.
    pub fn record_success(&self, ticket: &Ticket) {
        let mut state = self.state();
        let now = state.next_tick();
        state.acknowledged += 1;
        state.in_doubt -= 1;
        let history = state.history(&ticket.key);
        let write = history.iter_mut().find(|write| write.sent == ticket.sent).expect("it was sent");
        write.acknowledged = Some(now);
        if let Value::Present(content) = write.value {
            state.acknowledged_bytes += content.size as u64;
        }
    }

    /// Records that a write was rejected: it has not happened and never will.
    pub fn record_rejected(&self, ticket: &Ticket) {
        let mut state = self.state();
        state.in_doubt -= 1;
        state.history(&ticket.key).retain(|write| write.sent != ticket.sent);
    }

    /// Checks that `observed` is a possible value of `key` for a read that began at tick `read_start`.
    pub fn check(&self, key: &str, observed: Value, read_start: u64) -> Result<(), String> {
        let mut state = self.state();
        let history = state.history(key);
        let is_possible = |write: &&Write| {
            write.value == observed && !history.iter().any(|other| write.is_hidden_by(other, read_start))
        };
        if history.iter().find(is_possible).is_some() {
            return Ok(());
        }
        Err(format!("{key:?} is {observed:?}, which is impossible after {history:?} (read at {read_start})"))
    }

    /// Sets the value of a key as observed after a restart with nothing in flight.
    pub fn set_observed(&self, key: &str, observed: Value) {
        let mut state = self.state();
        let now = state.next_tick();
        *state.history(key) = vec![Write { value: observed, sent: now, acknowledged: Some(now) }];
    }

    /// Removes an absent key, which is then no longer verified.
    pub fn forget(&self, key: &str) {
        self.state().keys.remove(key);
    }

    /// All keys that were ever written, for a verification with nothing in flight.
    pub fn keys(&self) -> Vec<String> {
        self.state().keys.keys().cloned().collect()
    }

    pub fn return_upload(&self, upload: Upload) {
        self.state().uploads.push(upload);
    }

    pub fn take_upload(&self) -> Option<Upload> {
        self.state().uploads.pop()
    }

    /// Takes all uploads, for a verification with nothing in flight.
    pub fn take_uploads(&self) -> Vec<Upload> {
        std::mem::take(&mut self.state().uploads)
    }

    /// Records the version that an acknowledged write created.
    pub fn keep_version(&self, key: &str, id: &str, content: Content) {
        let mut state = self.state();
        let acknowledged = state.next_tick();
        let (key, id) = (key.to_owned(), id.to_owned());
        state.versions.push(KeptVersion { key, id, content, acknowledged });
    }

    /// Takes a version that is certainly not current, to be deleted: a later write of its key was acknowledged.
    pub fn take_superseded_version(&self, choice: u64) -> Option<KeptVersion> {
        let mut state = self.state();
        let count = state.versions.len();
        let start = usize::try_from(choice).ok()?.checked_rem(count)?;
        let found = (start..count).chain(0..start).find(|index| {
            let version = &state.versions[*index];
            let supersedes = |write: &Write| {
                write.sent > version.acknowledged
                    && write.acknowledged.is_some()
                    && write.value != Value::Present(version.content)
            };
            state.keys.get(&version.key).is_some_and(|history| history.iter().any(supersedes))
        })?;
        Some(state.versions.swap_remove(found))
    }

    /// All versions that must exist, for a verification with nothing in flight.
    pub fn versions(&self) -> Vec<KeptVersion> {
        self.state().versions.clone()
    }

    /// Records the versioning that was set for all buckets.
    pub fn set_versioning(&self, versioning: &'static str) {
        self.state().versioning = Some(versioning);
    }

    pub fn versioning(&self) -> Option<&'static str> {
        self.state().versioning
    }

    /// The numbers of acknowledged writes, of their bytes, and of writes without a response.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.state();
        (state.acknowledged, state.acknowledged_bytes, state.in_doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(id: u64) -> Value {
        Value::Present(Content { id, size: 10 })
    }

    #[test]
    fn only_the_last_acknowledged_write_is_possible() {
        let model = Model::default();
        assert!(model.check("k", Value::Absent, model.begin_read()).is_ok());
        let first = model.record_sent("k", content(1));
        let early = model.begin_read();
        assert!(
            model.check("k", content(1), early).is_ok() && model.check("k", Value::Absent, early).is_ok()
        );
        model.record_success(&first);
        let second = model.record_sent("k", content(2));
        model.record_success(&second);
        let read_start = model.begin_read();
        assert!(model.check("k", content(2), read_start).is_ok());
        assert!(model.check("k", content(1), read_start).is_err(), "an overwritten value must not return");
        assert!(
            model.check("k", Value::Absent, read_start).is_err(),
            "an acknowledged write must not be lost"
        );
        let delete = model.record_sent("k", Value::Absent);
        model.record_success(&delete);
        assert!(model.check("k", content(2), model.begin_read()).is_err(), "a delete must persist");
    }

    #[test]
    fn concurrent_writes_may_end_in_either_order() {
        let model = Model::default();
        let (one, two) = (model.record_sent("k", content(1)), model.record_sent("k", content(2)));
        model.record_success(&two);
        model.record_success(&one);
        let read_start = model.begin_read();
        assert!(
            model.check("k", content(1), read_start).is_ok()
                && model.check("k", content(2), read_start).is_ok()
        );
        assert!(model.check("k", Value::Absent, read_start).is_err());
    }

    #[test]
    fn the_observed_value_resolves_an_unknown_outcome() {
        let model = Model::default();
        let acknowledged = model.record_sent("k", content(1));
        model.record_success(&acknowledged);
        model.record_sent("k", content(2));
        let refused = model.record_sent("k", content(3));
        model.record_rejected(&refused);
        let read_start = model.begin_read();
        assert!(
            model.check("k", content(1), read_start).is_ok()
                && model.check("k", content(2), read_start).is_ok()
        );
        assert!(model.check("k", content(3), read_start).is_err());
        model.set_observed("k", content(1));
        assert!(
            model.check("k", content(2), model.begin_read()).is_err(),
            "a write that had not happened must not appear later"
        );
    }
}
