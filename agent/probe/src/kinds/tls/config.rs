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

use crate::blocking::{Blocking, Files};
use crate::fault::{Checked, Stop};

/// Files are read again after this time: certificates are renewed in place.
const FRESH: Duration = Duration::from_secs(60);
/// More configurations than any director has; then all are made again.
const MAX: usize = 4_096;
/// The largest file of certificates, in bytes.
const MAX_PEM: u64 = 4 << 20;

/// A configuration that is made once, by the first who needs it.
type Cell = Arc<OnceCell<Arc<ClientConfig>>>;

/// Certificates of authorities, or a chain.
type Certificates = Vec<CertificateDer<'static>>;

/// The configurations of all TLS probes.
#[derive(Debug, Default)]
pub(crate) struct Configs {
    known: Mutex<HashMap<TlsProbe, (Instant, Cell)>>,
    /// Reads of the host's authorities.
    system: Blocking<(), Checked<Certificates>>,
}

/// Files of a configuration.
struct Material {
    /// Trusted authorities; `None` for any certificate.
    authorities: Option<Certificates>,
    /// The probe's own certificate.
    own: Option<(Certificates, PrivateKeyDer<'static>)>,
}

impl Configs {
    /// The configuration of a probe.
    pub(crate) async fn get(&self, probe: &TlsProbe, files: &Files) -> Checked<Arc<ClientConfig>> {
        let cell = self.cell(probe);
        let make = async || {
            let material = self.read(probe, files).await?;
            let probe = probe.clone();
            let made = tokio::task::spawn_blocking(move || configure(&probe, material)).await;
            made.map_err(Stop::ours)?.map(Arc::new)
        };
        let config = cell.get_or_try_init(make).await?;
        Ok(Arc::clone(config))
    }

    fn cell(&self, probe: &TlsProbe) -> Cell {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Reads the files of a probe.
    async fn read(&self, probe: &TlsProbe, files: &Files) -> Checked<Material> {
        let authorities = match &probe.verify {
            Verify::None => None,
            Verify::System => Some(self.system.run(&(), |()| host_authorities()).await??),
            Verify::Ca(path) => Some(certificates(path, files).await?),
        };
        let own = match (&probe.certificate, &probe.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate, files).await?;
                let unusable = |error| Stop::ours(format_args!("{key}: {error}"));
                let pem = pem(key, files).await?;
                let key = PrivateKeyDer::from_pem_slice(&pem).map_err(unusable)?;
                Some((chain, key))
            }
            _ => None,
        };
        Ok(Material { authorities, own })
    }
}

fn configure(probe: &TlsProbe, material: Material) -> Checked<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(Stop::ours)?;
    let verifier = verifier(material.authorities, provider)?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match material.own {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(Stop::ours)?,
        None => builder.with_no_client_auth(),
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

async fn certificates(path: &str, files: &Files) -> Checked<Certificates> {
    let unusable = |error| Stop::ours(format_args!("{path}: {error}"));
    let pem = pem(path, files).await?;
    let certificates = CertificateDer::pem_slice_iter(&pem);
    certificates.collect::<Result<_, _>>().map_err(unusable)
}

/// A whole file of certificates or a key.
async fn pem(path: &str, files: &Files) -> Checked<Arc<[u8]>> {
    let content = files.read(path, MAX_PEM + 1).await?;
    let content = content.map_err(Stop::Ours)?;
    match content.len() as u64 > MAX_PEM {
        true => Err(Stop::ours(format_args!("{path}: more than 4 MiB"))),
        false => Ok(content),
    }
}

fn verifier(
    authorities: Option<Certificates>,
    provider: Arc<CryptoProvider>,
) -> Checked<Arc<dyn ServerCertVerifier>> {
    let Some(authorities) = authorities else {
        return Ok(Arc::new(AnyCertificate(provider)));
    };
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(authorities).0 == 0 {
        return Err(Stop::ours("no certificate authority"));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok(verifier.build().map_err(Stop::ours)?)
}

fn host_authorities() -> Checked<Certificates> {
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
