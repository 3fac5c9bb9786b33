//! TLS 1.3 between balancer and agent. Both present their public keys without certificates (raw public keys, RFC 7250):
//! who they are is decided by the fingerprints of these keys, and nothing in a certificate would add to that.
//!
//! The handshake's signatures are verified by the crypto provider, so that a peer must own the private key. Sessions are not
//! resumed: every connection is authenticated by signatures.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureScheme,
};

use super::error::UnknownKey;
use super::key::{Fingerprint, Key};

/// The configuration of an agent that accepts these peers.
pub(super) fn server_config(key: &Key, peers: &[Fingerprint]) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(PinnedPeers::new(&provider, peers));
    let own = AlwaysResolvesServerRawPublicKeys::new(certified(key));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(own));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The configuration of a balancer for one agent.
pub(super) fn client_config(key: &Key, agent: Fingerprint) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(PinnedPeers::new(&provider, &[agent]));
    let own = AlwaysResolvesClientRawPublicKeys::new(certified(key));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(own));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

fn certified(key: &Key) -> Arc<CertifiedKey> {
    Arc::new(CertifiedKey::new(vec![key.public()], key.signing()))
}

/// Accepts peers by the fingerprints of their public keys.
#[derive(Debug)]
struct PinnedPeers {
    accepted: Vec<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedPeers {
    fn new(provider: &CryptoProvider, accepted: &[Fingerprint]) -> Self {
        Self { accepted: accepted.to_vec(), algorithms: provider.signature_verification_algorithms }
    }

    /// Fingerprints are public, and a peer cannot choose its own: comparing them needs no constant time.
    fn check(&self, public_key: &CertificateDer<'_>) -> Result<(), Error> {
        let presented = Fingerprint::new(public_key);
        if self.accepted.contains(&presented) {
            Ok(())
        } else {
            let reason = OtherError(Arc::new(UnknownKey(presented)));
            Err(Error::InvalidCertificate(CertificateError::Other(reason)))
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        public_key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public_key = SubjectPublicKeyInfoDer::from(public_key.as_ref());
        verify_tls13_signature_with_raw_key(message, &public_key, signature, &self.algorithms)
    }
}

impl ServerCertVerifier for PinnedPeers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is used".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PinnedPeers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is used".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
