// SPDX-License-Identifier: Apache-2.0

//! Flags of a subscription: the identity of both sides, and the deletion guard.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use portolan_runtime::parse_duration;
use portolan_tls::{ClientFiles, FileError, Rotating};
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};

use crate::{GuardConfig, Security};

/// Defines a group of flags for the identity of a controller's client, which become an [`Identity`].
/// `prefix` begins the flags' names, `env` their names in the environment.
#[macro_export]
macro_rules! identity_args {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            prefix: $prefix:literal,
            env: $env:literal,
            peer: $peer:literal,
            uri: $uri:literal,
            plaintext: $plaintext:literal,
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, ::clap::Args)]
        $visibility struct $name {
            #[arg(
                id = concat!($prefix, "tls-dir"),
                long = concat!($prefix, "tls-dir"),
                env = concat!($env, "TLS_DIR"),
                value_name = "DIRECTORY",
                help = "A directory with ca.crt, tls.crt and tls.key, as cert-manager and Secrets of \
                        type kubernetes.io/tls have them. Read again when they change"
            )]
            dir: Option<::std::path::PathBuf>,

            #[arg(
                id = concat!($prefix, "tls-ca"),
                long = concat!($prefix, "tls-ca"),
                env = concat!($env, "TLS_CA"),
                value_name = "FILE",
                help = concat!("The certificates that sign those of ", $peer, ", in PEM")
            )]
            ca: Option<::std::path::PathBuf>,

            #[arg(
                id = concat!($prefix, "tls-cert"),
                long = concat!($prefix, "tls-cert"),
                env = concat!($env, "TLS_CERT"),
                requires = concat!($prefix, "tls-key"),
                value_name = "FILE",
                help = concat!(
                    "The certificate to show to ", $peer, ", in PEM; it must have the URI ", $uri
                )
            )]
            cert: Option<::std::path::PathBuf>,

            #[arg(
                id = concat!($prefix, "tls-key"),
                long = concat!($prefix, "tls-key"),
                env = concat!($env, "TLS_KEY"),
                requires = concat!($prefix, "tls-cert"),
                value_name = "FILE",
                help = concat!("The key of --", $prefix, "tls-cert, in PEM")
            )]
            key: Option<::std::path::PathBuf>,

            #[arg(
                id = concat!($prefix, "tls-server-name"),
                long = concat!($prefix, "tls-server-name"),
                env = concat!($env, "TLS_SERVER_NAME"),
                value_name = "NAME",
                help = concat!(
                    "The name in the certificates of ", $peer, ". Default: the host of each address"
                )
            )]
            server_name: Option<String>,

            #[arg(
                id = concat!($prefix, "plaintext"),
                long = concat!($prefix, "plaintext"),
                env = concat!($env, "PLAINTEXT"),
                help = $plaintext
            )]
            plaintext: bool,
        }

        impl $name {
            /// The identity that the flags configure.
            fn identity(&self) -> $crate::Identity {
                $crate::Identity {
                    prefix: $prefix,
                    dir: self.dir.clone(),
                    ca: self.ca.clone(),
                    cert: self.cert.clone(),
                    key: self.key.clone(),
                    server_name: self.server_name.clone(),
                    plaintext: self.plaintext,
                    token: $crate::Token::Unsupported,
                }
            }
        }
    };
}

/// Whether a client shows a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// There is no flag for one.
    Unsupported,
    /// The flag is not set.
    Absent,
    /// In this file.
    File(PathBuf),
}

/// The files of TLS to be followed. There is no value before they are there.
pub type FollowedFiles = Rotating<Option<ClientConfig>>;

/// The identity of a controller's client as configured: TLS files and a token, or plaintext.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Prefix of the flags, such as `upstream-`.
    pub prefix: &'static str,
    /// A directory with the files that are not named.
    pub dir: Option<PathBuf>,
    /// The certificates that sign those of controllers.
    pub ca: Option<PathBuf>,
    /// The certificate to show.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The name in the controllers' certificates.
    pub server_name: Option<String>,
    /// Whether the connection is plaintext.
    pub plaintext: bool,
    /// The token to show.
    pub token: Token,
}

/// Flags that do not fit together, or files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Both TLS and plaintext were asked for.
    #[error("--{0}plaintext excludes --{0}tls-...")]
    PlaintextAndTls(&'static str),
    /// A token would be readable on the network.
    #[error("--{0}token-file: tokens are not sent in plaintext")]
    PlaintextToken(&'static str),
    /// Neither TLS nor plaintext was asked for.
    #[error(
        "no security configured: set --{0}tls-dir, or --{0}tls-ca with --{0}tls-cert and \
         --{0}tls-key; on a trusted network, --{0}plaintext"
    )]
    Nothing(&'static str),
    /// The controller cannot be verified.
    #[error("no authority configured: --{0}tls-cert needs --{0}tls-ca")]
    NoAuthority(&'static str),
    /// There is no certificate for the controller.
    #[error("no client identity: set --{0}tls-cert and --{0}tls-key")]
    NoCertificate(&'static str),
    /// There is neither a certificate nor a token for the controller.
    #[error("no client identity: set --{0}tls-cert and --{0}tls-key, or --{0}token-file")]
    NoIdentity(&'static str),
    /// Not the name of a server.
    #[error("--{0}tls-server-name: {1}")]
    ServerName(&'static str, InvalidDnsNameError),
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Identity {
    /// Checks the flags, without reading files.
    ///
    /// # Errors
    /// If flags are missing or exclude each other.
    pub fn validate(&self) -> Result<(), IdentityError> {
        let prefix = self.prefix;
        let has_tls = self.ca().is_some() || self.cert.is_some();
        match (self.plaintext, has_tls) {
            (true, true) => return Err(IdentityError::PlaintextAndTls(prefix)),
            (true, false) if self.token_file().is_some() => {
                return Err(IdentityError::PlaintextToken(prefix));
            }
            (true, false) => return Ok(()),
            (false, true) => {}
            (false, false) => return Err(IdentityError::Nothing(prefix)),
        }
        if self.ca().is_none() {
            return Err(IdentityError::NoAuthority(prefix));
        }
        if self.pair().is_none() && self.token_file().is_none() {
            return Err(match self.token {
                Token::Unsupported => IdentityError::NoCertificate(prefix),
                Token::Absent | Token::File(_) => IdentityError::NoIdentity(prefix),
            });
        }
        self.server_name()?;
        Ok(())
    }

    /// Reads the files. Missing ones are awaited. Blocks.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), or if a file is there and cannot be used.
    pub fn open(
        &self,
        name: &'static str,
    ) -> Result<(Security, Option<FollowedFiles>), IdentityError> {
        self.validate()?;
        let Some(ca) = self.ca() else {
            return Ok((Security::Plaintext, None));
        };
        let files = ClientFiles {
            ca,
            identity: self.pair(),
        };
        let token_file = self.token_file();
        let opened = Security::open(files, name, self.server_name()?, token_file)?;
        let (security, files) = opened;
        Ok((security, Some(files)))
    }

    fn token_file(&self) -> Option<PathBuf> {
        match &self.token {
            Token::Unsupported | Token::Absent => None,
            Token::File(path) => Some(path.clone()),
        }
    }

    fn in_dir(&self, file: &str) -> Option<PathBuf> {
        self.dir.as_deref().map(|dir| dir.join(file))
    }

    fn ca(&self) -> Option<PathBuf> {
        self.ca.clone().or_else(|| self.in_dir("ca.crt"))
    }

    /// Certificate and key. The directory may be without them if there is a token.
    fn pair(&self) -> Option<(PathBuf, PathBuf)> {
        let own = self.cert.clone().zip(self.key.clone());
        let of_dir = || self.in_dir("tls.crt").zip(self.in_dir("tls.key"));
        let needed =
            |(cert, _): &(PathBuf, PathBuf)| self.token_file().is_none() || Path::exists(cert);
        own.or_else(|| of_dir().filter(needed))
    }

    fn server_name(&self) -> Result<Option<ServerName<'static>>, IdentityError> {
        let name = self.server_name.clone().map(ServerName::try_from);
        name.transpose()
            .map_err(|error| IdentityError::ServerName(self.prefix, error))
    }
}

/// Limits of the deletion guard.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Deletion guard")]
pub struct GuardArgs {
    /// Hold deletions back that would take more than this percentage of the objects or of the ready
    /// endpoints away at once; 100 believes every deletion.
    #[arg(long, env = "PORTOLAN_DELETION_GUARD_PERCENT", default_value = "20",
        value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    deletion_guard_percent: u8,

    /// Believe deletions of fewer objects or ready endpoints than this.
    #[arg(
        long,
        env = "PORTOLAN_DELETION_GUARD_OBJECTS",
        default_value = "50",
        value_name = "COUNT"
    )]
    deletion_guard_objects: usize,

    /// Let deletions that are held back through after this time, such as `30m`. 0: only an operator
    /// confirms them (`portolanctl confirm`).
    #[arg(long, env = "PORTOLAN_DELETION_GUARD_TIME", default_value = "30m",
        value_name = "DURATION", value_parser = parse_duration)]
    deletion_guard_time: Duration,

    /// The old name of --deletion-guard-percent.
    #[arg(long, env = "PORTOLAN_HOLD_DELETIONS_ABOVE", hide = true,
        value_parser = clap::value_parser!(u8).range(0..=100))]
    hold_deletions_above: Option<u8>,

    /// The old name of --deletion-guard-time.
    #[arg(long, env = "PORTOLAN_HOLD_SECONDS", hide = true, value_parser = parse_duration)]
    hold_seconds: Option<Duration>,
}

impl GuardArgs {
    /// The limits.
    #[must_use]
    pub fn config(&self) -> GuardConfig {
        let time = self.hold_seconds.unwrap_or(self.deletion_guard_time);
        GuardConfig {
            percent: self
                .hold_deletions_above
                .unwrap_or(self.deletion_guard_percent),
            least: self.deletion_guard_objects,
            time: (!time.is_zero()).then_some(time),
        }
    }
}

#[cfg(test)]
mod tests;
