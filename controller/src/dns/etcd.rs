// SPDX-License-Identifier: Apache-2.0

//! The export to etcd: flags, and the election of the one controller that writes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portolan_dns::SharedZone;
use portolan_dns::skydns::{ExportConfig, Layout, User, export};
use portolan_etcd::Access;
use portolan_runtime::Vital;
use portolan_source::lease::{LeaseConfig, lead};
use portolan_tls::POLL;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::process_name::process_name;

/// The shortest time between two rounds of writing.
const INTERVAL: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);
/// The period of full reads, which repair foreign changes.
const RESYNC: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Flags of the export to etcd.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ExportArgs {
    /// An etcd endpoint that records are written to for CoreDNS's etcd plugin, as http://HOST:PORT
    /// or https://HOST:PORT; may be repeated for the members of one cluster. The keys of the zones
    /// below the prefix belong to the controller.
    #[arg(
        long = "dns-etcd-endpoint",
        env = "PORTOLAN_DNS_ETCD_ENDPOINT",
        value_delimiter = ','
    )]
    endpoints: Vec<String>,

    /// The first label of all keys: the etcd plugin's `path`.
    #[arg(
        long = "dns-etcd-prefix",
        env = "PORTOLAN_DNS_ETCD_PREFIX",
        default_value = "skydns"
    )]
    prefix: String,

    /// CA certificates that verify etcd's certificate, in PEM. Reloaded when the file changes.
    #[arg(long = "dns-etcd-ca", env = "PORTOLAN_DNS_ETCD_CA")]
    ca: Option<PathBuf>,

    /// The client certificate for etcd, in PEM. Reloaded when the file changes.
    #[arg(
        long = "dns-etcd-cert",
        env = "PORTOLAN_DNS_ETCD_CERT",
        requires = "key"
    )]
    cert: Option<PathBuf>,

    /// The private key of --dns-etcd-cert, in PEM. Reloaded when the file changes.
    #[arg(id = "key", long = "dns-etcd-key", env = "PORTOLAN_DNS_ETCD_KEY")]
    key: Option<PathBuf>,

    /// The etcd user, if etcd's authentication is enabled.
    #[arg(
        long = "dns-etcd-user",
        env = "PORTOLAN_DNS_ETCD_USER",
        requires = "password_file"
    )]
    user: Option<String>,

    /// A file with the password of --dns-etcd-user.
    #[arg(
        id = "password_file",
        long = "dns-etcd-password-file",
        env = "PORTOLAN_DNS_ETCD_PASSWORD_FILE"
    )]
    password_file: Option<PathBuf>,

    /// The Lease that elects the one controller that writes, as namespace/name, with
    /// --source kubernetes.
    #[arg(
        long = "dns-etcd-lease",
        env = "PORTOLAN_DNS_ETCD_LEASE",
        default_value = "kube-system/portolan-dns"
    )]
    lease: String,
}

/// An export of zones to etcd, each below a label of its own.
#[derive(Debug, Clone)]
pub(super) struct Export {
    /// The flag `--dns-etcd-prefix`.
    pub(super) prefix: String,
    endpoints: Vec<Channel>,
    user: Option<portolan_etcd::User>,
}

impl Export {
    /// Keeps the keys of a zone.
    pub(super) async fn run(self, layout: Layout, zone: Arc<SharedZone>) {
        let config = config(layout, self.user);
        export(zone, self.endpoints, config, std::future::pending()).await;
    }
}

fn config(layout: Layout, user: Option<portolan_etcd::User>) -> ExportConfig {
    ExportConfig {
        layout,
        interval: INTERVAL,
        retry: RETRY,
        resync: RESYNC,
        timeout: TIMEOUT,
        user: user.map(|user| User {
            name: user.name,
            password: user.password,
        }),
    }
}

impl ExportArgs {
    pub(super) fn is_on(&self) -> bool {
        !self.endpoints.is_empty()
    }

    pub(super) fn validate(&self) -> anyhow::Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        Layout::new(&self.prefix).context("--dns-etcd-prefix")?;
        self.access().validate()?;
        self.lease()?;
        Ok(())
    }

    fn access(&self) -> Access {
        Access {
            flags: "--dns-etcd",
            endpoints: self.endpoints.clone(),
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
            user: self.user.clone().zip(self.password_file.clone()),
        }
    }

    fn lease(&self) -> anyhow::Result<(&str, &str)> {
        let parts = self.lease.split_once('/');
        parts
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
            .with_context(|| format!("--dns-etcd-lease {:?}: expected namespace/name", self.lease))
    }

    pub(super) fn check_files(&self) -> anyhow::Result<()> {
        self.access().check_files()
    }

    /// The export of zones that come and go; `None` if it is off. Credentials are followed until the program ends.
    pub(super) fn open(&self, vital: &Vital) -> anyhow::Result<Option<Export>> {
        if !self.is_on() {
            return Ok(None);
        }
        let connection = self.access().open()?;
        if let Some(files) = connection.credentials {
            let follow = files.follow(POLL, vital.ending.clone());
            vital.spawn("credentials for etcd", follow);
        }
        Ok(Some(Export {
            prefix: self.prefix.clone(),
            endpoints: connection.endpoints,
            user: connection.user,
        }))
    }

    /// Starts the export if it is enabled; with a Kubernetes client, only while this process holds
    /// the Lease.
    pub(super) fn start(
        &self,
        zone: &Arc<SharedZone>,
        client: Option<kube::Client>,
        vital: &Vital,
    ) -> anyhow::Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let connection = self.access().open()?;
        if let Some(files) = connection.credentials {
            let follow = files.follow(POLL, vital.ending.clone());
            vital.spawn("credentials for etcd", follow);
        }
        let endpoints = connection.endpoints;
        let config = config(Layout::new(&self.prefix)?, connection.user);
        let zone = Arc::clone(zone);
        let Some(client) = client else {
            let stop = vital.ending.clone().cancelled_owned();
            vital.spawn("export to etcd", export(zone, endpoints, config, stop));
            return Ok(());
        };
        let (namespace, name) = self.lease()?;
        let lease = LeaseConfig::new(namespace, name, &process_name());
        let writer = move |stop: CancellationToken| {
            let (zone, endpoints, config) = (Arc::clone(&zone), endpoints.clone(), config.clone());
            async move { export(zone, endpoints, config, stop.cancelled()).await }
        };
        let lead = lead(client, lease, vital.ending.clone(), writer);
        vital.spawn("export to etcd", lead);
        Ok(())
    }
}
