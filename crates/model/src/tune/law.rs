//! How long a request takes, by its size and by how many are under way: a law of six numbers, each of which means something.
//!
//! One alone takes what is fixed (the round trips, and what the store does before it answers) and what its bytes take on one
//! connection. All together share what each needs of the narrowest place, be that a line, a processor or a disk: so much for a
//! request, so much for a byte. Where few are under way the first is what counts and where many are the second; between the two
//! lies a knee (the bounds of Denning and Buzen 1978 for a closed system). Behind it more requests at a time cost a little of
//! what is carried: overparallelization (Hou 2017, section 4.1.1).

use super::Cell;

/// Numbers of a law.
pub const COUNT: usize = 6;

/// The law. Logarithms, so that nothing becomes negative and errors are relative.
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
                0.02_f64.ln(),
            ]),
            deviation: [2.0, 2.0, 1.5, 1.5, 0.5, 1.0],
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

    /// One alone, in seconds.
    #[must_use]
    pub fn alone(&self, bytes: f64) -> f64 {
        self.fixed() + bytes * self.per_byte() + self.shared(bytes)
    }

    /// What it takes of what all share, in seconds.
    #[must_use]
    pub fn shared(&self, bytes: f64) -> f64 {
        self.shared_fixed() + bytes * self.shared_per_byte()
    }

    /// So many of that size at a time, each: the logarithm of seconds.
    #[must_use]
    pub fn log_latency(&self, cell: Cell) -> f64 {
        let (bytes, parallel) = (cell.bytes as f64, cell.parallel as f64);
        let (alone, shared) = (self.alone(bytes), self.shared(bytes) * parallel);
        let excess = (shared / alone - 1.0).max(0.0);
        let shared = shared * (1.0 + self.loss() * excess.ln_1p());
        let n = self.sharpness();
        // With the larger one outside, nothing overflows.
        let (most, least) = (alone.max(shared), alone.min(shared));
        most.ln() + (least / most).powf(n).ln_1p() / n
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
