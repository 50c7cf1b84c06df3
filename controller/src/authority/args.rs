// SPDX-License-Identifier: Apache-2.0

//! Flags of the authority.

use anyhow::{Context as _, ensure};
use rustls::pki_types::ServerName;

use crate::object_name::ObjectName;

/// Flags of the controller's own certificate authority.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS and identity")]
pub(crate) struct SelfManagedArgs {
    /// Secret of the controller's own certificate authority, instead of --tls-dir. It must exist; an
    /// empty one is filled (keys ca.crt, ca.key). The controller signs its certificate itself and renews
    /// it and the authority at two thirds of their lives. Needs permission to get and update the Secret.
    #[arg(long, env = "PORTOLAN_TLS_SELF_MANAGED", value_name = "NAMESPACE/SECRET",
        conflicts_with_all = ["tls_dir", "tls_cert", "plaintext"])]
    pub(crate) tls_self_managed: Option<ObjectName>,

    /// Host names and addresses in the self-managed certificate, besides NAME.NAMESPACE.svc of
    /// --publish-service.
    #[arg(
        long,
        env = "PORTOLAN_TLS_SERVER_NAMES",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    tls_server_names: Vec<String>,

    /// Validity of the self-managed authority, in days.
    #[arg(long, env = "PORTOLAN_TLS_CA_DAYS", default_value = "3650",
        value_parser = clap::value_parser!(u32).range(10..=36_500))]
    pub(crate) tls_ca_days: u32,

    /// Validity of the self-managed certificate, in days.
    #[arg(long, env = "PORTOLAN_TLS_CERT_DAYS", default_value = "90",
        value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) tls_cert_days: u32,
}

impl SelfManagedArgs {
    pub(crate) fn is_on(&self) -> bool {
        self.tls_self_managed.is_some()
    }

    /// The names in the certificate.
    pub(crate) fn names(&self, service: Option<&ObjectName>) -> anyhow::Result<Vec<String>> {
        let service = service.map(|service| format!("{}.{}.svc", service.name, service.namespace));
        let names: Vec<_> = service
            .into_iter()
            .chain(self.tls_server_names.iter().cloned())
            .collect();
        ensure!(
            !names.is_empty(),
            "--tls-self-managed needs --publish-service or --tls-server-names, for the names in the \
             certificate"
        );
        for name in &names {
            ServerName::try_from(name.as_str())
                .with_context(|| format!("--tls-server-names {name:?}"))?;
        }
        Ok(names)
    }
}
