//! The clients of Hou et al. 2017 (Table I, and the campus client of section 3.2): CPUs and memory.
//!
//! On a machine with fewer CPUs than the largest client, all clients are scaled by the same factor, which preserves
//! their ratios. Memory is scaled likewise, and independently.

use super::CpuCount;

/// A client of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientProfile {
    /// User-visible name.
    pub name: &'static str,
    cpus: usize,
    memory_bytes: u64,
    /// Lab commands for the rest of the paper's client: its disk and network.
    pub companion_commands: &'static str,
}

/// A profile scaled to this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledClient {
    /// CPUs of the command.
    pub cpus: CpuCount,
    /// Memory of the command in bytes.
    pub memory_bytes: u64,
    /// Differences from the paper's client, as messages; empty if there are none.
    pub differences: Vec<String>,
}

const MAGNETIC: &str = "lab disk --preset hou-magnetic; lab wan --rate 656mbit";

impl ClientProfile {
    /// All profiles.
    pub const ALL: [Self; 6] = [
        Self::new("hou-baseline", 2, 15 << 29, MAGNETIC),
        Self::new("hou-cpu-plus", 4, 15 << 29, MAGNETIC),
        Self::new("hou-mem-minus", 2, 7 << 29, MAGNETIC),
        Self::new("hou-stor-ssd", 2, 15 << 29, "lab disk --preset hou-ssd; lab wan --rate 656mbit"),
        Self::new(
            "hou-geo-sydney",
            2,
            15 << 29,
            "lab disk --preset hou-magnetic; lab wan --delay 88ms --rate 656mbit",
        ),
        Self::new("hou-campus", 4, 8 << 30, "lab disk --read 167MB/s --write 137MB/s; lab wan --rate 1gbit"),
    ];

    const fn new(
        name: &'static str,
        cpus: usize,
        memory_bytes: u64,
        companion_commands: &'static str,
    ) -> Self {
        Self { name, cpus, memory_bytes, companion_commands }
    }

    /// Scales the profile to a machine with `available_cpus` CPUs and `memory` bytes of memory, if known.
    #[must_use]
    pub fn scaled(&self, available_cpus: usize, memory: Option<u64>) -> ScaledClient {
        let mut differences = Vec::new();
        let max_cpus = Self::ALL.iter().map(|profile| profile.cpus).max().unwrap_or(1);
        let mut cpus = CpuCount::from_whole(self.cpus);
        if available_cpus < max_cpus {
            cpus = cpus.scaled(available_cpus as f64 / max_cpus as f64);
            differences.push(format!(
                "this machine has {available_cpus} CPUs and the paper's largest client {max_cpus}: all are scaled by \
                 {available_cpus}/{max_cpus}, this one has {} instead of {}",
                cpus.as_f64(),
                self.cpus
            ));
        }
        let max_memory = Self::ALL.iter().map(|profile| profile.memory_bytes).max().unwrap_or(1);
        let mut memory_bytes = self.memory_bytes;
        if let Some(memory) = memory.filter(|memory| *memory < max_memory) {
            let part = u128::from(memory_bytes) * u128::from(memory) / u128::from(max_memory);
            memory_bytes = u64::try_from(part).unwrap_or(memory_bytes);
            differences.push(format!(
                "this machine has {} MiB of memory and the paper's largest client {}: all are scaled by the ratio, \
                 this one has {} MiB instead of {}",
                memory >> 20,
                max_memory >> 20,
                memory_bytes >> 20,
                self.memory_bytes >> 20
            ));
        }
        ScaledClient { cpus, memory_bytes, differences }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(name: &str, available_cpus: usize, memory: u64) -> ScaledClient {
        let profile = ClientProfile::ALL.iter().find(|profile| profile.name == name).unwrap();
        profile.scaled(available_cpus, Some(memory))
    }

    #[test]
    fn scaled_keeps_the_papers_values_on_a_large_machine() {
        let given = scaled("hou-mem-minus", 16, 64 << 30);
        assert_eq!((given.cpus, given.memory_bytes), (CpuCount::from_whole(2), 3584 << 20));
        assert!(given.differences.is_empty());
    }

    #[test]
    fn scaled_keeps_ratios_and_reports_differences() {
        let (baseline, plus) = (scaled("hou-baseline", 2, 64 << 30), scaled("hou-cpu-plus", 2, 64 << 30));
        assert_eq!((baseline.cpus, plus.cpus), (CpuCount::from_whole(1), CpuCount::from_whole(2)));
        assert!(baseline.differences[0].contains("this one has 1 instead of 2"), "{baseline:?}");
        let (baseline, minus) = (scaled("hou-baseline", 8, 4 << 30), scaled("hou-mem-minus", 8, 4 << 30));
        assert_eq!((baseline.memory_bytes, minus.memory_bytes), (3840 << 20, 1792 << 20));
        assert_eq!(minus.differences.len(), 1);
    }
}
