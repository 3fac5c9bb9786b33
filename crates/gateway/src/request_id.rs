//! Request IDs: 16 hexadecimal digits, unique within the process and, by a random start, very probably across
//! processes. They are not secret.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// The ID of one request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// A new ID.
    #[must_use]
    pub fn next() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(start());
        // Multiplication by an odd number is a bijection of u64: IDs stay distinct and do not look like a counter.
        Self(n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The ID as a header's value.
    #[must_use]
    pub fn to_header(self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let mut text = [0; 16];
        for (i, byte) in self.0.to_be_bytes().into_iter().enumerate() {
            text[2 * i] = DIGITS[usize::from(byte >> 4)];
            text[2 * i + 1] = DIGITS[usize::from(byte & 15)];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The value of `x-amz-id-2` and `HostId`: a random name of this process, equal in all its responses. Its prefix tells
/// clients of classes that this server keeps them: a proxy may replace `Server`, but passes this header.
#[must_use]
pub fn host_id() -> &'static HeaderValue {
    static HOST: OnceLock<HeaderValue> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = hex::encode([random().to_be_bytes(), random().to_be_bytes()].concat());
        HeaderValue::try_from(format!("tradewind-{name}")).unwrap_or(HeaderValue::from_static("tradewind"))
    })
}

fn start() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(random)
}

/// A random number, or 0 if the system has none: IDs are still distinct within the process.
fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_header_equals_display() {
        let (a, b) = (RequestId::next(), RequestId::next());
        assert_ne!(a, b);
        assert_eq!(a.to_header().to_str().unwrap(), a.to_string());
        assert_eq!(a.to_string().len(), 16);
    }
}
