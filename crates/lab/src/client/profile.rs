//! The clients of Hou et al. 2017 (Table I, and the campus client of section 3.2): processors and memory.
//!
//! Where a machine has fewer processors than the largest of them, all get the same part of what they had, so that
//! twice as many are still twice as many. Memory likewise, and apart from it.

use super::Processors;

/// A client of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientProfile {
    /// The name that users know it by.
    pub name: &'static str,
    processors: usize,
    memory: u64,
    /// What the paper's client had beside these, and how to have it here.
    pub beside: &'static str,
}

/// A profile on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// What the command gets.
    pub processors: Processors,
    /// What it gets, in bytes.
    pub memory: u64,
    /// How this differs from the paper's client, in words; nothing where it does not.
    pub differs: Vec<String>,
}

const MAGNETIC: &str = "lab disk --profile hou-magnetic; lab wan --rate 656mbit";

impl ClientProfile {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::new("hou-baseline", 2, 15 << 29, MAGNETIC),
        Self::new("hou-cpu-plus", 4, 15 << 29, MAGNETIC),
        Self::new("hou-mem-minus", 2, 7 << 29, MAGNETIC),
        Self::new("hou-stor-ssd", 2, 15 << 29, "lab disk --profile hou-ssd; lab wan --rate 656mbit"),
        Self::new(
            "hou-geo-sydney",
            2,
            15 << 29,
            "lab disk --profile hou-magnetic; lab wan --delay 88ms --rate 656mbit",
        ),
        Self::new("hou-campus", 4, 8 << 30, "lab disk --read 167MB/s --write 137MB/s; lab wan --rate 1gbit"),
    ];

    const fn new(name: &'static str, processors: usize, memory: u64, beside: &'static str) -> Self {
        Self { name, processors, memory, beside }
    }

    /// What it is on a machine with so many processors and so much memory.
    #[must_use]
    pub fn scaled(&self, processors: usize, memory: Option<u64>) -> Scaled {
        let mut differs = Vec::new();
        let most = Self::ALL.iter().map(|profile| profile.processors).max().unwrap_or(1);
        let mut given = Processors::of(self.processors);
        if processors < most {
            given = given.times(processors as f64 / most as f64);
            differs.push(format!(
                "this machine has {processors} processors and the largest of the paper's clients {most}: each gets \
                 {processors}/{most} of its own, this one {} instead of {}",
                given.as_number(),
                self.processors
            ));
        }
        let most = Self::ALL.iter().map(|profile| profile.memory).max().unwrap_or(1);
        let mut bytes = self.memory;
        if let Some(memory) = memory.filter(|memory| *memory < most) {
            let part = u128::from(bytes) * u128::from(memory) / u128::from(most);
            bytes = u64::try_from(part).unwrap_or(bytes);
            differs.push(format!(
                "this machine has {} MiB of memory and the largest of the paper's clients {}: each gets as much less, \
                 this one {} MiB instead of {}",
                memory >> 20,
                most >> 20,
                bytes >> 20,
                self.memory >> 20
            ));
        }
        Scaled { processors: given, memory: bytes, differs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(name: &str, processors: usize, memory: u64) -> Scaled {
        let profile = ClientProfile::ALL.iter().find(|profile| profile.name == name).unwrap();
        profile.scaled(processors, Some(memory))
    }

    #[test]
    fn a_large_machine_gives_what_the_paper_had() {
        let given = scaled("hou-mem-minus", 16, 64 << 30);
        assert_eq!((given.processors, given.memory), (Processors::of(2), 3584 << 20));
        assert!(given.differs.is_empty());
    }

    #[test]
    fn a_small_machine_keeps_the_proportions_and_says_so() {
        let (baseline, plus) = (scaled("hou-baseline", 2, 64 << 30), scaled("hou-cpu-plus", 2, 64 << 30));
        assert_eq!((baseline.processors, plus.processors), (Processors::of(1), Processors::of(2)));
        assert!(baseline.differs[0].contains("this one 1 instead of 2"), "{baseline:?}");
        let (baseline, minus) = (scaled("hou-baseline", 8, 4 << 30), scaled("hou-mem-minus", 8, 4 << 30));
        assert_eq!((baseline.memory, minus.memory), (3840 << 20, 1792 << 20));
        assert_eq!(minus.differs.len(), 1);
    }
}
