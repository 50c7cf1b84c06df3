//! Contents of certificates. Signatures are verified elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::extensions::GeneralName;

/// Contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// URIs among the subject alternative names.
    pub uris: Vec<String>,
    /// Time of expiry.
    pub expires: SystemTime,
}

/// Parses a certificate in DER.
///
/// # Errors
/// If it is malformed.
pub fn facts(der: &[u8]) -> Result<Facts, String> {
    let (_, certificate) =
        x509_parser::parse_x509_certificate(der).map_err(|error| error.to_string())?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| error.to_string())?;
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
    Ok(Facts {
        uris,
        expires: UNIX_EPOCH + since,
    })
}
