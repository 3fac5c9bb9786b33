//! Credentials in responses: JSON of the container endpoint, the metadata service and IAM Identity Center.

use serde_json::Value as Json;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::Credentials;

use crate::remote::decimal::parse_decimal;
use crate::remote::time::parse_time;
use crate::s3::ExpiringCredentials;

/// Maximum expiry, in milliseconds since 1970.
const MAX_EXPIRY_MILLIS: u64 = 1 << 53;

/// Names of the fields of a document with credentials.
pub(super) struct FieldNames {
    pub id: &'static str,
    pub secret: &'static str,
    pub token: &'static str,
    pub expires: &'static str,
}

/// Parses a JSON document. The error does not quote it, since it may contain secrets.
pub(super) fn parse_json(service: &str, document: &[u8]) -> Result<Json> {
    serde_json::from_slice(document).map_err(|e| {
        let position = format!("line {} column {}", e.line(), e.column());
        Error::new(Reason::Io, format!("{service} sent no valid JSON (error at {position})"))
    })
}

impl FieldNames {
    /// Reads credentials. The expiry is a time, or a number of milliseconds since 1970; it may be missing.
    pub fn credentials(&self, service: &str, document: &Json) -> Result<ExpiringCredentials> {
        let text = |name: &str| document[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let required = |name: &str| {
            text(name)
                .ok_or_else(|| Error::new(Reason::Io, format!("{service} sent credentials without {name}")))
        };
        let (id, secret) = (required(self.id)?, required(self.secret)?);
        let expires = match &document[self.expires] {
            Json::Null => None,
            Json::Number(millis) => {
                let expires = parse_decimal(&millis.to_string(), MAX_EXPIRY_MILLIS);
                let expires = expires.and_then(|millis| i64::try_from(millis).ok());
                let expires = expires.ok_or_else(|| self.expiry_error(service, &millis.to_string()))?;
                Some(Timestamp::from_millis(expires))
            }
            other => Some(self.parse_expiry(service, other.as_str().unwrap_or_default())?),
        };
        Ok(ExpiringCredentials { credentials: Credentials { id, secret, token: text(self.token) }, expires })
    }

    fn parse_expiry(&self, service: &str, text: &str) -> Result<Timestamp> {
        parse_time(text).ok_or_else(|| self.expiry_error(service, text))
    }

    fn expiry_error(&self, service: &str, text: &str) -> Error {
        let why = format!("{service} sent credentials with {} = {text:?}, which is no time", self.expires);
        Error::new(Reason::Io, why)
    }
}

/// The fields of the container endpoint and the metadata service.
pub(super) const METADATA_FIELDS: FieldNames =
    FieldNames { id: "AccessKeyId", secret: "SecretAccessKey", token: "Token", expires: "Expiration" };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_need_both_keys_and_a_valid_expiry() {
        let read = |text: &str| METADATA_FIELDS.credentials("S", &parse_json("S", text.as_bytes())?);
        let good = r#"{"AccessKeyId": "i", "SecretAccessKey": "s", "Token": "t", "Expiration": "1970-01-01T00:00:01Z"}"#;
        let issued = read(good).unwrap();
        assert_eq!(issued.expires, Some(Timestamp::from_millis(1000)));
        assert_eq!(issued.credentials.token.as_deref(), Some("t"));
        let lasting = read(r#"{"AccessKeyId": "i", "SecretAccessKey": "s"}"#).unwrap();
        assert_eq!((lasting.expires, lasting.credentials.token), (None, None));
        let expiring = |millis: &str| {
            read(&format!(r#"{{"AccessKeyId": "i", "SecretAccessKey": "s", "Expiration": {millis}}}"#))
        };
        for millis in ["0", "2147483648", "9007199254740992"] {
            let expires = expiring(millis).unwrap().expires.unwrap();
            assert_eq!(expires.millis().to_string(), millis);
        }
        for bad in ["-1", "9223372036854775808", "18446744073709551615", "1e30", "5.5"] {
            assert!(expiring(bad).unwrap_err().message().contains("which is no time"), "{bad}");
        }
        for (bad, expected) in [
            ("hush", "S sent no valid JSON (error at line 1 column 1)"),
            (r#"{"AccessKeyId": "i"}"#, "S sent credentials without SecretAccessKey"),
            (
                r#"{"AccessKeyId": "i", "SecretAccessKey": "hush", "Expiration": "soon"}"#,
                "S sent credentials with Expiration = \"soon\", which is no time",
            ),
        ] {
            assert_eq!(read(bad).unwrap_err().message(), expected);
        }
    }
}
