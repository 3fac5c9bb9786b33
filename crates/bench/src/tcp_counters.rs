//! TCP counters of this network namespace, as the kernel reports them. They include the connections of other processes.

use std::fs;

/// TCP counters since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Segments sent, without retransmissions.
    pub sent: u64,
    /// Retransmitted segments: they or their acknowledgements were lost.
    pub retransmitted: u64,
    /// Segments received out of order.
    pub out_of_order: u64,
}

impl TcpCounters {
    /// Reads the current counters. Unavailable counters are 0.
    #[must_use]
    pub fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (snmp, netstat) = (read("/proc/self/net/snmp"), read("/proc/self/net/netstat"));
        Self {
            sent: counter(&snmp, "Tcp:", "OutSegs").unwrap_or(0),
            retransmitted: counter(&snmp, "Tcp:", "RetransSegs").unwrap_or(0),
            out_of_order: counter(&netstat, "TcpExt:", "TCPOFOQueue").unwrap_or(0),
        }
    }

    /// An indicator of packet loss in either direction: retransmitted and out-of-order segments.
    #[must_use]
    pub const fn loss_events(&self) -> u64 {
        self.retransmitted + self.out_of_order
    }

    /// The increments since `before`.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            out_of_order: self.out_of_order.saturating_sub(before.out_of_order),
        }
    }
}

/// Parses a counter of a table that has a line of names above a line of values.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|each| each == name)?;
    numbers.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_read_from_the_column_of_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: A RetransSegs B\nTcp: 5 17 6\nUdp: RetransSegs\nUdp: 9\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs"), Some(17));
        assert_eq!(counter(text, "Tcp:", "Other"), None);
        assert_eq!(counter(text, "TcpExt:", "RetransSegs"), None);
    }
}
