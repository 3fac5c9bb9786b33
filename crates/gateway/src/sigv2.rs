//! Presigned URLs of AWS Signature Version 2, which some clients still create by default. Headers of that version are
//! not supported.
//!
//! The signature covers the method, the path, the bucket in the host, `Content-MD5`, `Content-Type`, every `x-amz-*`
//! header and parameter, sub-resources and `response-*` parameters. Of all other parameters, only those that choose the
//! page of a listing and its format are accepted. S3 accepts `prefix`, too; here it is rejected, because without it the
//! URL would list the whole bucket. `x-dss-*` headers are rejected, because they could have been added after signing.
//!
//! Invariant: the signed text has one meaning. It is lines of text that do not tell a header from a parameter, and it has
//! decoded values. A request is rejected if its text could be that of another request with another meaning.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, header};

use crate::addressing::Domain;
use crate::error::{Code, WireError};
use crate::s3::{form_decode, is_subresource};

const KEY_ID: &str = "AWSAccessKeyId";
const SIGNATURE: &str = "Signature";
const EXPIRES: &str = "Expires";

/// Signed parameters that are no sub-resources.
const SIGNED_PARAMETERS: &[&str] = &[
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "versionId",
];

/// Parameters that are accepted unsigned: adding or removing one reveals no more than the URL without them.
const UNSIGNED_PARAMETERS: &[&str] = &[
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "key-marker",
    "list-type",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "start-after",
    "upload-id-marker",
    "version-id-marker",
    "x-id",
];

/// Headers that are not read from the query, in addition to those of version 4's signature. As a parameter, such a header
/// would be signed without having its effect.
const HEADERS_NOT_IN_QUERY: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-decoded-content-length",
    "x-amz-expires",
    "x-amz-signature",
    "x-amz-signedheaders",
    "x-amz-trailer",
];

/// The maximum number of query parameters. Bounds their quadratic comparison.
const MAX_PARAMETERS: usize = 100;

/// A client's unverified claim: the parameters of a presigned URL, decoded.
#[derive(Debug)]
pub(crate) struct PresignedV2 {
    pub(crate) key_id: String,
    pub(crate) signature: Vec<u8>,
    /// The last second in which the URL is valid, since 1970.
    pub(crate) expires_at: i64,
    pub(crate) has_token: bool,
    string_to_sign: Vec<u8>,
}

/// A decoded query parameter. `?uploads` has no value, `?uploads=` has an empty one.
struct Parameter {
    name: String,
    value: Option<String>,
}

/// Returns true if a query has a signature of version 2 and none of version 4.
pub(crate) fn is_presigned(query: &str) -> bool {
    let names = || query.split('&').map(|item| item.split_once('=').map_or(item, |(name, _)| name));
    names().any(|name| matches!(name, SIGNATURE | KEY_ID))
        && !names().any(|name| {
            matches!(
                name,
                "X-Amz-Algorithm"
                    | "X-Amz-Credential"
                    | "X-Amz-Expires"
                    | "X-Amz-Security-Token"
                    | "X-Amz-Signature"
                    | "X-Amz-SignedHeaders"
            )
        })
}

impl PresignedV2 {
    /// Parses a request for which [`is_presigned`] is true. `domain` is that of virtual-hosted addressing.
    ///
    /// # Errors
    /// A parameter is missing, malformed, repeated or not covered by the signature, or the method is not supported.
    pub(crate) fn parse(parts: &Parts, domain: Option<&Domain>) -> Result<Self, WireError> {
        if ![Method::GET, Method::HEAD, Method::PUT].contains(&parts.method) {
            return Err(WireError::new(
                Code::InvalidRequest,
                "Presigned URLs of Signature Version 2 are supported for GET, HEAD and PUT. Please use \
                 AWS4-HMAC-SHA256.",
            ));
        }
        if parts.headers.keys().any(|name| name.as_str().starts_with("x-dss-")) {
            return Err(unsigned_error("headers"));
        }
        let parameters = parameters(parts.uri.query().unwrap_or_default())?;
        let value = |name: &str| {
            let found = parameters.iter().find(|parameter| parameter.name == name);
            found.and_then(|parameter| parameter.value.as_deref()).filter(|value| !value.is_empty())
        };
        let (Some(key_id), Some(signature), Some(expires)) =
            (value(KEY_ID), value(SIGNATURE), value(EXPIRES))
        else {
            return Err(WireError::new(
                Code::AccessDenied,
                "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters",
            ));
        };
        let is_number = expires.bytes().all(|c| c.is_ascii_digit());
        let expires_at = expires.parse().ok().filter(|_| is_number).ok_or_else(|| {
            WireError::new(
                Code::AccessDenied,
                format!("Invalid date (should be seconds since epoch): {expires}"),
            )
        })?;
        let token = "x-amz-security-token";
        Ok(Self {
            key_id: key_id.to_owned(),
            // A malformed signature is reported like a wrong one.
            signature: BASE64.decode(signature).unwrap_or_default(),
            expires_at,
            has_token: parts.headers.contains_key(token)
                || parameters.iter().any(|parameter| parameter.name.eq_ignore_ascii_case(token)),
            string_to_sign: string_to_sign(parts, &parameters, expires, domain)?,
        })
    }

    /// The text that the client signed.
    pub(crate) fn string_to_sign(&self) -> &[u8] {
        &self.string_to_sign
    }
}

fn unsigned_error(what: &str) -> WireError {
    WireError::new(
        Code::AccessDenied,
        format!("There were {what} present in the request which were not signed"),
    )
}

/// Decodes the query as the operations do, so that both see the same parameters.
fn parameters(query: &str) -> Result<Vec<Parameter>, WireError> {
    let mut parameters: Vec<Parameter> = Vec::new();
    for item in query.split('&').filter(|item| !item.is_empty()) {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name, Some(form_decode(value)?)),
            None => (item, None),
        };
        let name = form_decode(name)?;
        // A line break would let a value stand for other lines of the signed text.
        if name.bytes().chain(value.iter().flat_map(|value| value.bytes())).any(|b| b.is_ascii_control()) {
            return Err(WireError::new(
                Code::InvalidArgument,
                format!("Query parameter {name:?} contains a control character."),
            ));
        }
        let is_repeated = parameters.iter().any(|other| other.name.eq_ignore_ascii_case(&name));
        if is_repeated || parameters.len() == MAX_PARAMETERS {
            return Err(WireError::new(
                Code::InvalidArgument,
                format!("Query parameter {name:?} is repeated, or there are more than {MAX_PARAMETERS}."),
            ));
        }
        parameters.push(Parameter { name, value });
    }
    Ok(parameters)
}

fn string_to_sign(
    parts: &Parts,
    parameters: &[Parameter],
    expires: &str,
    domain: Option<&Domain>,
) -> Result<Vec<u8>, WireError> {
    let mut amz_headers: Vec<(String, Vec<u8>)> = Vec::new();
    for name in parts.headers.keys().filter(|name| is_amz(name.as_str())) {
        amz_headers.push((name.as_str().to_owned(), joined(&parts.headers, name.as_str())));
    }
    let mut resources: Vec<&Parameter> = Vec::new();
    let (mut md5, mut media_type) = (None, None);
    for parameter in parameters {
        let value = parameter.value.as_deref().unwrap_or_default();
        match parameter.name.as_str() {
            KEY_ID | SIGNATURE | EXPIRES => {}
            "content-md5" => md5 = Some(value),
            "content-type" => media_type = Some(value),
            name if is_amz(name) => {
                let name = name.to_ascii_lowercase();
                // A name with a colon could stand for another name and the beginning of its value.
                let is_name = HeaderName::from_bytes(name.as_bytes()).is_ok();
                if !is_name || HEADERS_NOT_IN_QUERY.contains(&name.as_str()) {
                    return Err(WireError::new(
                        Code::InvalidRequest,
                        format!(
                            "{name} is not supported in the query of a presigned URL of Signature Version 2"
                        ),
                    ));
                }
                // A header of that name is signed in its place; the operations reject it if its value differs.
                if !parts.headers.contains_key(&name) {
                    amz_headers.push((name, value.as_bytes().trim_ascii().to_vec()));
                }
            }
            name if is_resource(name) => {
                check_resource_value(name, value)?;
                resources.push(parameter);
            }
            name if UNSIGNED_PARAMETERS.contains(&name) => {}
            _ => return Err(unsigned_error("query parameters")),
        }
    }
    amz_headers.sort();
    resources.sort_by(|a, b| a.name.cmp(&b.name));

    let mut text = Vec::with_capacity(512);
    text.extend_from_slice(parts.method.as_str().as_bytes());
    text.push(b'\n');
    for (name, in_query) in [("content-md5", md5), ("content-type", media_type)] {
        if parts.headers.contains_key(name) {
            text.extend_from_slice(&joined(&parts.headers, name));
        } else {
            text.extend_from_slice(in_query.unwrap_or_default().as_bytes());
        }
        text.push(b'\n');
    }
    text.extend_from_slice(expires.as_bytes());
    text.push(b'\n');
    for (name, value) in amz_headers {
        text.extend_from_slice(name.as_bytes());
        text.push(b':');
        text.extend_from_slice(&value);
        text.push(b'\n');
    }
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if let Some(bucket) = domain.zip(host).and_then(|(domain, host)| domain.bucket_in_host(host)) {
        text.push(b'/');
        text.extend_from_slice(bucket.as_bytes());
    }
    text.extend_from_slice(parts.uri.path().as_bytes());
    for (n, parameter) in resources.into_iter().enumerate() {
        text.push(if n == 0 { b'?' } else { b'&' });
        text.extend_from_slice(parameter.name.as_bytes());
        if let Some(value) = &parameter.value {
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
        }
    }
    Ok(text)
}

/// Returns true for a parameter that is signed as a part of the resource.
fn is_resource(name: &str) -> bool {
    is_subresource(name) || SIGNED_PARAMETERS.contains(&name)
}

/// Rejects a value that contains another parameter of the resource (`a&versionId=b`): in the signed text, where values are
/// decoded, it could as well be a parameter of its own.
fn check_resource_value(name: &str, value: &str) -> Result<(), WireError> {
    let mut others = value.split('&').skip(1).map(|item| item.split_once('=').map_or(item, |(name, _)| name));
    if let Some(other) = others.find(|other| is_resource(other) || other.starts_with("response-")) {
        return Err(WireError::new(
            Code::InvalidArgument,
            format!(
                "The value of query parameter {name} contains \"&{other}\", which is ambiguous when signed."
            ),
        ));
    }
    Ok(())
}

fn is_amz(name: &str) -> bool {
    name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
}

/// All values of a header, trimmed and joined by commas.
fn joined(headers: &HeaderMap, name: &str) -> Vec<u8> {
    let values: Vec<&[u8]> =
        headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii()).collect();
    values.join(&b","[..])
}

#[cfg(test)]
mod tests;
