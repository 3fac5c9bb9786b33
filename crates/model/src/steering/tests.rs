//! Requests at a time behind lines that are played: a closed system that follows a law, whose looks differ by chance.

use super::*;
use crate::tune::{Cell, Law};

/// What is played: the law of a line, requests of one size, and how much looks differ.
struct Play {
    law: Law,
    bytes: u64,
    noise: f64,
    chance: u64,
    clock: f64,
    /// What was under way goes on for a while.
    carries: f64,
    overruns: bool,
}

/// What was carried at a time, by how many.
struct Looked {
    at: f64,
    requests: usize,
    carried: f64,
}

fn law(fixed: f64, megabytes: f64) -> Law {
    Law([
        fixed.ln(),
        (1.0 / 60e6_f64).ln(),
        100e-6_f64.ln(),
        (1e-6 / megabytes).ln(),
        4.0_f64.ln(),
        0.03_f64.ln(),
        -20.0,
    ])
}

impl Play {
    fn new(law: Law, bytes: u64, seed: u64) -> Self {
        Self { law, bytes, noise: 0.05, chance: seed, clock: 0.0, carries: 0.0, overruns: false }
    }

    fn random(&mut self) -> f64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// What a look says of what was carried.
    fn looked(&mut self, carried: f64) -> f64 {
        carried * (1.0 + self.noise * (self.random() + self.random() + self.random() - 1.5) * 2.0)
    }

    fn latency(&self, requests: usize) -> f64 {
        self.law.log_latency(Cell { bytes: self.bytes, parallel: requests }).exp()
    }

    /// What so many carry a second, as steering counts.
    fn at(&self, requests: usize) -> f64 {
        requests as f64 / self.latency(requests) * (self.bytes as f64 + REQUEST)
    }

    fn best(&self) -> f64 {
        (1..=256).map(|n| self.at(n)).fold(0.0, f64::max)
    }

    /// The fewest that carry nearly all.
    fn knee(&self) -> usize {
        (1..=256).find(|n| self.at(*n) >= 0.95 * self.best()).unwrap()
    }

    fn go_on(&mut self, steering: &mut Steering, seconds: f64) -> Vec<Looked> {
        let (until, mut all) = (self.clock + seconds, Vec::new());
        while self.clock < until {
            let requests = steering.requests();
            let latency = self.latency(requests);
            let look = Steering::look(Duration::from_secs_f64(latency)).as_secs_f64();
            // For the time of a request what was begun before still counts.
            let early = (latency / look).min(1.0);
            let carried = self.carries * early + self.at(requests) * (1.0 - early);
            self.carries = self.at(requests);
            self.clock += look;
            steering.looked(self.looked(carried), self.overruns);
            all.push(Looked { at: self.clock, requests, carried });
        }
        all
    }
}

fn mean(looks: &[Looked], from: f64, of: impl Fn(&Looked) -> f64) -> f64 {
    let late: Vec<f64> = looks.iter().filter(|look| look.at > from).map(of).collect();
    late.iter().sum::<f64>() / late.len() as f64
}

/// Lines near and far, fast and slow, with small requests and large ones.
fn plays() -> impl Iterator<Item = Play> {
    let lines = [(0.5e-3, 110.0), (10e-3, 110.0), (50e-3, 12.0), (130e-3, 110.0), (180e-3, 110.0)];
    let sizes = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
    lines.into_iter().flat_map(move |(fixed, rate)| {
        sizes
            .into_iter()
            .flat_map(move |bytes| (1..6).map(move |seed| Play::new(law(fixed, rate), bytes, seed)))
    })
}

#[test]
fn what_the_line_carries_is_found_and_kept() {
    let mut parts = Vec::new();
    for mut play in plays() {
        let mut steering = Steering::new(32, (4, 256));
        let looks = play.go_on(&mut steering, 60.0);
        parts.push(mean(&looks, 6.0, |look| look.carried) / play.best());
    }
    parts.sort_by(f64::total_cmp);
    let at = |part: f64| parts[(parts.len() as f64 * part) as usize];
    println!("of the best: least {:.3}, tenth {:.3}, median {:.3}", parts[0], at(0.1), at(0.5));
    assert!(parts[0] > 0.85 && at(0.1) > 0.92, "{parts:?}");
}

#[test]
fn what_a_plan_says_is_not_given_up_by_chance() {
    let part = |is_planned: bool| {
        let mut parts = Vec::new();
        for mut play in plays() {
            let knee = (1..=256).find(|n| play.at(*n) >= 0.97 * play.best()).unwrap();
            let steering = Steering::new(knee, (4, 256));
            let mut steering = if is_planned { steering.planned() } else { steering };
            let looks = play.go_on(&mut steering, 40.0);
            parts.push(mean(&looks, 2.0, |look| look.carried) / play.at(knee));
        }
        parts.sort_by(f64::total_cmp);
        println!(
            "planned {is_planned}: {:.3} {:.3} {:.3}",
            parts[0],
            parts[parts.len() / 10],
            parts[parts.len() / 2]
        );
        parts[parts.len() / 10]
    };
    assert!(part(true) > 0.97 && part(true) > part(false));
}

#[test]
fn what_carries_a_little_less_is_not_drifted_to() {
    // Next door: each connection carries on where another has lost something.
    let bent = |requests: usize| 110e6 * (1.0 - 0.5 / requests as f64);
    let mut parts = Vec::new();
    for seed in 0..200 {
        let mut play = Play { noise: 0.03, ..Play::new(law(0.3e-3, 110.0), 8 << 20, seed) };
        let mut steering = Steering::new(8, (5, 256)).planned();
        let looks = (0..80).map(|_| {
            let carried = bent(steering.requests());
            steering.looked(play.looked(carried), false);
            carried / bent(8)
        });
        let looks: Vec<f64> = looks.collect();
        parts.push(looks.iter().sum::<f64>() / looks.len() as f64);
    }
    parts.sort_by(f64::total_cmp);
    println!("in 24 s: least {:.3}, tenth {:.3}, median {:.3}", parts[0], parts[20], parts[100]);
    assert!(parts[20] > 0.985, "{}", parts[20]);
}

#[test]
fn it_is_never_much_worse_than_where_it_began() {
    for mut play in plays() {
        let mut steering = Steering::new(32, (4, 256));
        let begun = play.at(32);
        let looks = play.go_on(&mut steering, 60.0);
        for window in looks.windows(6) {
            let carried = window.iter().map(|look| look.carried).sum::<f64>() / 6.0;
            assert!(carried > 0.8 * begun, "{carried} of {begun} at {}", window[0].at);
        }
    }
}

#[test]
fn it_does_not_creep_up_without_gain() {
    for mut play in plays() {
        let mut steering = Steering::new(32, (4, 256));
        let looks = play.go_on(&mut steering, 120.0);
        let (requests, knee) = (mean(&looks, 40.0, |look| look.requests as f64), play.knee());
        // Where fewer do, they become half as many at the least.
        assert!(requests < (2.5 * knee as f64).max(16.0), "{requests} where {knee} do, {} bytes", play.bytes);
    }
}

#[test]
fn a_step_is_followed() {
    for seed in 1..20 {
        let (near, far) = (law(10e-3, 20.0), law(150e-3, 100.0));
        let mut play = Play::new(near, 64 << 10, seed);
        let mut steering = Steering::new(32, (4, 256));
        play.go_on(&mut steering, 30.0);
        for law in [far, near, far] {
            play.law = law;
            let began = play.clock;
            let looks = play.go_on(&mut steering, 20.0);
            let part = mean(&looks, began + 5.0, |look| look.carried) / play.best();
            assert!(part > 0.85, "{part} of the best five seconds after a step, with seed {seed}");
        }
    }
}

#[test]
fn going_back_goes_to_the_plan_itself() {
    let mut steering = Steering::new(10, (1, 256)).planned();
    let carried = |requests: usize| if requests >= 8 { 100.0 } else { 50.0 };
    let seen: Vec<usize> = (0..60).map(|_| steering.looked(carried(steering.requests()), false)).collect();
    // From eight on, ten are tried and no eleven.
    let from_eight = seen.windows(2).filter(|two| two[0] == 8 && two[1] > 8).map(|two| two[1]);
    let tried: Vec<usize> = from_eight.collect();
    assert!(!tried.is_empty() && tried.iter().all(|requests| *requests == 10), "{seen:?}");
}

#[test]
fn going_back_to_a_plan_does_not_say_that_fewer_hold() {
    let mut steering = Steering::new(8, (1, 256)).planned();
    // Six carry as much by chance, and then eight a little more.
    let mut was_less = false;
    for _ in 0..60 {
        let requests = steering.requests();
        was_less |= requests == 6;
        let carried = match requests {
            8 if was_less => 102.0,
            8 => 100.0,
            6 => 101.0,
            _ => 90.0,
        };
        steering.looked(carried, false);
    }
    assert!(was_less);
    let seen: Vec<usize> = (0..8).map(|_| steering.looked(40.0, true)).collect();
    assert!(seen.contains(&4) && !seen.contains(&16), "half as many are tried first: {seen:?}");
}

#[test]
fn a_queue_that_overruns_gets_fewer_at_once() {
    // The other side of the room: one fills the line.
    let mut play = Play::new(law(0.5e-3, 12.0), 64 << 10, 3);
    play.overruns = true;
    let mut steering = Steering::new(32, (5, 256));
    let looks = play.go_on(&mut steering, 2.5);
    let fewest = looks.iter().map(|look| look.requests).min();
    assert!(looks.iter().all(|look| look.requests <= 32) && fewest <= Some(8), "{fewest:?}");
}

#[test]
fn a_plan_of_more_than_a_queue_holds_is_not_gone_back_to() {
    for seed in 0..100 {
        let mut play = Play { noise: 0.03, ..Play::new(law(0.3e-3, 12.0), 64 << 10, seed) };
        let mut steering = Steering::new(32, (5, 256)).planned();
        let looks = (0..300).map(|_| {
            let requests = steering.requests();
            steering.looked(play.looked(12e6), requests > 10);
            requests as f64
        });
        let late: Vec<f64> = looks.skip(200).collect();
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(mean < 20.0, "{mean} at a time with seed {seed}");
    }
}

#[test]
fn a_line_that_loses_by_chance_keeps_what_carries_more() {
    for mut play in plays() {
        play.overruns = true;
        let mut steering = Steering::new(32, (4, 256));
        let looks = play.go_on(&mut steering, 60.0);
        let part = mean(&looks, 10.0, |look| look.carried) / play.best();
        assert!(part > 0.8, "{part} of the best");
        for window in looks.windows(6) {
            let carried = window.iter().map(|look| look.carried).sum::<f64>() / 6.0;
            // Two looks at half as many.
            assert!(carried > 0.7 * play.at(32), "{carried} of {}", play.at(32));
        }
    }
}

#[test]
fn what_fewer_have_gained_is_not_given_up_by_still_fewer() {
    let mut steering = Steering::new(32, (4, 256));
    let mut look_twice = |carried| {
        steering.looked(carried, true);
        steering.looked(carried, true)
    };
    assert_eq!(look_twice(100.0), 16);
    assert_eq!(look_twice(200.0), 8);
    assert_eq!(look_twice(95.0), 16);
}

#[test]
fn who_has_as_few_as_may_be_tries_more() {
    let mut steering = Steering::new(4, (4, 256));
    steering.looked(100.0, true);
    assert_eq!(steering.looked(100.0, true), 8);
}

#[test]
fn idle_times_say_nothing() {
    let mut steering = Steering::new(32, (4, 256));
    for _ in 0..100 {
        assert_eq!(steering.idled(), 32);
        steering.looked(1.0, false);
        steering.looked(1e6, false);
    }
    assert_eq!(Steering::new(300, (4, 256)).requests(), 300, "what a plan says is no less");
    assert_eq!(Steering::new(2, (4, 256)).requests(), 2);
}
