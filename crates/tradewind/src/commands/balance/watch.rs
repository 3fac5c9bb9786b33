//! Messages to a waiting user: about a round that takes long, and about an end while the cluster does not respond.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tradewind_balance::activity::Activity;

use super::super::signals::{CaughtSignal, Signals};
use super::super::{CommandOutcome, StoppedBySignal};
use super::note;

/// Time after which a round is reported as long.
const LONG_ROUND: Duration = Duration::from_secs(5);
/// Time without a response after which an interrupted command reports it.
const LONG_RESPONSE: Duration = Duration::from_secs(3);
/// Interval at which the clock is read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The round that runs now. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct RoundClock(Arc<Mutex<Option<Instant>>>);

impl RoundClock {
    /// A round begins.
    pub fn start(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The round is over.
    pub fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn started(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The balancing that a user watches.
pub(super) struct Watch {
    /// The round that runs.
    pub round: RoundClock,
    /// The command that the cluster has not responded to.
    pub activity: Activity,
    /// The round that was reported as long.
    reported: Option<Instant>,
}

impl Watch {
    pub fn new(activity: Activity) -> Self {
        Self { round: RoundClock::default(), activity, reported: None }
    }

    /// Waits for the end of the balancing. A signal calls `stop`, and the affinities are restored first. While the cluster
    /// does not respond, a second signal ends the process at once.
    pub async fn wait(
        mut self,
        mut signals: Signals,
        mut balancing: JoinHandle<anyhow::Result<CommandOutcome>>,
        stop: impl FnOnce(),
    ) -> anyhow::Result<CommandOutcome> {
        let caught = loop {
            tokio::select! {
                ended = &mut balancing => return ended?,
                caught = signals.next() => break caught,
                () = tokio::time::sleep(POLL_INTERVAL) => self.report_long_round(),
            }
        };
        stop();
        let stopped = Instant::now();
        let mut is_hanging = false;
        loop {
            tokio::select! {
                ended = &mut balancing => {
                    ended??;
                    return Err(StoppedBySignal(caught).into());
                }
                second = signals.next_except_hangup(), if is_hanging => end_without_restoring(second),
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    is_hanging = is_hanging || self.report_hanging_end(stopped);
                }
            }
        }
    }

    fn report_long_round(&mut self) {
        let Some(started) = self.round.started().filter(|started| Some(*started) != self.reported) else {
            return;
        };
        if started.elapsed() >= LONG_ROUND {
            self.reported = Some(started);
            note(&format!("this round has taken {} s so far; {}", LONG_ROUND.as_secs(), self.reason()));
        }
    }

    /// Returns true if the message was printed that explains a second signal.
    fn report_hanging_end(&self, stopped: Instant) -> bool {
        let is_late = |since: Instant| since.elapsed() >= LONG_RESPONSE;
        let is_hanging = self.activity.pending().is_some_and(|pending| is_late(pending.since));
        if !is_hanging || !is_late(stopped) {
            return false;
        }
        note(&format!(
            "the affinities are not restored yet; {}. They are as soon as the cluster responds. To end now and leave them \
             as they are, interrupt once more; \"tradewind balance restore\" restores them later",
            self.reason()
        ));
        true
    }

    fn reason(&self) -> String {
        match self.activity.pending() {
            Some(pending) => {
                let seconds = pending.since.elapsed().as_secs();
                format!("the cluster has not responded to \"ceph {}\" for {seconds} s", pending.command)
            }
            None => "counters of OSDs are slow to arrive".to_owned(),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("round", &self.round).finish_non_exhaustive()
    }
}

fn end_without_restoring(caught: CaughtSignal) -> ! {
    note(
        "ended without restoring the affinities; run \"tradewind balance restore\" once the cluster responds",
    );
    tradewind_balance::exit_now(caught.exit_status())
}
