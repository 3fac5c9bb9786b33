//! Byte counters of a network interface, in both directions, as the kernel keeps them: including packet headers, and
//! the traffic of all processes.

use std::fs;
use std::io;
use std::time::Duration;

/// The kernel's table of the network interfaces visible to this process.
const INTERFACE_TABLE: &str = "/proc/self/net/dev";

/// Bytes since the interface was created, or between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByteCounts {
    pub sent: u64,
    pub received: u64,
}

impl ByteCounts {
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
        }
    }
}

/// The byte counters of one interface.
#[derive(Debug, Clone)]
pub(super) struct InterfaceCounters {
    name: String,
}

impl InterfaceCounters {
    /// The counters of the interface `name`. If there is none of that name, the error lists the existing ones.
    pub fn for_interface(name: &str) -> io::Result<Self> {
        let table = fs::read_to_string(INTERFACE_TABLE)?;
        if find(&table, name).is_none() {
            let names: Vec<&str> = rows(&table).map(|(name, _)| name).collect();
            let message = format!("there is no interface {name}; available: {}", names.join(", "));
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(Self { name: name.to_owned() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The current counters; zero if the interface no longer exists.
    pub fn read(&self) -> ByteCounts {
        let table = fs::read_to_string(INTERFACE_TABLE).unwrap_or_default();
        find(&table, &self.name).unwrap_or_default()
    }

    /// Bytes of both directions. The loopback interface receives what it sends, so each byte counts once.
    pub fn total(&self, counts: ByteCounts) -> u64 {
        if self.name == "lo" { counts.sent } else { counts.sent + counts.received }
    }

    /// Waits until traffic has dropped to the idle rate (`idle` bytes per second), for at most `max_wait`, and
    /// returns the counters. Acknowledgements and write-back follow the last call.
    pub fn read_when_quiet(&self, max_wait: Duration, idle: f64) -> ByteCounts {
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        const QUIET_BYTES: f64 = 256.0;
        let quiet_bytes = QUIET_BYTES + 2.0 * idle * POLL_INTERVAL.as_secs_f64();
        let (mut last, mut quiet) = (self.read(), 0);
        let mut waited = Duration::ZERO;
        while waited < max_wait && quiet < 3 {
            std::thread::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
            let now = self.read();
            let more = now.since(last);
            quiet = if self.total(more) as f64 <= quiet_bytes { quiet + 1 } else { 0 };
            last = now;
        }
        last
    }
}

fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, rest)| (name.trim(), rest))
}

/// The counters of interface `name` in a table like `/proc/net/dev`: column 1 is bytes received, column 9 bytes sent.
fn find(table: &str, name: &str) -> Option<ByteCounts> {
    let (_, fields) = rows(table).find(|(found, _)| *found == name)?;
    let numbers: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(ByteCounts { received: *numbers.first()?, sent: *numbers.get(8)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_counters_of_the_named_interface() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n    \
             lo:   100      2    0    0    0     0          0         0      100       2    0    0\n  \
             eth0:98765432  10   0    0    0     0          0         0 12345678      20    0    0\n";
        assert_eq!(find(table, "eth0"), Some(ByteCounts { received: 98_765_432, sent: 12_345_678 }));
        assert_eq!(find(table, "eth"), None);
        assert_eq!(find("", "eth0"), None);
    }

    #[test]
    fn total_counts_loopback_bytes_once() {
        use std::io::{Read as _, Write as _};
        let counters = InterfaceCounters::for_interface("lo").unwrap();
        let before = counters.read();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut back, _) = listener.accept().unwrap();
        let sending = std::thread::spawn(move || out.write_all(&vec![7; 4 << 20]).unwrap());
        let mut all = Vec::new();
        back.read_to_end(&mut all).unwrap();
        sending.join().unwrap();
        let bytes = counters.total(counters.read().since(before));
        // Other processes use the interface too.
        assert!(bytes >= 4 << 20, "{bytes}");
        let error = InterfaceCounters::for_interface("no-such-interface").unwrap_err();
        assert!(error.to_string().contains("available: ") && error.to_string().contains("lo"), "{error}");
    }
}
