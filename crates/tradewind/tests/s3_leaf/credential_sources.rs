//! Sources of credentials, each against a mock on loopback, and their renewal by a running command.

#[path = "credential_sources/commands.rs"]
mod commands;
#[path = "credential_sources/local.rs"]
mod local;
#[path = "credential_sources/remote.rs"]
mod remote;

use tradewind::aws::{ExpiringCredentials, Inputs, Issued, S3Access};

use crate::support::credential_service::{CredentialService, IssueReply, IssueRequest};

/// A home directory and variables.
struct Setting {
    home: tempfile::TempDir,
    inputs: Inputs,
}

impl Setting {
    fn new(config: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let inputs = Inputs::default();
        let setting = Self { home, inputs }.with_file(".aws/config", config);
        let path = setting.home.path().to_str().unwrap().to_owned();
        setting.with_variable("HOME", &path)
    }

    fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.inputs.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    fn with_file(self, name: &str, text: &str) -> Self {
        self.write(name, text);
        self
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Issues the credentials. The error has `HOME` in place of the home directory.
    fn ask(&self) -> Result<Issued, String> {
        let read = |path: &std::path::Path| std::fs::read(path);
        let issued =
            S3Access::resolve(&self.inputs, &read).and_then(|access| access.issue(&self.inputs, &read));
        let home = self.home.path().to_str().unwrap();
        issued.map_err(|problem| problem.to_string().replace(home, "HOME"))
    }

    fn issue(&self) -> ExpiringCredentials {
        match self.ask().unwrap() {
            Issued::Credentials(issued) => issued,
            Issued::Missing { searched } => panic!("no credentials in {searched}"),
        }
    }

    /// The searched places, if there are no credentials.
    fn searched(&self) -> String {
        match self.ask().unwrap() {
            Issued::Credentials(issued) => panic!("{issued:?}"),
            Issued::Missing { searched } => searched.replace(self.home.path().to_str().unwrap(), "HOME"),
        }
    }

    /// The failure, with `HOST` in place of the service's address.
    fn failure(&self, service: &CredentialService) -> String {
        self.ask().unwrap_err().replace(&service.address.to_string(), "HOST")
    }
}

/// Instance metadata of an instance with the role `web`, whose credentials `keys` returns.
fn instance(
    keys: impl Fn(&IssueRequest) -> IssueReply + Send + Sync + 'static,
) -> impl Fn(&IssueRequest) -> IssueReply + Send + Sync {
    const ROLE_PATH: &str = "/latest/meta-data/iam/security-credentials/";
    move |request| match (request.method.as_str(), request.target.as_str()) {
        ("PUT", "/latest/api/token") => IssueReply::ok("session"),
        ("GET", _) if request.header("x-aws-ec2-metadata-token") != "session" => {
            IssueReply::Respond(401, String::new())
        }
        ("GET", ROLE_PATH) => IssueReply::ok("web"),
        ("GET", path) if path.strip_prefix(ROLE_PATH) == Some("web") => keys(request),
        _ => IssueReply::Respond(404, String::new()),
    }
}
