// SPDX-License-Identifier: Apache-2.0

//! TLS configurations, made from files.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_model::check::{TlsProbe, Verify};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::fault::{Checked, Stop};

/// Files are read again after this time: certificates are renewed in place.
const FRESH: Duration = Duration::from_secs(60);
/// More configurations than any director has; then all are made again.
const MAX: usize = 4_096;

/// A configuration that is made once, by the first who needs it.
type Cell = Arc<OnceCell<Arc<ClientConfig>>>;

/// The configurations of all TLS probes.
#[derive(Debug, Default)]
pub(crate) struct Configs(Mutex<HashMap<TlsProbe, (Instant, Cell)>>);

impl Configs {
    /// The configuration of a probe.
    pub(crate) async fn get(&self, probe: &TlsProbe) -> Checked<Arc<ClientConfig>> {
        let cell = self.cell(probe);
        let config = cell.get_or_try_init(|| make(probe.clone())).await?;
        Ok(Arc::clone(config))
    }

    fn cell(&self, probe: &TlsProbe) -> Cell {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, cell)) = known.get(probe)
            && made.elapsed() < FRESH
        {
            return Arc::clone(cell);
        }
        if known.len() >= MAX {
            known.clear();
        }
        let cell = Cell::default();
        known.insert(probe.clone(), (Instant::now(), Arc::clone(&cell)));
        cell
    }
}

async fn make(probe: TlsProbe) -> Checked<Arc<ClientConfig>> {
    let made = tokio::task::spawn_blocking(move || read(&probe)).await;
    made.map_err(Stop::ours)?.map(Arc::new)
}

/// Reads the files of a probe, and configures it. Blocks.
fn read(probe: &TlsProbe) -> Checked<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(Stop::ours)?;
    let verifier = verifier(&probe.verify, provider)?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&probe.certificate, &probe.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let unusable = |error| Stop::ours(format_args!("{key}: {error}"));
            let key = PrivateKeyDer::from_pem_file(key).map_err(unusable)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(Stop::ours)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = probe
        .alpn
        .iter()
        .map(|each| each.as_bytes().to_vec())
        .collect();
    // A resumed session shows no certificate.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn certificates(path: &str) -> Checked<Vec<CertificateDer<'static>>> {
    let unusable = |error| Stop::ours(format_args!("{path}: {error}"));
    let certificates = CertificateDer::pem_file_iter(path).map_err(unusable)?;
    certificates.collect::<Result<_, _>>().map_err(unusable)
}

fn verifier(
    verify: &Verify,
    provider: Arc<CryptoProvider>,
) -> Checked<Arc<dyn ServerCertVerifier>> {
    let authorities = match verify {
        Verify::None => return Ok(Arc::new(AnyCertificate(provider))),
        Verify::System => host_authorities()?,
        Verify::Ca(path) => certificates(path)?,
    };
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(authorities).0 == 0 {
        return Err(Stop::ours("no certificate authority"));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok(verifier.build().map_err(Stop::ours)?)
}

fn host_authorities() -> Checked<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    match found.errors.into_iter().next() {
        Some(error) if found.certs.is_empty() => Err(Stop::local(
            "the host's authorities",
            &io::Error::other(error),
        )),
        _ => Ok(found.certs),
    }
}

/// Takes any certificate, but still demands that the server has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
