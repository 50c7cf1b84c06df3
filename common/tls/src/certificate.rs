// SPDX-License-Identifier: Apache-2.0

//! Contents of certificates. Signatures are verified elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::extensions::GeneralName;

/// Contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// URIs among the subject alternative names.
    pub uris: Vec<String>,
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
    let expires = certificate.validity().not_after.timestamp();
    let since = Duration::from_secs(u64::try_from(expires).unwrap_or(0));
    Ok(CertificateFacts {
        uris,
        expires: UNIX_EPOCH + since,
    })
}
