//! Packets of this network namespace, as far as the kernel counts them. Not by connection, so that those of others count too.

use std::fs;

/// Counts since the machine began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packets {
    /// TCP segments that were sent, without those that were sent again.
    pub sent: u64,
    /// Those that were sent again, since they or what says that they came were lost.
    pub again: u64,
    /// Those that came before others which were missing.
    pub early: u64,
}

impl Packets {
    /// All up to now; nothing where this system does not say.
    #[must_use]
    pub fn up_to_now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (snmp, netstat) = (read("/proc/self/net/snmp"), read("/proc/self/net/netstat"));
        Self {
            sent: counter(&snmp, "Tcp:", "OutSegs").unwrap_or(0),
            again: counter(&snmp, "Tcp:", "RetransSegs").unwrap_or(0),
            early: counter(&netstat, "TcpExt:", "TCPOFOQueue").unwrap_or(0),
        }
    }

    /// What says that packets were lost here or on their way here.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.again + self.early
    }

    /// Those since then.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            again: self.again.saturating_sub(before.again),
            early: self.early.saturating_sub(before.early),
        }
    }
}

/// A table has a line of names above a line of numbers.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|each| each == name)?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stand_below_their_names() {
        let text = "Ip: A B\nIp: 1 2\nTcp: A RetransSegs B\nTcp: 5 17 6\nUdp: RetransSegs\nUdp: 9\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs"), Some(17));
        assert_eq!(counter(text, "Tcp:", "Other"), None);
        assert_eq!(counter(text, "TcpExt:", "RetransSegs"), None);
    }
}
