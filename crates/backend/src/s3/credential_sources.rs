//! Services that issue temporary credentials: STS, AWS IAM Identity Center ("SSO"), the endpoint of a container and the
//! metadata service of an EC2 instance. The response has keys, and usually their expiry.
//!
//! The caller decides which service to use, and supplies tokens: nothing here reads the environment or a file. Every
//! request ends within [`MAX_ISSUE_TIME`]. Messages contain no secrets.

mod container;
mod instance_metadata;
mod issued;
mod issuer_client;
mod rejection;
mod service_url;
mod sso;
mod sts;

pub use container::ContainerEndpoint;
pub use instance_metadata::InstanceMetadata;
pub use issuer_client::{IssuerClient, MAX_ISSUE_TIME};
pub use service_url::ServiceUrl;
pub use sso::SsoRole;
pub use sts::{AssumedRole, Sts};
