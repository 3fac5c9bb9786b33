//! How long a request takes, by its size and by how many are under way: a law of seven numbers, each of which means something.
//!
//! One alone takes what is fixed (the round trips, and what the store does before it answers) and what its bytes take on one
//! connection. All together share what each needs of the narrowest place, be that a line, a processor or a disk: so much for a
//! request, so much for a byte. Where one thing bears both, as a processor does, the two add up; where each has its own, as a
//! disk's operations and its bandwidth, the larger hides the other. Where few are under way the first is what counts and where many
//! are the second; between the two lies a knee (the bounds of Denning and Buzen 1978 for a closed system), so that one alone takes
//! exactly the first. Behind it more requests at a time cost a little of what is carried: overparallelization (Hou 2017, section
//! 4.1.1).

use super::Cell;

/// Numbers of a law.
pub const COUNT: usize = 7;

/// The law. Logarithms, so that nothing becomes negative and errors are relative; of the last, which is a part, that of its odds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law(pub [f64; COUNT]);

/// What is taken for likely before anything was measured: a mean and a standard deviation of each number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// The most likely.
    pub mean: Law,
    /// How far off each may be.
    pub deviation: [f64; COUNT],
}

impl Default for Belief {
    fn default() -> Self {
        Self {
            mean: Law([
                (20e-3_f64).ln(),
                (1.0 / 60e6_f64).ln(),
                (200e-6_f64).ln(),
                (1.0 / 100e6_f64).ln(),
                1.0_f64.ln(),
                0.015_f64.ln(),
                -1.5,
            ]),
            deviation: [2.0, 2.0, 1.5, 1.5, 0.5, 1.0, 2.0],
        }
    }
}

impl Belief {
    /// The same where a round trip of so many seconds was seen: nothing is much faster, and a request is seldom several of
    /// them.
    #[must_use]
    pub fn with_round_trip(mut self, seconds: f64) -> Self {
        self.mean.0[0] = (seconds.max(50e-6) * 1.2).ln();
        self.deviation[0] = 0.7;
        self
    }
}

impl Law {
    /// What a request takes whatever its size and however few there are, in seconds: what it shares with others apart.
    #[must_use]
    pub fn fixed(&self) -> f64 {
        self.0[0].exp()
    }

    /// What a byte takes on a connection, in seconds: what it shares apart.
    #[must_use]
    pub fn per_byte(&self) -> f64 {
        self.0[1].exp()
    }

    /// What a request takes of what all share, in seconds: the inverse is the most requests a second.
    #[must_use]
    pub fn shared_fixed(&self) -> f64 {
        self.0[2].exp()
    }

    /// What a byte takes of what all share, in seconds: the inverse is the most bytes a second.
    #[must_use]
    pub fn shared_per_byte(&self) -> f64 {
        self.0[3].exp()
    }

    /// How sharp the knee is: the power that the two bounds are added in.
    #[must_use]
    pub fn sharpness(&self) -> f64 {
        1.0 + self.0[4].exp()
    }

    /// What is lost behind the knee for each time that the requests are e times as many.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.0[5].exp()
    }

    /// What part of what requests and bytes take of what all share is hidden, the lesser behind the greater: nothing where both are
    /// of one thing, all of it where they are of two.
    #[must_use]
    pub fn hidden(&self) -> f64 {
        1.0 / (1.0 + (-self.0[6]).exp())
    }

    /// One alone, in seconds.
    #[must_use]
    pub fn alone(&self, bytes: f64) -> f64 {
        self.fixed() + bytes * self.per_byte() + self.shared(bytes)
    }

    /// What it takes of what all share, in seconds.
    #[must_use]
    pub fn shared(&self, bytes: f64) -> f64 {
        let (request, body) = (self.shared_fixed(), bytes * self.shared_per_byte());
        // A power of the two, which is softer, hides what a request costs beside many bytes, and with it that larger ones carry more.
        request.max(body) + request.min(body) * (1.0 - self.hidden())
    }

    /// So many of that size at a time, each: the logarithm of seconds.
    #[must_use]
    pub fn log_latency(&self, cell: Cell) -> f64 {
        let (bytes, parallel) = (cell.bytes as f64, cell.parallel as f64);
        let (alone, one) = (self.alone(bytes), self.shared(bytes));
        let shared = one * parallel;
        let excess = (shared / alone - 1.0).max(0.0);
        let shared = shared * (1.0 + self.loss() * excess.ln_1p());
        let n = self.sharpness();
        // One alone waits for nobody: what it shares is in what it takes alone. With the larger one outside, nothing overflows.
        let (most, least) = (alone.max(shared), alone.min(shared));
        most.ln() + ((least / most).powf(n) - (one / most).powf(n)).ln_1p() / n
    }

    /// How each number moves it.
    #[must_use]
    pub fn slopes(&self, cell: Cell) -> [f64; COUNT] {
        const STEP: f64 = 1e-4;
        std::array::from_fn(|i| {
            let (mut more, mut less) = (*self, *self);
            more.0[i] += STEP;
            less.0[i] -= STEP;
            (more.log_latency(cell) - less.log_latency(cell)) / (2.0 * STEP)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::law;

    #[test]
    fn one_alone_takes_what_one_takes_alone() {
        for connection in [2e6, 200e6, 20e9] {
            for bytes in [1 << 10, 16 << 20] {
                let law = law(1e-3, connection, 1000.0, 64e6);
                let took = law.log_latency(Cell { bytes, parallel: 1 }).exp();
                assert!((took / law.alone(bytes as f64) - 1.0).abs() < 1e-9, "{took}");
            }
        }
    }

    #[test]
    fn what_is_of_two_things_does_not_add_up() {
        let one = law(1e-3, 200e6, 1000.0, 64e6);
        let mut two = one;
        two.0[6] = 20.0;
        // As many bytes as take as long as a request does.
        let carries = |law: &Law| Cell { bytes: 64_000, parallel: 64 }.rate(law.shared(64e3) * 64.0);
        assert!((carries(&one) / 500.0 - 1.0).abs() < 1e-3, "{}", carries(&one));
        assert!((carries(&two) / 1000.0 - 1.0).abs() < 1e-3, "{}", carries(&two));
    }
}
