//! The command that a cluster has not responded to yet, for messages to a waiting user.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A place where commands are noted while they run. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<Mutex<Option<PendingCommand>>>);

/// A command without a response so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCommand {
    /// The command, without the word `ceph`.
    pub command: String,
    /// When it was sent.
    pub since: Instant,
}

/// Ends the note of a command when dropped.
pub(crate) struct ActivityGuard(Activity);

impl Activity {
    /// Notes a command until the guard is dropped. Of concurrent commands, the last one is noted.
    pub(crate) fn begin(&self, words: &[&str]) -> ActivityGuard {
        // Values may be long.
        let command = words.iter().take(3).copied().collect::<Vec<_>>().join(" ");
        self.replace(Some(PendingCommand { command, since: Instant::now() }));
        ActivityGuard(self.clone())
    }

    /// The command that runs now, if any.
    pub fn pending(&self) -> Option<PendingCommand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, command: Option<PendingCommand>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = command;
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_noted_while_it_runs() {
        let activity = Activity::default();
        let guard = activity.begin(&["config-key", "set", "key", "a long value"]);
        assert_eq!(activity.clone().pending().unwrap().command, "config-key set key");
        drop(guard);
        assert_eq!(activity.pending(), None);
    }
}
