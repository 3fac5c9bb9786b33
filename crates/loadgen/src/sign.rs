//! Presigned URLs (SigV4 in the query), fast enough to sign every request: the constant part of the query is built
//! once, and the signing key is stored as a keyed HMAC state.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::arguments::Identity;

/// The maximum validity of a presigned URL.
pub const MAX_EXPIRY_SECONDS: u64 = 7 * 86_400;

/// Signs paths for one server as one identity.
pub struct Signer {
    host: String,
    signing: Option<Signing>,
}

struct Signing {
    query: String,
    scope: String,
    key: Hmac<Sha256>,
}

impl Signer {
    /// A signer of URLs that are valid for `expires_seconds` from now.
    pub fn new(identity: &Identity, endpoint: SocketAddr, expires_seconds: u64) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        Self::with_time(identity, &endpoint.to_string(), now.as_secs(), expires_seconds)
    }

    fn with_time(
        identity: &Identity,
        host: &str,
        unix_seconds: u64,
        expires_seconds: u64,
    ) -> anyhow::Result<Self> {
        ensure!(
            (1..=MAX_EXPIRY_SECONDS).contains(&expires_seconds),
            "--expires must be 1 to 604800 seconds (seven days)"
        );
        if identity.unsigned {
            return Ok(Self { host: host.to_owned(), signing: None });
        }
        let time = timestamp(unix_seconds);
        let date = &time[..8];
        let credential_scope = format!("{date}/{}/s3/aws4_request", identity.region);
        let mut key = hmac(format!("AWS4{}", identity.secret_key).as_bytes(), date.as_bytes())?;
        for part in [identity.region.as_str(), "s3", "aws4_request"] {
            key = hmac(&key, part.as_bytes())?;
        }
        let mut query = String::from("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=");
        encode(&format!("{}/{credential_scope}", identity.access_key), &mut query);
        query.push_str(&format!(
            "&X-Amz-Date={time}&X-Amz-Expires={expires_seconds}&X-Amz-SignedHeaders=host"
        ));
        let signing = Signing {
            query,
            scope: format!("AWS4-HMAC-SHA256\n{time}\n{credential_scope}\n"),
            key: Hmac::new_from_slice(&key).context("signing key")?,
        };
        Ok(Self { host: host.to_owned(), signing: Some(signing) })
    }

    /// The value of the Host header.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Appends the signed path and query to `out`. `path` must need no escaping; `query` must be empty or encoded and
    /// sorted, with names that sort after `X-Amz-`.
    pub fn append_target(&self, method: &str, path: &str, query: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(path.as_bytes());
        let Some(signing) = &self.signing else {
            if !query.is_empty() {
                out.push(b'?');
                out.extend_from_slice(query.as_bytes());
            }
            return;
        };
        out.push(b'?');
        let query_start = out.len();
        out.extend_from_slice(signing.query.as_bytes());
        if !query.is_empty() {
            out.push(b'&');
            out.extend_from_slice(query.as_bytes());
        }
        let mut canonical = Sha256::new();
        canonical.update(method);
        canonical.update("\n");
        canonical.update(path);
        canonical.update("\n");
        canonical.update(&out[query_start..]);
        canonical.update("\nhost:");
        canonical.update(&self.host);
        canonical.update("\n\nhost\nUNSIGNED-PAYLOAD");
        let mut digest = [0; 64];
        let mut mac = signing.key.clone();
        mac.update(signing.scope.as_bytes());
        mac.update(hex_into(&canonical.finalize(), &mut digest));
        out.extend_from_slice(b"&X-Amz-Signature=");
        out.extend_from_slice(hex_into(&mac.finalize().into_bytes(), &mut digest));
    }
}

/// Percent-encodes all except the unreserved characters, as SigV4 requires.
pub fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn hmac(key: &[u8], message: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).context("signing key")?;
    mac.update(message);
    Ok(mac.finalize().into_bytes().to_vec())
}

fn hex_into<'a>(bytes: &[u8], out: &'a mut [u8; 64]) -> &'a [u8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    out
}

/// A Unix time as `YYYYMMDDTHHMMSSZ`. The civil date is computed by counting 400-year eras from 1 March of year 0.
fn timestamp(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_match_known_dates() {
        assert_eq!(timestamp(0), "19700101T000000Z");
        assert_eq!(timestamp(951_782_399), "20000228T235959Z");
        assert_eq!(timestamp(951_782_400), "20000229T000000Z");
        assert_eq!(timestamp(1_369_353_600), "20130524T000000Z");
        assert_eq!(timestamp(4_107_542_400), "21000301T000000Z");
    }

    /// The worked example of a presigned GET in the S3 API reference ("Authenticating requests: query parameters").
    #[test]
    fn presigned_url_matches_the_published_example() {
        let identity = Identity {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
            unsigned: false,
        };
        let signer = Signer::with_time(&identity, "examplebucket.s3.amazonaws.com", 1_369_353_600, 86_400)
            .expect("signer");
        let mut target = Vec::new();
        signer.append_target("GET", "/test.txt", "", &mut target);
        let target = String::from_utf8(target).expect("ASCII");
        assert!(
            target.ends_with(
                "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
            ),
            "{target}"
        );
    }
}
