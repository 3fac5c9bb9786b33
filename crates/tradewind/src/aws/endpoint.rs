//! Resolves the endpoint: the configured one, otherwise Amazon's for the region. Follows the AWS SDKs and Tools
//! Reference Guide, "Service-specific endpoints" and "AWS Region".

use std::net::IpAddr;

use tradewind_backend::s3::credential_sources::ServiceUrl;
use tradewind_backend::s3::{AddressingStyle, Endpoint};

use super::Inputs;
use super::origin::{Origin, Problem, Traced};
use super::profile::{AwsProfile, Files};

/// Default region for signatures: most S3-compatible stores accept it, and the CLI uses it too.
const DEFAULT_REGION: &str = "us-east-1";

/// The domains of Amazon's partitions by region prefix; the first match counts.
const PARTITIONS: [(&str, &str); 7] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("", "amazonaws.com"),
];

/// A service whose endpoint can be configured.
pub(super) struct Service {
    /// The variable with its endpoint.
    variable: &'static str,
    /// Its name in a `services` section.
    name: &'static str,
    /// The host without region and domain.
    host: &'static str,
}

const S3: Service = Service { variable: "AWS_ENDPOINT_URL_S3", name: "s3", host: "s3" };
/// The Security Token Service.
pub(super) const STS: Service = Service { variable: "AWS_ENDPOINT_URL_STS", name: "sts", host: "sts" };
/// The portal of IAM Identity Center.
pub(super) const SSO: Service = Service { variable: "AWS_ENDPOINT_URL_SSO", name: "sso", host: "portal.sso" };

/// The endpoint, with the style of its URLs, and the region.
pub(super) fn resolve(
    inputs: &Inputs,
    files: &Files,
    profile: &AwsProfile<'_>,
) -> Result<(Traced<Endpoint>, Traced<String>), Problem> {
    let region = inputs.variable("AWS_REGION").or_else(|| inputs.variable("AWS_DEFAULT_REGION"));
    let region = region.or_else(|| profile.get("region"));
    let region = region.map(|given| given.parse(parse_region)).transpose()?;
    let style = profile.nested("s3", "addressing_style").map(|given| given.parse(parse_style)).transpose()?;
    let style = style.and_then(|style| style.value);
    let default_region = || Traced::new(DEFAULT_REGION.to_owned(), Origin::Default);
    match configured_url(inputs, files, profile, &S3)? {
        Some(url) => {
            let mut endpoint = url.parse(parse_url)?;
            let host = &endpoint.value.peer.host;
            let is_address = host.parse::<IpAddr>().is_ok();
            let default_style =
                if is_amazon(host) { AddressingStyle::VirtualHost } else { AddressingStyle::Path };
            let region = region
                .or_else(|| Some(Traced::new(region_of_host(host)?.to_owned(), Origin::Host(host.clone()))));
            // A bucket name cannot be prepended to an IP address.
            endpoint.value.style =
                if is_address { AddressingStyle::Path } else { style.unwrap_or(default_style) };
            Ok((endpoint, region.unwrap_or_else(default_region)))
        }
        None => {
            let region = region.unwrap_or_else(default_region);
            let domain = domain_of_region(&region.value);
            let style = style.unwrap_or(AddressingStyle::VirtualHost);
            let endpoint = Endpoint::for_region(&region.value, domain, style);
            Ok((Traced::new(endpoint, region.origin.clone()), region))
        }
    }
}

/// The URL of a service other than S3: the configured one, otherwise Amazon's for the region.
pub(super) fn service_url(
    inputs: &Inputs,
    files: &Files,
    profile: &AwsProfile<'_>,
    service: &Service,
    region: &str,
) -> Result<ServiceUrl, Problem> {
    match configured_url(inputs, files, profile, service)? {
        Some(url) => {
            let url = url.parse(|url| ServiceUrl::parse(url).map_err(|error| error.to_string()))?;
            Ok(url.value)
        }
        None => {
            let domain = domain_of_region(region);
            Ok(ServiceUrl::of_host(format!("{}.{region}.{domain}", service.host)))
        }
    }
}

fn domain_of_region(region: &str) -> &'static str {
    let found = PARTITIONS.iter().find(|(prefix, _)| region.starts_with(prefix));
    found.map_or("amazonaws.com", |(_, domain)| domain)
}

/// The configured URL, if any: that of the service before that of all services, the environment before the profile.
fn configured_url<'a>(
    inputs: &'a Inputs,
    files: &'a Files,
    profile: &AwsProfile<'a>,
    service: &Service,
) -> Result<Option<Traced<&'a str>>, Problem> {
    let ignore = inputs
        .variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
        .or_else(|| profile.get("ignore_configured_endpoint_urls"));
    if ignore.is_some_and(|ignore| ignore.value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let url = inputs.variable(service.variable).or_else(|| inputs.variable("AWS_ENDPOINT_URL"));
    if url.is_some() {
        return Ok(url);
    }
    let of_service = match profile.get("services") {
        Some(services) => files.service_endpoint(&services, service.name)?,
        None => None,
    };
    Ok(of_service.or_else(|| profile.get("endpoint_url")))
}

fn parse_url(url: &str) -> Result<Endpoint, String> {
    if url.contains('@') {
        // The URL may contain a password, so it is not quoted.
        return Err(
            "the endpoint's URL contains a user; write it as https://HOST or http://HOST:PORT".to_owned()
        );
    }
    let endpoint = Endpoint::parse(url, AddressingStyle::Path).map_err(|error| error.to_string())?;
    if !endpoint.path.is_empty() && is_amazon(&endpoint.peer.host) {
        return Err(format!(
            "endpoint {url:?} has a path, which Amazon does not support; write it without the bucket"
        ));
    }
    Ok(endpoint)
}

/// Validates a region: it becomes part of a host name and of every signature.
pub(super) fn parse_region(text: &str) -> Result<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if text.len() > 63 || text.starts_with('-') || text.ends_with('-') || !text.chars().all(is_legal) {
        return Err(format!("{text:?} is not a region; write it like us-east-1"));
    }
    Ok(text.to_owned())
}

fn parse_style(text: &str) -> Result<Option<AddressingStyle>, String> {
    match text {
        "path" => Ok(Some(AddressingStyle::Path)),
        "virtual" => Ok(Some(AddressingStyle::VirtualHost)),
        "auto" => Ok(None),
        _ => Err(format!("addressing_style is {text:?}; write path, virtual or auto")),
    }
}

/// The labels before the domain of an Amazon host; `None` for other hosts.
fn amazon_host_prefix(host: &str) -> Option<&str> {
    PARTITIONS.iter().find_map(|(_, domain)| host.strip_suffix(domain)?.strip_suffix('.'))
}

fn is_amazon(host: &str) -> bool {
    amazon_host_prefix(host).is_some()
}

/// The region in an Amazon host: `s3.REGION.amazonaws.com`, `s3-REGION.`, `s3.dualstack.REGION.`,
/// `NAME.s3.REGION.vpce.`.
fn region_of_host(host: &str) -> Option<&str> {
    let before = amazon_host_prefix(host)?;
    let label = before.strip_suffix(".vpce").unwrap_or(before).rsplit('.').next()?;
    let label = label.strip_prefix("s3-").unwrap_or(label);
    let mut parts = label.rsplit('-');
    let is_number = parts.next()?.bytes().all(|c| c.is_ascii_digit());
    (is_number && parts.count() >= 2).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_of_parses_amazon_hosts() {
        for (host, expected) in [
            ("s3.eu-west-1.amazonaws.com", Some("eu-west-1")),
            ("s3-us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3-fips.dualstack.us-gov-west-1.amazonaws.com", Some("us-gov-west-1")),
            ("bucket.vpce-0a1b-2c3d.s3.us-east-1.vpce.amazonaws.com", Some("us-east-1")),
            ("s3.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("s3.eusc-de-east-1.amazonaws.eu", Some("eusc-de-east-1")),
            ("s3.amazonaws.com", None),
            ("s3-accelerate.amazonaws.com", None),
            ("s3.eu-west-1.example.com", None),
            ("s3.eu-west-1.notamazonaws.com", None),
        ] {
            assert_eq!(region_of_host(host), expected, "{host}");
        }
    }
}
