// SPDX-License-Identifier: Apache-2.0

//! A certificate authority. Keys are ECDSA P-256.

use std::net::IpAddr;
use std::ops::Range;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use time::OffsetDateTime;

use crate::{EdgeName, NodeName, RelayName};

pub use rcgen::Error as IssueError;

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    cert: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority, with its certificate and key.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn create(name: &str, valid: Range<SystemTime>) -> Result<(Self, Issued), IssueError> {
        let mut params = params(name, valid);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let issued = Issued {
            cert: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        let authority = Self {
            cert: issued.cert.clone(),
            issuer: Issuer::new(params, key),
        };
        Ok((authority, issued))
    }

    /// Loads an authority.
    ///
    /// # Errors
    /// If the certificate or the key is malformed.
    pub fn load(cert: &str, key: &str) -> Result<Self, IssueError> {
        let key = KeyPair::from_pem(key)?;
        Ok(Self {
            cert: cert.to_owned(),
            issuer: Issuer::from_ca_cert_pem(cert, key)?,
        })
    }

    /// Returns `true` if the key is that of the certificate.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let Ok(der) = CertificateDer::from_pem_slice(self.cert.as_bytes()) else {
            return false;
        };
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) else {
            return false;
        };
        let key = self.issuer.key().public_key_raw();
        certificate.public_key().subject_public_key.data == key
    }

    /// Certificate of the authority, in PEM.
    #[must_use]
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// Issues a certificate for a server with host names and addresses; at least one.
    ///
    /// # Errors
    /// If a name is not ASCII.
    pub fn server(&self, names: &[&str], valid: Range<SystemTime>) -> Result<Issued, IssueError> {
        let mut params = params(names.first().copied().unwrap_or_default(), valid);
        for name in names {
            params.subject_alt_names.push(host(name)?);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Issues a certificate for a relay, which is a client of controllers and a server of agents.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn relay(&self, name: &RelayName, valid: Range<SystemTime>) -> Result<Issued, IssueError> {
        let mut params = params(&name.relay, valid);
        let uri = SanType::URI(name.to_string().as_str().try_into()?);
        params.subject_alt_names = vec![uri, host(&name.relay)?];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        self.sign(params)
    }

    /// Issues a certificate for an edge controller, which is a client of the centre.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn edge(&self, name: &EdgeName, valid: Range<SystemTime>) -> Result<Issued, IssueError> {
        let mut params = params(&name.edge, valid);
        let uri = SanType::URI(name.to_string().as_str().try_into()?);
        params.subject_alt_names = vec![uri];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// Issues a certificate for a node's agent.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn node(&self, name: &NodeName, valid: Range<SystemTime>) -> Result<Issued, IssueError> {
        self.client(&name.node, &[&name.to_string()], valid)
    }

    /// Issues a certificate for a client with arbitrary URIs.
    ///
    /// # Errors
    /// If a URI is not ASCII.
    pub fn client(
        &self,
        name: &str,
        uris: &[&str],
        valid: Range<SystemTime>,
    ) -> Result<Issued, IssueError> {
        let mut params = params(name, valid);
        for uri in uris {
            let uri = SanType::URI((*uri).try_into()?);
            params.subject_alt_names.push(uri);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Issued, IssueError> {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        Ok(Issued {
            cert: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn host(name: &str) -> Result<SanType, IssueError> {
    Ok(match name.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

fn params(name: &str, valid: Range<SystemTime>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    // X.520 allows 64 characters. Only the subject alternative names are verified.
    let short = &name[..name.floor_char_boundary(64)];
    params.distinguished_name.push(DnType::CommonName, short);
    params.not_before = OffsetDateTime::from(valid.start);
    params.not_after = OffsetDateTime::from(valid.end);
    params
}
