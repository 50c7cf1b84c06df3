// SPDX-License-Identifier: Apache-2.0

//! The export to etcd: flags, connections, and the election of the one controller that writes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper_util::rt::TokioIo;
use portolan_dns::SharedZone;
use portolan_dns::skydns::{ExportConfig, Layout, User, export};
use portolan_runtime::Vital;
use portolan_source::lease::{LeaseConfig, lead};
use portolan_tls::{ClientFiles, POLL};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::process_name::process_name;

/// The shortest time between two rounds of writing.
const INTERVAL: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);
/// The period of full reads, which repair foreign changes.
const RESYNC: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
/// A dead endpoint delays the next one by no more than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Flags of the export to etcd.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct EtcdArgs {
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

impl EtcdArgs {
    pub(super) fn is_on(&self) -> bool {
        !self.endpoints.is_empty()
    }

    pub(super) fn validate(&self) -> anyhow::Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        Layout::new(&self.prefix).context("--dns-etcd-prefix")?;
        for uri in self.uris()? {
            let is_secure = uri.scheme_str() == Some("https");
            ensure!(
                is_secure == self.ca.is_some(),
                "--dns-etcd-endpoint {uri}: https:// needs --dns-etcd-ca, and http:// excludes it"
            );
        }
        ensure!(
            self.ca.is_some() || self.cert.is_none(),
            "--dns-etcd-cert needs --dns-etcd-ca"
        );
        self.lease()?;
        Ok(())
    }

    fn uris(&self) -> anyhow::Result<Vec<Uri>> {
        let parse = |text: &String| {
            let uri: Uri = text.parse().context("--dns-etcd-endpoint")?;
            let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
            ensure!(
                is_known && uri.host().is_some() && uri.port_u16().is_some(),
                "--dns-etcd-endpoint {text:?}: expected http://HOST:PORT or https://HOST:PORT"
            );
            Ok(uri)
        };
        self.endpoints.iter().map(parse).collect()
    }

    fn lease(&self) -> anyhow::Result<(&str, &str)> {
        let parts = self.lease.split_once('/');
        parts
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
            .with_context(|| format!("--dns-etcd-lease {:?}: expected namespace/name", self.lease))
    }

    pub(super) fn check_files(&self) -> anyhow::Result<()> {
        self.user()?;
        if let Some(files) = self.client_files() {
            files.open("etcd")?;
        }
        Ok(())
    }

    fn client_files(&self) -> Option<ClientFiles> {
        let ca = self.ca.clone()?;
        let identity = self.cert.clone().zip(self.key.clone());
        Some(ClientFiles { ca, identity })
    }

    fn user(&self) -> anyhow::Result<Option<User>> {
        let Some((name, file)) = self.user.as_ref().zip(self.password_file.as_ref()) else {
            return Ok(None);
        };
        let password = std::fs::read_to_string(file)
            .with_context(|| format!("--dns-etcd-password-file {}", file.display()))?;
        Ok(Some(User {
            name: name.clone(),
            password: password.trim_end_matches(['\r', '\n']).to_owned(),
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
        let endpoints = self.channels(vital)?;
        let config = ExportConfig {
            layout: Layout::new(&self.prefix)?,
            interval: INTERVAL,
            retry: RETRY,
            resync: RESYNC,
            timeout: TIMEOUT,
            user: self.user()?,
        };
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

    fn channels(&self, vital: &Vital) -> anyhow::Result<Vec<Channel>> {
        let uris = self.uris()?.into_iter();
        let Some(files) = self.client_files() else {
            return Ok(uris.map(|uri| endpoint(uri).connect_lazy()).collect());
        };
        let files = files.open("etcd")?;
        let config = files.subscribe();
        vital.spawn(
            "credentials for etcd",
            files.follow(POLL, vital.ending.clone()),
        );
        uris.map(|uri| secure_channel(&uri, config.clone()))
            .collect()
    }
}

fn endpoint(uri: Uri) -> Endpoint {
    Endpoint::from(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
}

/// A channel of which each connection uses the credentials of its time.
fn secure_channel(
    uri: &Uri,
    config: watch::Receiver<Arc<ClientConfig>>,
) -> anyhow::Result<Channel> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).context("--dns-etcd-endpoint")?;
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    // The connector below does TLS itself; tonic would refuse https without its own.
    let plain: Uri = format!("http://{authority}").parse()?;
    let connector =
        service_fn(move |_: Uri| secure(authority.clone(), name.clone(), config.clone()));
    Ok(endpoint(plain).connect_with_connector_lazy(connector))
}

async fn secure(
    authority: String,
    name: ServerName<'static>,
    config: watch::Receiver<Arc<ClientConfig>>,
) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    let config = Arc::clone(&config.borrow());
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(TokioIo::new(stream))
}
