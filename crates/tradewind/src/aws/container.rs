//! The endpoint that issues credentials to a container: of ECS by its path, of EKS Pod Identity and others by its URL.

use std::path::PathBuf;

use tradewind_backend::remote::ProxyRules;
use tradewind_backend::s3::ExpiringCredentials;
use tradewind_backend::s3::credential_sources::ContainerEndpoint;

use super::Inputs;
use super::issue::IssueContext;
use super::origin::{Origin, Problem, Traced};

/// Variable with the path on the host of ECS.
pub(super) const RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
/// Variable with the whole URL.
pub(super) const FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
/// Variable with the path of a file with the value of `Authorization`.
const TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
/// Variable with the value of `Authorization` itself; the file has precedence.
const TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";

/// The container's endpoint, and the file with its token, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSource {
    endpoint: ContainerEndpoint,
    token_file: Option<Traced<PathBuf>>,
}

/// The endpoint in the environment, if any. The path has precedence over the URL.
pub(super) fn resolve(inputs: &Inputs) -> Result<Option<Traced<ContainerSource>>, Problem> {
    let endpoint = match (inputs.variable(RELATIVE_URI), inputs.variable(FULL_URI)) {
        (Some(path), _) => path.parse(|path| ContainerEndpoint::on_ecs(path).map_err(|e| e.to_string()))?,
        (None, Some(url)) => url.parse(|url| ContainerEndpoint::at_url(url).map_err(|e| e.to_string()))?,
        (None, None) => return Ok(None),
    };
    let Traced { value: mut endpoint, origin } = endpoint;
    let token_file = inputs.variable(TOKEN_FILE);
    let token_file = token_file.map(|file| Traced::new(inputs.expand(file.value), file.origin));
    if token_file.is_none() {
        endpoint.authorization = inputs.variable(TOKEN).map(|token| token.value.to_owned());
    }
    Ok(Some(Traced::new(ContainerSource { endpoint, token_file }, origin)))
}

impl ContainerSource {
    /// Requests the container's credentials.
    pub(super) fn issue(
        &self,
        context: &IssueContext<'_>,
        origin: &Origin,
    ) -> Result<ExpiringCredentials, Problem> {
        let mut endpoint = self.endpoint.clone();
        if let Some(file) = &self.token_file {
            endpoint.authorization = Some(context.read_token(&file.value, &file.origin)?);
        }
        let peer = endpoint.peer().clone();
        context.issue(
            &peer,
            ProxyRules::direct(),
            origin,
            |client| async move { endpoint.issue(&client).await },
        )
    }
}
