//! What must be there: for every key the writes that were sent and which of them were acknowledged.
//!
//! Each write has the tick at which it was sent and, once its answer has come, the tick of that. A value
//! may be seen unless some acknowledged write lies wholly behind it: began after the write that made the
//! value was acknowledged, and was acknowledged before the look began. A write without an answer may have
//! happened or not, but after a restart it is settled by what is seen.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::content::Content;

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Absent,
    Present(Content),
}

/// Names a write within a key's history.
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

/// A part that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    pub size: usize,
    pub etag: String,
}

/// A multipart upload that was begun and not finished.
#[derive(Debug, Clone)]
pub struct Upload {
    pub key: String,
    pub id: String,
    pub content: Content,
    pub parts: Vec<Part>,
    /// Its completion was sent, and nobody knows what became of it.
    pub is_completing: bool,
}

#[derive(Debug, Default)]
struct State {
    tick: u64,
    keys: BTreeMap<String, Vec<Write>>,
    /// Waiting for a worker to go on with them.
    uploads: Vec<Upload>,
    acknowledged: u64,
    acknowledged_bytes: u64,
    in_doubt: u64,
}

/// Shared by all workers.
#[derive(Debug, Default)]
pub struct Model(Mutex<State>);

impl State {
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
    /// Whether it is certain at tick `at` that `other` came after this one and has hidden it.
    fn is_hidden_by(&self, other: &Self, at: u64) -> bool {
        let behind = self.acknowledged.is_some_and(|end| end < other.sent);
        behind && other.acknowledged.is_some_and(|end| end < at)
    }
}

impl Model {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A new number for a content, never used before.
    pub fn next_id(&self) -> u64 {
        self.state().next_tick()
    }

    /// The tick at which a look begins.
    pub fn look(&self) -> u64 {
        self.state().next_tick()
    }

    /// A write is about to be sent.
    pub fn send(&self, key: &str, value: Value) -> Ticket {
        let mut state = self.state();
        let sent = state.next_tick();
        state.in_doubt += 1;
        state.history(key).push(Write { value, sent, acknowledged: None });
        Ticket { key: key.to_owned(), sent }
    }

    /// Its success was answered.
    pub fn acknowledge(&self, ticket: &Ticket) {
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

    /// It was refused: it has not happened and never will.
    pub fn refuse(&self, ticket: &Ticket) {
        let mut state = self.state();
        state.in_doubt -= 1;
        state.history(&ticket.key).retain(|write| write.sent != ticket.sent);
    }

    /// Whether `seen` may be what `key` held at some moment since the look began.
    pub fn check(&self, key: &str, seen: Value, look: u64) -> Result<(), String> {
        let mut state = self.state();
        let history = state.history(key);
        let may_be = |write: &&Write| {
            write.value == seen && !history.iter().any(|other| write.is_hidden_by(other, look))
        };
        if history.iter().find(may_be).is_some() {
            return Ok(());
        }
        Err(format!("{key:?} holds {seen:?}, which cannot be after {history:?} (look at {look})"))
    }

    /// After a restart, with nothing in flight: `seen` is what holds from now on.
    pub fn settle(&self, key: &str, seen: Value) {
        let mut state = self.state();
        let now = state.next_tick();
        *state.history(key) = vec![Write { value: seen, sent: now, acknowledged: Some(now) }];
    }

    /// A key that holds nothing is not looked at any more.
    pub fn forget(&self, key: &str) {
        self.state().keys.remove(key);
    }

    /// Every key that was ever written, for a look with nothing in flight.
    pub fn keys(&self) -> Vec<String> {
        self.state().keys.keys().cloned().collect()
    }

    pub fn put_aside(&self, upload: Upload) {
        self.state().uploads.push(upload);
    }

    pub fn take_upload(&self) -> Option<Upload> {
        self.state().uploads.pop()
    }

    /// Takes all uploads, for a look with nothing in flight.
    pub fn take_uploads(&self) -> Vec<Upload> {
        std::mem::take(&mut self.state().uploads)
    }

    /// Writes acknowledged so far, their bytes, and writes whose answer never came.
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
    fn the_last_acknowledged_write_holds() {
        let model = Model::default();
        assert!(model.check("k", Value::Absent, model.look()).is_ok());
        let first = model.send("k", content(1));
        let early = model.look();
        assert!(
            model.check("k", content(1), early).is_ok() && model.check("k", Value::Absent, early).is_ok()
        );
        model.acknowledge(&first);
        let second = model.send("k", content(2));
        model.acknowledge(&second);
        let look = model.look();
        assert!(model.check("k", content(2), look).is_ok());
        assert!(model.check("k", content(1), look).is_err(), "an overwritten value must not come back");
        assert!(model.check("k", Value::Absent, look).is_err(), "an acknowledged write must not be lost");
        let delete = model.send("k", Value::Absent);
        model.acknowledge(&delete);
        assert!(model.check("k", content(2), model.look()).is_err(), "a delete must stay");
    }

    #[test]
    fn concurrent_writes_may_end_in_either_order() {
        let model = Model::default();
        let (one, two) = (model.send("k", content(1)), model.send("k", content(2)));
        model.acknowledge(&two);
        model.acknowledge(&one);
        let look = model.look();
        assert!(model.check("k", content(1), look).is_ok() && model.check("k", content(2), look).is_ok());
        assert!(model.check("k", Value::Absent, look).is_err());
    }

    #[test]
    fn doubt_is_settled_by_what_is_seen() {
        let model = Model::default();
        let acknowledged = model.send("k", content(1));
        model.acknowledge(&acknowledged);
        model.send("k", content(2));
        let refused = model.send("k", content(3));
        model.refuse(&refused);
        let look = model.look();
        assert!(model.check("k", content(1), look).is_ok() && model.check("k", content(2), look).is_ok());
        assert!(model.check("k", content(3), look).is_err());
        model.settle("k", content(1));
        assert!(
            model.check("k", content(2), model.look()).is_err(),
            "what was not there must not appear later"
        );
    }
}
