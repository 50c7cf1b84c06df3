//! The flags that say how the stream is secured.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_tls::{ClientFiles, Rotating};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::subscribe::Security;

/// Who the controller must be, and who we are.
#[derive(Debug, Clone, Default, Args)]
pub struct IdentityArgs {
    /// A directory with ca.crt and, unless there is a token, tls.crt and tls.key, as cert-manager
    /// and Secrets of type kubernetes.io/tls have them. Read again when they change.
    #[arg(long, env = "PORTOLAN_TLS_DIR")]
    pub tls_dir: Option<PathBuf>,

    /// The certificates of who signs the controller's, in PEM.
    #[arg(long, env = "PORTOLAN_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// This node's certificate, in PEM; it must have the URI portolan://CLUSTER/node/NODE.
    #[arg(long, env = "PORTOLAN_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert, in PEM.
    #[arg(long, env = "PORTOLAN_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// The name that the controller's certificate must have. Default: the host of its address.
    #[arg(long, env = "PORTOLAN_TLS_SERVER_NAME")]
    pub tls_server_name: Option<String>,

    /// A projected ServiceAccount token to show; read for each connection.
    #[arg(long, env = "PORTOLAN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

impl IdentityArgs {
    /// Checks what needs no file.
    ///
    /// # Errors
    /// If it is not clear whether there is to be TLS, or what we show in it.
    pub fn validate(&self, plaintext: bool) -> anyhow::Result<()> {
        let is_set = self.ca().is_some() || self.tls_cert.is_some();
        match (plaintext, is_set) {
            (true, true) => bail!("--plaintext and --tls-...: only one of them can be"),
            (true, false) if self.token_file.is_some() => {
                bail!("--token-file: a token is not sent in plaintext")
            }
            (true, false) => return Ok(()),
            (false, true) => {}
            (false, false) => bail!(
                "the controller needs --tls-dir, or --tls-ca with --tls-cert and --tls-key or with \
                 --token-file; on a network that you trust, --plaintext"
            ),
        }
        if self.ca().is_none() {
            bail!("--tls-cert needs --tls-ca: who the controller is must be known too");
        }
        if self.files().is_none() && self.token_file.is_none() {
            bail!("no client identity: set --tls-cert and --tls-key, or --token-file");
        }
        self.server_name()?;
        Ok(())
    }

    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), or if a file cannot be used.
    pub fn open(
        &self,
        plaintext: bool,
    ) -> anyhow::Result<(Security, Option<Rotating<ClientConfig>>)> {
        self.validate(plaintext)?;
        let Some(ca) = self.ca() else {
            return Ok((Security::Plaintext, None));
        };
        let files = ClientFiles {
            ca,
            identity: self.files(),
        };
        let token_file = self.token_file.clone();
        let (security, files) = Security::open(files, "tls", self.server_name()?, token_file)?;
        Ok((security, Some(files)))
    }

    fn in_dir(&self, file: &str) -> Option<PathBuf> {
        self.tls_dir.as_deref().map(|dir| dir.join(file))
    }

    fn ca(&self) -> Option<PathBuf> {
        self.tls_ca.clone().or_else(|| self.in_dir("ca.crt"))
    }

    /// Certificate and key. A directory may be without them where there is a token.
    fn files(&self) -> Option<(PathBuf, PathBuf)> {
        let own = self.tls_cert.clone().zip(self.tls_key.clone());
        let of_dir = || self.in_dir("tls.crt").zip(self.in_dir("tls.key"));
        let needed =
            |(cert, _): &(PathBuf, PathBuf)| self.token_file.is_none() || Path::exists(cert);
        own.or_else(|| of_dir().filter(needed))
    }

    fn server_name(&self) -> anyhow::Result<Option<ServerName<'static>>> {
        let name = self.tls_server_name.clone().map(ServerName::try_from);
        name.transpose().context("--tls-server-name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(path: &str) -> IdentityArgs {
        IdentityArgs {
            tls_dir: Some(path.into()),
            ..IdentityArgs::default()
        }
    }

    #[test]
    fn it_must_be_clear_who_is_who() {
        let nothing = IdentityArgs::default();
        assert!(nothing.validate(true).is_ok());
        let error = nothing.validate(false).unwrap_err().to_string();
        assert!(error.contains("--plaintext"), "{error}");
        assert!(dir("/nowhere").validate(false).is_ok());
        assert!(dir("/nowhere").validate(true).is_err());
        let with_ca = IdentityArgs {
            tls_ca: Some("ca".into()),
            ..IdentityArgs::default()
        };
        assert!(with_ca.validate(false).is_err());
        let with_token = IdentityArgs {
            token_file: Some("token".into()),
            ..with_ca
        };
        assert!(with_token.validate(false).is_ok());
        let leaking = IdentityArgs {
            tls_ca: None,
            ..with_token
        };
        assert!(leaking.validate(true).is_err() && leaking.validate(false).is_err());
        let misnamed = IdentityArgs {
            tls_server_name: Some("a b".into()),
            ..dir("/nowhere")
        };
        assert!(misnamed.validate(false).is_err());
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = dir("/nowhere").open(false).unwrap_err().to_string();
        assert!(error.contains("/nowhere/ca.crt"), "{error}");
    }

    #[test]
    fn a_directory_needs_no_certificate_where_there_is_a_token() {
        let args = IdentityArgs {
            token_file: Some("token".into()),
            ..dir("/nowhere")
        };
        assert_eq!(args.files(), None);
        assert!(dir("/nowhere").files().is_some());
    }
}
