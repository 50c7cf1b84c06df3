// SPDX-License-Identifier: Apache-2.0

//! Contents of certificates. Signatures are verified elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;

/// Contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// URIs among the subject alternative names.
    pub uris: Vec<String>,
    /// Begin of validity.
    pub begins: SystemTime,
    /// Time of expiry.
    pub expires: SystemTime,
}

/// A certificate that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CertificateError(String);

impl CertificateError {
    fn new(error: impl ToString) -> Self {
        Self(error.to_string())
    }
}

/// Parses a certificate in DER.
///
/// # Errors
/// If it is malformed.
pub fn read_certificate(der: &[u8]) -> Result<CertificateFacts, CertificateError> {
    let parsed = x509_parser::parse_x509_certificate(der);
    let (_, certificate) = parsed.map_err(CertificateError::new)?;
    let names = certificate.subject_alternative_name();
    let names = names.map_err(CertificateError::new)?;
    let names = names
        .iter()
        .flat_map(|extension| &extension.value.general_names);
    let uris = names
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        })
        .collect();
    let time = |seconds| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = certificate.validity();
    Ok(CertificateFacts {
        uris,
        begins: time(validity.not_before.timestamp()),
        expires: time(validity.not_after.timestamp()),
    })
}

/// Parses the first certificate of a PEM text.
///
/// # Errors
/// If there is none, or it is malformed.
pub fn read_pem(pem: &str) -> Result<CertificateFacts, CertificateError> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes());
    let der = der.map_err(|_| CertificateError::new("no certificate in PEM"))?;
    read_certificate(&der)
}
