//! TLS for the S3 listener, by rustls with ring.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsIdentity;

/// A TLS identity that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificates are not PEM, or there is none.
    #[error("the TLS certificate chain cannot be read: {0}")]
    Certificates(String),
    /// The key is not PEM.
    #[error("the TLS private key cannot be read: {0}")]
    Key(String),
    /// The certificate and key do not match, or rustls rejects them.
    #[error("the TLS certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

pub(super) fn acceptor(identity: &TlsIdentity) -> Result<TlsAcceptor, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(&identity.certificates_pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| TlsError::Certificates(e.to_string()))?;
    if certificates.is_empty() {
        return Err(TlsError::Certificates("it contains no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(|e| TlsError::Key(e.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
