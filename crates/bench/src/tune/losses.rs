//! Packets that were lost, as far as this kernel counts them: those that it sent again, and those that came before others which were
//! missing. By namespace and not by connection, so that what others lose counts too: it makes a probe longer and no more.

use std::fs;

/// Files of counters, which have a line of names above a line of numbers, and the counters that are looked at.
const COUNTERS: [(&str, &str, &str); 2] =
    [("/proc/self/net/snmp", "Tcp:", "RetransSegs"), ("/proc/self/net/netstat", "TcpExt:", "TCPOFOQueue")];

/// All up to now; nothing where this system does not say.
pub(super) fn up_to_now() -> u64 {
    let count = |(path, table, name)| counter(&fs::read_to_string(path).ok()?, table, name);
    COUNTERS.into_iter().filter_map(count).sum()
}

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
