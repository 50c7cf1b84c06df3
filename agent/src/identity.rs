// SPDX-License-Identifier: Apache-2.0

//! Flags for the identity of the controller and of this node.

use std::path::PathBuf;

use clap::Args;
use portolan_subscription::{Identity, Token, identity_args};

identity_args! {
    /// TLS files.
    struct TlsArgs {
        prefix: "",
        env: "PORTOLAN_",
        peer: "the controller",
        uri: "portolan://CLUSTER/node/NODE",
        plaintext: "Connect to the controller without TLS, which disables authentication of both sides",
    }
}

/// TLS files, or a token in place of a certificate.
#[derive(Debug, Clone, Default, Args)]
pub struct IdentityArgs {
    #[command(flatten)]
    tls: TlsArgs,

    /// A projected ServiceAccount token to show in place of a certificate; read for each connection.
    #[arg(long, env = "PORTOLAN_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl IdentityArgs {
    /// The identity that the flags configure.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            token: self.token_file.clone().map_or(Token::Absent, Token::File),
            ..self.tls.identity()
        }
    }
}
