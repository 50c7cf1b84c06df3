// SPDX-License-Identifier: Apache-2.0

//! Configurations of rustls, from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ResolvesServerCertUsingSni, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificate::read_certificate;
use crate::file::{File, FileError};
use crate::rotate::{Loaded, Rotating};

/// Protocol of both sides: gRPC needs HTTP/2.
pub const ALPN: &[u8] = b"h2";

/// A certificate chain, leaf first, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Key.
    pub key: PathBuf,
    /// Authorities of client certificates; `None` if clients have none.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate are accepted. They must be authenticated otherwise.
    pub anonymous: bool,
}

/// Files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities of server certificates.
    pub ca: PathBuf,
    /// Certificate chain and key of the client, if it has them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ServerFiles {
    /// Reads the files; `name` is for logs and metrics. Blocks.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn open(self, name: &'static str) -> Result<Rotating<ServerConfig>, FileError> {
        let mut paths = vec![self.cert, self.key];
        paths.extend(self.client_ca);
        let anonymous = self.anonymous;
        Rotating::open(name, paths, move |files| match files {
            [cert, key] => server(cert, key, None),
            [cert, key, ca] => server(cert, key, Some((ca, anonymous))),
            _ => Err(unexpected(files)),
        })
    }
}

impl ClientFiles {
    /// Reads the files; `name` is for logs and metrics. Blocks.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn open(self, name: &'static str) -> Result<Rotating<ClientConfig>, FileError> {
        let mut paths = vec![self.ca];
        paths.extend(self.identity.into_iter().flat_map(<[PathBuf; 2]>::from));
        Rotating::open(name, paths, client_of)
    }
}

impl ClientFiles {
    /// As [`Self::open`]; a value is missing until the files are there. Blocks.
    ///
    /// # Errors
    /// If the files are there and cannot be used.
    pub fn open_when_present(
        self,
        name: &'static str,
    ) -> Result<Rotating<Option<ClientConfig>>, FileError> {
        let mut paths = vec![self.ca];
        paths.extend(self.identity.into_iter().flat_map(<[PathBuf; 2]>::from));
        let load = |files: &[File]| {
            let Loaded { value, expires } = client_of(files)?;
            let value = Some(value);
            Ok(Loaded { value, expires })
        };
        match paths.iter().all(|path| is_present(path)) {
            true => Rotating::open(name, paths, load),
            false => Ok(Rotating::open_or(name, paths, None, load)),
        }
    }
}

/// Returns `true` if a file is there and not empty: an object of Kubernetes may be filled later.
fn is_present(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

fn client_of(files: &[File]) -> Result<Loaded<ClientConfig>, FileError> {
    match files {
        [ca] => client(ca, None),
        [ca, cert, key] => client(ca, Some((cert, key))),
        _ => Err(unexpected(files)),
    }
}

/// Configures a server. With authorities of client certificates, the flag says whether clients without
/// a certificate are accepted.
///
/// # Errors
/// If a file cannot be used.
pub fn server(
    cert: &File,
    key: &File,
    client_ca: Option<(&File, bool)>,
) -> Result<Loaded<ServerConfig>, FileError> {
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| cert.error(error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some((ca, anonymous)) => {
            let roots = Arc::new(roots(ca)?);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            if anonymous {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(|error| ca.error(error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, private) = identity(cert, key)?;
    let expires = expires(cert, &chain)?;
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| mismatch(cert, key, &error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded {
        value: config,
        expires: Some(expires),
    })
}

/// Configures a server that has no certificate yet: every handshake fails.
///
/// # Errors
/// Never with this provider.
pub fn without_certificate() -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    let none = ResolvesServerCertUsingSni::new();
    Ok(builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(none)))
}

fn client(ca: &File, own: Option<(&File, &File)>) -> Result<Loaded<ClientConfig>, FileError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| ca.error(error))?
        .with_root_certificates(roots(ca)?);
    let (mut config, expires) = match own {
        None => (builder.with_no_client_auth(), None),
        Some((cert, key)) => {
            let (chain, private) = identity(cert, key)?;
            let expires = expires(cert, &chain)?;
            let config = builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| mismatch(cert, key, &error))?;
            (config, Some(expires))
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Loaded {
        value: config,
        expires,
    })
}

/// The provider, named at each use: other crates may choose another process-wide one.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(ca: &File) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| ca.error(error))?;
    }
    Ok(roots)
}

fn identity(cert: &File, key: &File) -> Result<Identity, FileError> {
    let chain = certificates(cert)?;
    let key = PrivateKeyDer::from_pem_slice(&key.content)
        .map_err(|_| key.error("no private key in PEM"))?;
    Ok((chain, key))
}

fn certificates(file: &File) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = CertificateDer::pem_slice_iter(&file.content).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| file.error(format!("not PEM: {error}")))?;
    if found.is_empty() {
        return Err(file.error("no certificate in PEM"));
    }
    Ok(found)
}

fn expires(file: &File, chain: &[CertificateDer<'_>]) -> Result<SystemTime, FileError> {
    let own = chain.first().map(AsRef::as_ref).unwrap_or_default();
    let facts = read_certificate(own).map_err(|error| file.error(error))?;
    Ok(facts.expires)
}

fn mismatch(cert: &File, key: &File, error: &rustls::Error) -> FileError {
    cert.error(format!("with {}: {error}", key.path.display()))
}

/// Never happens: the number of files is constant.
fn unexpected(files: &[File]) -> FileError {
    let path = files.first().map_or(Path::new(""), |file| &file.path);
    FileError::new(path, "unexpected number of files")
}
