//! The export to etcd: its flags, its connection, and who of several controllers writes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper_util::rt::TokioIo;
use portolan_dns::SharedZone;
use portolan_dns::skydns::{ExportConfig, Layout, User, export};
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

use crate::app::Vital;

/// The shortest time between two rounds of writing.
const INTERVAL: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);
/// So often everything is read, to repair what others changed.
const RESYNC: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where the records go as SkyDNS messages.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct EtcdArgs {
    /// An etcd that records are written to for CoreDNS's etcd plugin, as http://HOST:PORT or
    /// https://HOST:PORT. The keys of the zones below the prefix are the controller's alone.
    #[arg(long = "dns-etcd-endpoint", env = "PORTOLAN_DNS_ETCD_ENDPOINT")]
    endpoint: Option<String>,

    /// What keys begin with: the etcd plugin's `path`, one label.
    #[arg(
        long = "dns-etcd-prefix",
        env = "PORTOLAN_DNS_ETCD_PREFIX",
        default_value = "skydns"
    )]
    prefix: String,

    /// Who signs etcd's certificate, in PEM. Read again when it changes, as the next two.
    #[arg(long = "dns-etcd-ca", env = "PORTOLAN_DNS_ETCD_CA")]
    ca: Option<PathBuf>,

    /// A certificate for etcd, in PEM.
    #[arg(
        long = "dns-etcd-cert",
        env = "PORTOLAN_DNS_ETCD_CERT",
        requires = "key"
    )]
    cert: Option<PathBuf>,

    /// The key of --dns-etcd-cert, in PEM.
    #[arg(id = "key", long = "dns-etcd-key", env = "PORTOLAN_DNS_ETCD_KEY")]
    key: Option<PathBuf>,

    /// A user of etcd's.
    #[arg(
        long = "dns-etcd-user",
        env = "PORTOLAN_DNS_ETCD_USER",
        requires = "password_file"
    )]
    user: Option<String>,

    /// A file with the user's password.
    #[arg(
        id = "password_file",
        long = "dns-etcd-password-file",
        env = "PORTOLAN_DNS_ETCD_PASSWORD_FILE"
    )]
    password_file: Option<PathBuf>,

    /// The Lease that says which of several controllers writes, as namespace/name, with
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
        self.endpoint.is_some()
    }

    pub(super) fn validate(&self) -> anyhow::Result<()> {
        let Some(uri) = self.uri()? else {
            return Ok(());
        };
        Layout::new(&self.prefix).context("--dns-etcd-prefix")?;
        let is_secure = uri.scheme_str() == Some("https");
        ensure!(
            is_secure == self.ca.is_some(),
            "--dns-etcd-ca goes with https://, and nothing else does"
        );
        ensure!(
            self.ca.is_some() || self.cert.is_none(),
            "--dns-etcd-cert needs --dns-etcd-ca"
        );
        self.lease()?;
        Ok(())
    }

    fn uri(&self) -> anyhow::Result<Option<Uri>> {
        let Some(text) = &self.endpoint else {
            return Ok(None);
        };
        let uri: Uri = text.parse().context("--dns-etcd-endpoint")?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        ensure!(
            known && uri.host().is_some() && uri.port_u16().is_some(),
            "--dns-etcd-endpoint {text:?}: expected http://HOST:PORT or https://HOST:PORT"
        );
        Ok(Some(uri))
    }

    fn lease(&self) -> anyhow::Result<(&str, &str)> {
        let parts = self.lease.split_once('/');
        parts
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
            .with_context(|| format!("--dns-etcd-lease {:?}: expected namespace/name", self.lease))
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

    /// Starts the export, if there is to be one; with a client of Kubernetes, only as long as the
    /// Lease is ours.
    pub(super) fn start(
        &self,
        zone: &Arc<SharedZone>,
        client: Option<kube::Client>,
        vital: &Vital,
    ) -> anyhow::Result<()> {
        let Some(uri) = self.uri()? else {
            return Ok(());
        };
        let channel = self.channel(uri, vital)?;
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
            vital.spawn("export to etcd", export(zone, channel, config, stop));
            return Ok(());
        };
        let (namespace, name) = self.lease()?;
        let lease = LeaseConfig::new(namespace, name, &identity());
        let writer = move |stop: CancellationToken| {
            let (zone, channel, config) = (Arc::clone(&zone), channel.clone(), config.clone());
            async move { export(zone, channel, config, stop.cancelled()).await }
        };
        let lead = lead(client, lease, vital.ending.clone(), writer);
        vital.spawn("export to etcd", lead);
        Ok(())
    }

    fn channel(&self, uri: Uri, vital: &Vital) -> anyhow::Result<Channel> {
        let endpoint = |uri: Uri| {
            Endpoint::from(uri)
                .connect_timeout(TIMEOUT)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_while_idle(true)
        };
        let Some(ca) = self.ca.clone() else {
            return Ok(endpoint(uri).connect_lazy());
        };
        let identity = self.cert.clone().zip(self.key.clone());
        let files = ClientFiles { ca, identity }.open("etcd")?;
        let config = files.subscribe();
        vital.spawn(
            "credentials for etcd",
            files.follow(POLL, vital.ending.clone()),
        );
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).context("--dns-etcd-endpoint")?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        // The connector below does TLS itself; tonic would refuse https without its own.
        let plain: Uri = format!("http://{authority}").parse()?;
        let connector =
            service_fn(move |_: Uri| secure(authority.clone(), name.clone(), config.clone()));
        Ok(endpoint(plain).connect_with_connector_lazy(connector))
    }
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

/// Another name for each process, also for the next one of the same pod.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "portolan-controller".to_owned());
    let began = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{host}_{}_{began:x}", std::process::id())
}
