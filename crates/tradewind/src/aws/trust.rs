//! The certificates that TLS trusts: those of a configured bundle, otherwise those of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

use super::origin::{Origin, Problem, Traced};
use super::{Inputs, ReadFile};

/// Paths of the system's trusted certificates; the first usable file counts.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora and RHEL, newer
    "/etc/ssl/ca-bundle.pem",             // SUSE
    "/etc/ssl/certs/ca-bundle.crt",       // NixOS
    "/etc/ssl/cert.pem",                  // Alpine, BSD
];

/// Builds the TLS configuration of a client. It trusts only the certificates of `bundle`, otherwise those of
/// `SSL_CERT_FILE`, otherwise the system's. Certificates that rustls does not support are skipped if there are others:
/// systems contain some that predate its rules.
pub fn client_tls(
    bundle: Option<&Traced<PathBuf>>,
    inputs: &Inputs,
    read: ReadFile<'_>,
) -> Result<Arc<ClientConfig>, Problem> {
    let variable = || {
        let given = inputs.variable("SSL_CERT_FILE")?;
        Some(Traced::new(inputs.expand(given.value), given.origin))
    };
    let roots = match bundle.cloned().or_else(variable) {
        Some(file) => file.parse(|path| configured_roots(&path, read))?.value,
        None => system_roots(read)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Problem::new(Origin::Default, format!("TLS cannot be used: {error}")))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// The certificates of a configured file.
fn configured_roots(path: &Path, read: ReadFile<'_>) -> Result<RootCertStore, String> {
    let shown = path.display();
    let pem = read(path)
        .map_err(|error| format!("cannot read the certificates {shown}: {error}; specify a PEM file"))?;
    let roots = parse_certificates(&pem)
        .map_err(|why| format!("{shown} {why}; specify a PEM file of certificates"))?;
    if roots.is_empty() {
        return Err(format!("{shown} contains no usable certificate; specify a PEM file of certificates"));
    }
    Ok(roots)
}

/// The certificates of the first system file that contains any.
fn system_roots(read: ReadFile<'_>) -> Result<RootCertStore, Problem> {
    let found = SYSTEM_FILES.iter().find_map(|path| {
        let roots = parse_certificates(&read(Path::new(path)).ok()?).ok()?;
        (!roots.is_empty()).then_some(roots)
    });
    found.ok_or_else(|| {
        let message = "it is not set, and this system has no certificates in the usual locations; install them (the \
                       package is usually called ca-certificates) or set it to a PEM file";
        Problem::new(Origin::Variable("AWS_CA_BUNDLE"), message)
    })
}

fn parse_certificates(pem: &[u8]) -> Result<RootCertStore, &'static str> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| match error {
        Error::MissingSectionEnd { .. } => "ends inside a certificate",
        _ => "is not PEM",
    })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use std::io;

    fn authority() -> String {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    /// Files by name; others are missing.
    fn read<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> io::Result<Vec<u8>> + 'a {
        |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    fn trust(bundle: Option<&str>, variable: Option<&str>, files: &[(&str, &str)]) -> Result<(), String> {
        let bundle = bundle.map(|path| Traced::new(PathBuf::from(path), Origin::Variable("AWS_CA_BUNDLE")));
        let mut inputs = Inputs::default();
        inputs.environment.extend(variable.map(|path| ("SSL_CERT_FILE".to_owned(), path.to_owned())));
        let config = client_tls(bundle.as_ref(), &inputs, &read(files));
        config.map(|_| ()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn client_tls_uses_the_first_configured_bundle() {
        let pem = authority();
        let system = (SYSTEM_FILES[1], pem.as_str());
        assert_eq!(trust(None, None, &[(SYSTEM_FILES[0], "# none"), system]), Ok(()));
        assert_eq!(trust(Some("a.pem"), None, &[("a.pem", &format!("# ours\n{pem}{pem}"))]), Ok(()));
        assert_eq!(trust(None, Some("a.pem"), &[("a.pem", &pem)]), Ok(()));
        let broken = format!("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{pem}");
        assert_eq!(
            trust(Some("a.pem"), None, &[("a.pem", &broken)]),
            Ok(()),
            "one usable certificate is enough"
        );
        for (bundle, variable, files, expected) in [
            (
                Some("a.pem"),
                Some("b.pem"),
                &[system, ("b.pem", &pem)][..],
                "AWS_CA_BUNDLE: cannot read the certificates a.pem: entity not found; specify a PEM file",
            ),
            (
                None,
                Some("b.pem"),
                &[system],
                "SSL_CERT_FILE: cannot read the certificates b.pem: entity not found; specify a PEM file",
            ),
            (
                Some("a.pem"),
                None,
                &[system, ("a.pem", "hello")],
                "AWS_CA_BUNDLE: a.pem contains no usable certificate; specify a PEM file of certificates",
            ),
            (
                Some("a.pem"),
                None,
                &[system, ("a.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n")],
                "AWS_CA_BUNDLE: a.pem ends inside a certificate; specify a PEM file of certificates",
            ),
            (
                Some("a.pem"),
                None,
                &[("a.pem", "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n")],
                "AWS_CA_BUNDLE: a.pem is not PEM; specify a PEM file of certificates",
            ),
            (
                None,
                None,
                &[("a.pem", &pem)],
                "AWS_CA_BUNDLE: it is not set, and this system has no certificates in the usual locations; install \
                 them (the package is usually called ca-certificates) or set it to a PEM file",
            ),
        ] {
            assert_eq!(trust(bundle, variable, files), Err(expected.to_owned()));
        }
    }
}
