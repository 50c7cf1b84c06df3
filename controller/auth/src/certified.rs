// SPDX-License-Identifier: Apache-2.0

//! The name of a node, relay or edge controller that a credential proves.

use std::time::{Duration, SystemTime};

use portolan_tls::{CertificateError, NameError, PeerName};

/// Tolerated clock skew between this machine and the issuer of a token.
pub(crate) const LEEWAY: Duration = Duration::from_secs(30);

/// The name of a node, relay or edge controller, and its credential's end of validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// The name of the node, relay or edge controller.
    pub name: PeerName,
    /// The end of the credential's validity.
    pub until: SystemTime,
}

/// A certificate that names no node, relay or edge controller.
#[derive(Debug, thiserror::Error)]
pub enum CertifiedError {
    /// The certificate cannot be read.
    #[error(transparent)]
    Unreadable(#[from] CertificateError),
    /// It has no name of ours.
    #[error("the certificate has no URI portolan://CLUSTER/node/NODE")]
    Nameless,
    /// It has several.
    #[error("the certificate names more than one node, relay or edge")]
    SeveralNames,
    /// Its name is malformed.
    #[error("URI {0}")]
    Name(#[from] NameError),
}

impl Certified {
    /// Reads a verified certificate, which must name exactly one node, relay or edge controller.
    ///
    /// # Errors
    /// If it cannot be read, or names none or several.
    pub fn read(der: &[u8]) -> Result<Self, CertifiedError> {
        let facts = portolan_tls::read_certificate(der)?;
        let mut names = facts.uris.iter().filter(|uri| PeerName::claims(uri));
        let name = names.next();
        let name = name.ok_or(CertifiedError::Nameless)?;
        if names.next().is_some() {
            return Err(CertifiedError::SeveralNames);
        }
        Ok(Self {
            name: name.parse()?,
            until: facts.expires,
        })
    }

    /// The name of the node, relay or edge controller.
    pub fn node(&self) -> &str {
        match &self.name {
            PeerName::Node(own) => &own.node,
            PeerName::Relay(own) => &own.relay,
            PeerName::Edge(own) => &own.edge,
        }
    }
}
