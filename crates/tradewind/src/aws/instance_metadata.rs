//! The metadata service of an EC2 instance: its URL, timeout and number of attempts.

use std::num::NonZeroU32;
use std::time::Duration;

use tradewind_backend::s3::credential_sources::{InstanceMetadata, ServiceUrl};

use super::Inputs;
use super::origin::{Origin, Problem, Traced};
use super::profile::AwsProfile;

/// Variable that excludes the service.
pub(super) const DISABLED: &str = "AWS_EC2_METADATA_DISABLED";
const IPV4_URL: &str = "http://169.254.169.254";
const IPV6_URL: &str = "http://[fd00:ec2::254]";
/// Maximum of the timeout and of the number of attempts.
const MAX_COUNT: u32 = 1000;

/// The metadata service, unless the environment excludes it.
pub(super) fn resolve(
    inputs: &Inputs,
    profile: &AwsProfile<'_>,
) -> Result<Option<Traced<InstanceMetadata>>, Problem> {
    if inputs.variable(DISABLED).is_some_and(|value| value.value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let value = |variable: &'static str, key: &str| inputs.variable(variable).or_else(|| profile.get(key));
    let url = value("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint");
    let mode = value("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode");
    let url = match (url, mode) {
        (Some(url), _) => url,
        (None, Some(mode)) => mode.parse(url_of_mode)?,
        (None, None) => Traced::new(IPV4_URL, Origin::Default),
    };
    let url = url.parse(|url| ServiceUrl::parse(url).map_err(|error| error.to_string()))?;
    let count = |found: Option<Traced<&str>>| {
        found.map(|found| found.parse(parse_count).map(|found| found.value)).transpose()
    };
    let seconds =
        count(value("AWS_METADATA_SERVICE_TIMEOUT", "metadata_service_timeout"))?.map_or(1, u32::from);
    let max_attempts = count(value("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "metadata_service_num_attempts"))?;
    let timeout = Duration::from_secs(seconds.into());
    Ok(Some(Traced::new(InstanceMetadata { url: url.value, timeout, max_attempts }, url.origin)))
}

fn url_of_mode(mode: &str) -> Result<&'static str, String> {
    match mode.to_ascii_lowercase().as_str() {
        "ipv4" => Ok(IPV4_URL),
        "ipv6" => Ok(IPV6_URL),
        _ => Err(format!("{mode:?} is not an endpoint mode; write IPv4 or IPv6")),
    }
}

fn parse_count(text: &str) -> Result<NonZeroU32, String> {
    match text.parse::<NonZeroU32>() {
        Ok(count) if count.get() <= MAX_COUNT => Ok(count),
        _ => Err(format!("{text:?} is not a whole number from 1 to {MAX_COUNT}")),
    }
}
