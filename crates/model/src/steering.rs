//! How many requests at a time, corrected while they go on: what a plan says was measured another day, by another client, or never.
//!
//! Time is cut into *looks*. After one at the number as it is comes one at another, and that one is kept where it was worth it: more
//! requests where they carry more, fewer where they carry the same (Hou 2017, section 4.1.1: behind the knee more only cost).
//! Steps are small, what did not help is taken back, and the number stays within its bounds. Where neither more nor fewer help,
//! looks become rare until what is carried changes.
//!
//! Where many packets are sent again and requests stand still, a queue overruns (Jacobson 1988), and some will for seconds. Far
//! fewer are tried first there. Lines that lose as much by chance keep what they have, since fewer carry less.
//!
//! What is carried is counted in bytes, and each request as so many bytes as it costs besides: objects a second count too.

use std::time::Duration;

/// What a request costs besides its bytes, in bytes.
pub const REQUEST: f64 = 64.0 * 1024.0;
/// So many times as many requests are tried, where more helped much and where not, and so many times as few.
const FAR_UP: f64 = 2.0;
const UP: f64 = 1.4;
const DOWN: f64 = 1.3;
/// And so many times where a queue overruns.
const FAR_DOWN: f64 = 2.0;
/// What more requests have to carry in addition, as a part of how many they are more; and what fewer may carry less. Not so where a plan
/// says that no fewer carry as much: those have to, and going back to it takes no gain but where a queue
/// overruns, or chance would lead down step by step.
const GAIN: f64 = 0.15;
const LOSS: f64 = 0.03;
/// The same where a queue overruns, all in all: what is carried there differs from look to look.
const LOSS_OVERRUN: f64 = 0.1;
/// What was carried once counts so much less with each look.
const FADES: f64 = 0.99;
/// What is carried has changed where it differs by so much.
const CHANGE: f64 = 0.2;
/// Looks between two tries, once neither direction helps: twice as many each time, up to these.
const MOST_REST: u32 = 8;
/// Looks that a mean is of.
const MOST_LOOKS: u32 = 8;
/// A look is as long as two requests take, within these.
const LEAST_LOOK: Duration = Duration::from_millis(300);
const MOST_LOOK: Duration = Duration::from_millis(1200);

/// The number, and what is known of it.
#[derive(Debug, Clone)]
pub struct Steering {
    /// Requests at a time, without the try that is under way.
    number: f64,
    least: f64,
    most: f64,
    /// What a plan says; nothing where there is none.
    planned: f64,
    /// Another number, that is tried.
    tried: Option<f64>,
    /// The look is at what the change before has left.
    is_settling: bool,
    /// What the number carries, a second: the mean of so many looks. And the most that any did lately.
    carries: f64,
    looks: u32,
    best: f64,
    /// More requests are tried so many times as many.
    up: f64,
    /// A queue overruns, and that is why fewer are tried.
    overruns: bool,
    is_retreat: bool,
    /// What was carried before the first of those, or by one of them that carried clearly more.
    before: f64,
    /// Far fewer turned out to carry less, or more to carry more.
    has_held: bool,
    /// Tries in turn that did not help, and looks to come before the next one.
    vain: u32,
    rest: u32,
}

impl Steering {
    /// Begins with `number` requests at a time; there are never fewer than `least` nor more than `most`.
    #[must_use]
    pub fn new(number: usize, (least, most): (usize, usize)) -> Self {
        let (least, most) = (least.min(number).max(1) as f64, most.max(number) as f64);
        Self {
            number: number as f64,
            least,
            most,
            planned: 0.0,
            tried: None,
            is_settling: true,
            carries: 0.0,
            looks: 0,
            best: 0.0,
            up: FAR_UP,
            overruns: false,
            is_retreat: false,
            before: 0.0,
            has_held: false,
            vain: 0,
            rest: 0,
        }
    }

    /// The same of one that begins with what a plan says.
    #[must_use]
    pub const fn planned(self) -> Self {
        Self { planned: self.number, ..self }
    }

    /// Requests at a time, now.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.tried.unwrap_or(self.number).round() as usize
    }

    /// How long the next look takes where a request takes `latency`.
    #[must_use]
    pub fn look(latency: Duration) -> Duration {
        (2 * latency).clamp(LEAST_LOOK, MOST_LOOK)
    }

    /// A look ended in which so much was carried a second; all that time requests waited for their turn. `overruns`: many packets
    /// were sent again, and requests stood still. Answers how many are to be under way from now on.
    pub fn looked(&mut self, carried: f64, overruns: bool) -> usize {
        self.overruns = overruns;
        if std::mem::take(&mut self.is_settling) {
            return self.requests();
        }
        match self.tried {
            Some(tried) => self.judge(tried, carried),
            None => self.know(carried),
        }
        self.requests()
    }

    /// Nobody waited for a turn: what was carried says nothing about the number.
    pub fn idled(&mut self) -> usize {
        (self.tried, self.is_retreat, self.is_settling) = (None, false, true);
        self.requests()
    }

    /// What the number carries is known: another one is tried, if it is time.
    fn know(&mut self, carried: f64) {
        let (less, more) = (carried.min(self.carries), carried.max(self.carries));
        if more > less * (1.0 + CHANGE) {
            // Whatever did not help before may help now.
            (self.vain, self.rest, self.up) = (0, 0, FAR_UP);
            (self.carries, self.looks, self.best) = (carried, 0, 0.0);
        }
        self.looks = (self.looks + 1).min(MOST_LOOKS);
        self.carries += (carried - self.carries) / f64::from(self.looks);
        self.best = (self.best * FADES).max(self.carries);
        match self.rest.checked_sub(1) {
            Some(rest) => self.rest = rest,
            None => self.try_another(),
        }
    }

    fn try_another(&mut self) {
        let was_retreat = self.is_retreat;
        self.is_retreat = self.overruns && !self.has_held && (self.vain == 0 || was_retreat);
        if self.is_retreat && !was_retreat {
            self.before = self.carries;
        }
        let wanted = if self.is_retreat {
            self.number / FAR_DOWN
        } else if self.vain.is_multiple_of(2) {
            let up = self.number * self.up;
            if self.number < self.planned { up.min(self.planned) } else { up }
        } else {
            self.number / DOWN
        };
        let wanted = wanted.clamp(self.least, self.most).round();
        if wanted == self.number.round() {
            if std::mem::take(&mut self.is_retreat) {
                // Whoever has as few as may be tries more.
                (self.has_held, self.vain) = (true, 0);
                return self.try_another();
            }
            return self.was_vain();
        }
        (self.tried, self.is_settling) = (Some(wanted), true);
    }

    fn judge(&mut self, tried: f64, carried: f64) {
        self.tried = None;
        let is_more = tried > self.number;
        let worth = self.carries * (1.0 + GAIN * (tried / self.number - 1.0));
        let helps = if is_more {
            let is_back_to_plan = tried <= self.planned && !self.overruns;
            if is_back_to_plan { carried > self.carries } else { carried > worth }
        } else {
            let best = self.carries.max(self.best);
            let (known, loss) = if self.is_retreat {
                (self.before.max(self.best), LOSS_OVERRUN)
            } else if tried < self.planned {
                (best, 0.0)
            } else {
                (best, LOSS)
            };
            carried >= known * (1.0 - loss)
        };
        if !helps {
            self.has_held |= std::mem::take(&mut self.is_retreat);
            return self.was_vain();
        }
        if self.is_retreat {
            // What is more than chance is not given up again.
            self.before = self.before.max(carried * (1.0 - LOSS_OVERRUN));
        }
        let is_much = (carried / self.carries - 1.0) > (tried / self.number - 1.0) / 2.0;
        self.up = if is_much { FAR_UP } else { UP };
        self.vain = u32::from(!is_more);
        self.has_held |= is_more && carried > worth;
        (self.number, self.carries, self.looks) = (tried, carried, 1);
        // More in the same direction is tried at once.
        self.try_another();
    }

    fn was_vain(&mut self) {
        (self.vain, self.up, self.is_settling) = (self.vain + 1, UP, true);
        if self.vain >= 2 {
            self.rest = (1 << (self.vain / 2).min(4)).min(MOST_REST);
        }
    }
}

#[cfg(test)]
mod tests;
