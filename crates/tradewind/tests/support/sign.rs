//! Signature Version 4 in the header, written from the specification for the tests' own client.

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

pub const REGION: &str = "us-east-1";
/// The service of signatures for S3.
pub const S3_SERVICE: &str = "s3";
/// The payload hash of an unsigned body.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The credentials that sign requests.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub id: String,
    pub secret: String,
}

/// Encodes everything except unreserved characters as `%XX`, and `/` unless `keep_slash`.
pub fn encode(text: &str, keep_slash: bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The current time as `YYYYMMDDTHHMMSSZ`.
pub fn timestamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (days, second) = (i64::try_from(seconds / 86_400).unwrap(), seconds % 86_400);
    // Days are converted to a date by years that begin in March, so that the leap day is the last day of its year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

impl Credentials {
    /// The value of the `authorization` header for S3. `query` must be encoded and sorted, `headers` in lower case and sorted.
    pub fn authorization(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(String, String)],
        payload_hash: &str,
        timestamp: &str,
    ) -> String {
        self.authorization_for(S3_SERVICE, method, path, query, headers, payload_hash, timestamp)
    }

    /// Like [`authorization`](Self::authorization), for a service.
    #[allow(clippy::too_many_arguments, reason = "the parts of the signed text")]
    pub fn authorization_for(
        &self,
        service: &str,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(String, String)],
        payload_hash: &str,
        timestamp: &str,
    ) -> String {
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload_hash}");
        let date = &timestamp[..8];
        let scope = format!("{date}/{REGION}/{service}/aws4_request");
        let to_sign = format!("AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{}", sha256_hex(canonical.as_bytes()));
        let mut key = mac(format!("AWS4{}", self.secret).as_bytes(), date);
        for part in [REGION, service, "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex::encode(mac(&key, &to_sign));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.id
        )
    }
}
