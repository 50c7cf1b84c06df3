// SPDX-License-Identifier: Apache-2.0

//! Authentication of agents: flags, and the certificates and keys that they name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use portolan_auth::{
    Authentication, Issuers, KeySet, KeyWanted, TokenConfig, TokenRole, TokenVerifier,
    unverified_issuer,
};
use portolan_listener::Limits;
use portolan_runtime::{CredentialCollector, Rate, Readiness, Vital, raise_descriptor_limit};
use portolan_source::kubernetes;
use portolan_tls::{Loaded, POLL, Rotating, ServerFiles};
use prometheus_client::registry::Registry;
use rustls::ServerConfig as TlsConfig;
use tokio::sync::watch;

use crate::args::{Args, Source};
use crate::authority::{Keeper, KeeperConfig};
use crate::process_name::process_name;
use crate::publish::{Authority as CaSource, Publication};
use crate::{keys, reviews};

/// Flags of the controller's own identity and of the authentication of agents.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS and identity")]
pub(crate) struct IdentityArgs {
    /// Directory with tls.crt, tls.key and, for agents with certificates, ca.crt: the layout of
    /// cert-manager and of Secrets of type kubernetes.io/tls. Changed files are reloaded.
    #[arg(long, env = "PORTOLAN_TLS_DIR")]
    tls_dir: Option<PathBuf>,

    /// Certificate of the controller, in PEM.
    #[arg(long, env = "PORTOLAN_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Key of --tls-cert, in PEM.
    #[arg(long, env = "PORTOLAN_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Certificates of the authorities that sign agents' certificates, in PEM. An agent's certificate
    /// must have the URI portolan://CLUSTER/node/NODE.
    #[arg(long, env = "PORTOLAN_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,

    /// Issuer of agents' ServiceAccount tokens, equal to the API server's --service-account-issuer.
    /// `auto`: the issuer of the controller's own token, in a pod with a ServiceAccount. Without it,
    /// agents need certificates.
    #[arg(long, env = "PORTOLAN_TOKEN_ISSUER")]
    token_issuer: Option<String>,

    /// Audience that tokens must have.
    #[arg(
        long,
        env = "PORTOLAN_TOKEN_AUDIENCE",
        default_value = "portolan-controller"
    )]
    token_audience: String,

    /// File with the public keys of the token issuer, as a JSON Web Key Set, reloaded when it changes.
    /// Default: the keys of the API server, with --source kubernetes.
    #[arg(long, env = "PORTOLAN_TOKEN_JWKS_FILE", requires = "token_issuer")]
    token_jwks_file: Option<PathBuf>,

    /// ServiceAccount whose tokens are accepted, as namespace/name; may be repeated. Required with
    /// --token-issuer: any pod can get a token of its own ServiceAccount for any audience.
    #[arg(
        long,
        env = "PORTOLAN_TOKEN_SERVICE_ACCOUNT",
        value_delimiter = ',',
        requires = "token_issuer"
    )]
    token_service_account: Vec<String>,

    /// Accept ServiceAccount tokens of other clusters, with --source clusters: of edge controllers those
    /// that spec.access.edge.tokens of a Cluster object describes, of agents spec.agents.tokens. Clients
    /// without a certificate then pass the TLS handshake.
    #[arg(long, env = "PORTOLAN_CLUSTER_TOKENS")]
    pub(crate) cluster_tokens: bool,

    /// Limit of connections, authenticated or not; lower if the system allows fewer file descriptors,
    /// some of which are reserved for other uses. Connections without an authenticated agent are
    /// limited to half of it plus --max-handshakes.
    #[arg(long, env = "PORTOLAN_MAX_CONNECTIONS", default_value = "20000",
        value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Limit of concurrent TLS handshakes. Further ones wait; the source with the fewest handshakes is
    /// next. A source is an IPv4 address or an IPv6 network of 64 bits.
    #[arg(long, env = "PORTOLAN_MAX_HANDSHAKES", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..))]
    max_handshakes: u32,

    /// Limit of connections of one source without a complete TLS ClientHello. A further one closes the
    /// oldest of them.
    #[arg(long, env = "PORTOLAN_HELLOS_PER_SOURCE", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..))]
    hellos_per_source: u32,

    /// Rate of token verifications a second for one source. A burst of twenty times as many is allowed
    /// for agents that reconnect at once from behind one address.
    #[arg(long, env = "PORTOLAN_TOKEN_CHECKS_PER_SOURCE", default_value = "500",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    token_checks_per_source: u32,
}

/// Value of --token-issuer that stands for the issuer of the pod's own token.
const AUTO: &str = "auto";
/// Token of the pod's ServiceAccount.
const OWN_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The server's side of TLS and authentication.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) tls: Option<watch::Receiver<Arc<TlsConfig>>>,
    pub(crate) authentication: Authentication,
    /// Receiver of the issuers of tokens of other clusters, if those are accepted.
    pub(crate) cluster_issuers: Option<watch::Sender<Arc<Issuers>>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: CredentialCollector,
}

impl IdentityArgs {
    /// Checks the flags without reading files.
    pub(crate) fn validate(&self, plaintext: bool, self_managed: bool) -> anyhow::Result<()> {
        let has_tls = self.pair().is_some() || self_managed;
        if plaintext {
            ensure!(
                !has_tls && !self.takes_tokens() && self.tls_client_ca.is_none(),
                "--plaintext excludes --tls-..., --token-... and --cluster-tokens"
            );
            return Ok(());
        }
        ensure!(
            has_tls,
            "no server identity: set --tls-dir, or --tls-cert and --tls-key with --tls-client-ca or \
             --token-issuer, or --tls-self-managed; on a trusted network, --plaintext"
        );
        ensure!(
            self.tls_client_ca.is_some() || self.tls_dir.is_some() || self.takes_tokens(),
            "agents cannot be authenticated: set --tls-client-ca, --token-issuer or --cluster-tokens"
        );
        ensure!(
            self.token_issuer.is_none() || !self.cluster_tokens,
            "--cluster-tokens excludes --token-issuer, the issuer of a single cluster: each Cluster object has its own"
        );
        ensure!(
            self.token_issuer.is_none() || !self.accounts()?.is_empty(),
            "--token-issuer needs --token-service-account, the ServiceAccount of the agents: any pod \
             can get a token of its own ServiceAccount for any audience"
        );
        Ok(())
    }

    /// Reads the files of a run, as a run does at its start; a result for each topic. The token of the
    /// pod belongs to the pod, not to the configuration.
    pub(crate) fn check_files(&self) -> [anyhow::Result<()>; 2] {
        let tls = self.server_files().map(|files| files.open("tls").map(drop));
        let keys = self.token_jwks_file.as_deref();
        let keys = keys.map(|path| key_file(path).map(drop));
        [
            tls.transpose().map(|_| ()).map_err(Into::into),
            keys.transpose().map(|_| ()),
        ]
    }

    /// Returns `true` if the keys of the token issuer are those of the API server.
    pub(crate) fn lacks_keys(&self) -> bool {
        self.token_issuer.is_some() && self.token_jwks_file.is_none()
    }

    /// Returns true if clients may show tokens.
    fn takes_tokens(&self) -> bool {
        self.token_issuer.is_some() || self.cluster_tokens
    }

    /// The certificate, the key and the authorities of clients.
    fn server_files(&self) -> Option<ServerFiles> {
        let (cert, key) = self.pair()?;
        Some(ServerFiles {
            cert,
            key,
            client_ca: self.client_ca(),
            anonymous: self.takes_tokens(),
        })
    }

    /// The file of the authorities that signed the server's certificate, in the directory of the flags.
    pub(crate) fn server_ca(&self) -> Option<PathBuf> {
        self.in_dir("ca.crt").filter(|ca| ca.exists())
    }

    fn in_dir(&self, file: &str) -> Option<PathBuf> {
        self.tls_dir.as_deref().map(|dir| dir.join(file))
    }

    fn pair(&self) -> Option<(PathBuf, PathBuf)> {
        let own = self.tls_cert.clone().zip(self.tls_key.clone());
        own.or_else(|| self.in_dir("tls.crt").zip(self.in_dir("tls.key")))
    }

    /// Authorities of agents' certificates. With tokens, the directory may lack them.
    pub(crate) fn client_ca(&self) -> Option<PathBuf> {
        let needed = |ca: &PathBuf| !self.takes_tokens() || Path::exists(ca);
        let of_dir = || self.in_dir("ca.crt").filter(needed);
        self.tls_client_ca.clone().or_else(of_dir)
    }

    fn accounts(&self) -> anyhow::Result<Vec<(String, String)>> {
        let parse = |account: &String| match account.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok((namespace.to_owned(), name.to_owned()))
            }
            _ => bail!("--token-service-account {account:?}: expected namespace/name"),
        };
        self.token_service_account.iter().map(parse).collect()
    }

    /// Limits of connections, for a limit of file descriptors.
    fn limits(&self, descriptors: Option<u64>) -> Limits {
        let size = |flag: u32| usize::try_from(flag).unwrap_or(usize::MAX);
        Limits {
            connections: size(connections(self.max_connections, descriptors)),
            handshakes: size(self.max_handshakes),
            hellos_per_source: size(self.hellos_per_source),
            ..Limits::default()
        }
    }

    /// Rate of token verifications for one source.
    pub(crate) fn token_checks(&self) -> Rate {
        Rate {
            per_second: self.token_checks_per_source,
            burst: self.token_checks_per_source.saturating_mul(20),
        }
    }
}

/// Descriptors reserved for everything but agents' connections: files that are reloaded, the API
/// server, the admin server, the DNS server.
const OTHER_DESCRIPTORS: u64 = 1_024;

/// The limit of connections that the descriptors allow. Where they are few, half of them are reserved
/// for everything else.
fn connections(wanted: u32, descriptors: Option<u64>) -> u32 {
    let Some(descriptors) = descriptors else {
        return wanted;
    };
    let others = OTHER_DESCRIPTORS.min(descriptors / 2);
    let room = u32::try_from(descriptors - others).unwrap_or(u32::MAX);
    if room < wanted {
        tracing::warn!(
            descriptors,
            connections = room,
            "too few file descriptors for --max-connections"
        );
    }
    wanted.min(room).max(1)
}

/// Reads the files, and starts to follow their changes.
pub(crate) async fn open(
    args: &Args,
    registry: &mut Registry,
    readiness: &Readiness,
    vital: &Vital,
) -> anyhow::Result<Identity> {
    let flags = &args.identity;
    args.validate_identity()?;
    let mut identity = Identity {
        tls: None,
        authentication: Authentication::Nothing,
        cluster_issuers: None,
        limits: flags.limits(raise_descriptor_limit()),
        metrics: CredentialCollector(Vec::new()),
    };
    let authority = if args.self_managed.is_on() {
        manage(args, &mut identity, readiness, vital).await?
    } else if let Some(files) = flags.server_files() {
        let files = files.open("tls")?;
        identity.tls = Some(files.subscribe());
        identity.metrics.0.push(files.health());
        vital.spawn("certificates", files.follow(POLL, vital.ending.clone()));
        let own = args.publish.publish_ca.clone();
        let file = own.or_else(|| flags.server_ca());
        file.map_or(CaSource::None, CaSource::File)
    } else {
        tracing::warn!(
            "plaintext: every client that reaches the port can act as the agent of any node"
        );
        CaSource::None
    };
    publish(args, authority, vital).await?;
    if args.plaintext {
        return Ok(identity);
    }
    identity.authentication =
        Authentication::Required(verifier(args, &mut identity, registry, vital).await?);
    Ok(identity)
}

/// Starts the controller's own authority, whose certificate the server shows.
async fn manage(
    args: &Args,
    identity: &mut Identity,
    readiness: &Readiness,
    vital: &Vital,
) -> anyhow::Result<CaSource> {
    let (flags, managed) = (&args.identity, &args.self_managed);
    let secret = managed.tls_self_managed.clone();
    let config = KeeperConfig {
        secret: secret.context("--tls-self-managed")?,
        names: managed.names(args.publish.publish_service.as_ref())?,
        ca_days: managed.tls_ca_days,
        cert_days: managed.tls_cert_days,
        client_ca: flags.client_ca(),
        anonymous: flags.takes_tokens(),
    };
    let client = own_client(args).await.context("--tls-self-managed")?;
    let keeper = Keeper::new(client, config, readiness.block("certificate"))?;
    identity.tls = Some(keeper.tls());
    identity.metrics.0.push(keeper.health());
    let authority = CaSource::Managed(keeper.bundle());
    vital.spawn_endless("certificate authority", keeper.run());
    Ok(authority)
}

/// Starts to publish what agents need, if the flags ask for that.
async fn publish(args: &Args, authority: CaSource, vital: &Vital) -> anyhow::Result<()> {
    if args.publish.publish.is_none() {
        return Ok(());
    }
    let client = own_client(args).await.context("--publish")?;
    if let Some(publication) = Publication::new(&args.publish, &client, authority) {
        let run = publication.run(process_name(), vital.ending.clone());
        vital.spawn("publication", run);
    }
    Ok(())
}

async fn own_client(args: &Args) -> Result<kube::Client, kubernetes::ClientError> {
    kubernetes::own_client(args.kubeconfig.as_deref(), args.context.as_deref()).await
}

/// The verifier of tokens, if clients may show one.
async fn verifier(
    args: &Args,
    identity: &mut Identity,
    registry: &mut Registry,
    vital: &Vital,
) -> anyhow::Result<Option<Arc<TokenVerifier>>> {
    let flags = &args.identity;
    if flags.cluster_tokens {
        let (sender, issuers) = watch::channel(Arc::default());
        identity.cluster_issuers = Some(sender);
        return Ok(Some(Arc::new(TokenVerifier::of(issuers))));
    }
    let verifier = match &flags.token_issuer {
        None => None,
        Some(issuer) => {
            let wanted = KeyWanted::default();
            let keys = follow_keys(args, &wanted, &mut identity.metrics, vital).await?;
            let config = TokenConfig {
                issuer: resolve_issuer(issuer, Path::new(OWN_TOKEN))?,
                audience: flags.token_audience.clone(),
                cluster: args.cluster.clone(),
                service_accounts: flags.accounts()?,
                role: TokenRole::Node,
            };
            let mut verifier = TokenVerifier::new(config, keys, wanted);
            if let Some(reviewer) = reviews::open(args, &flags.token_audience, registry).await? {
                verifier = verifier.reviewed(Arc::clone(&reviewer.reviews));
                vital.spawn_endless("token reviews", reviewer.run());
            }
            Some(Arc::new(verifier))
        }
    };
    Ok(verifier)
}

/// The issuer of the flag; for `auto`, that of the token in the file.
fn resolve_issuer(flag: &str, own_token: &Path) -> anyhow::Result<String> {
    if flag != AUTO {
        return Ok(flag.to_owned());
    }
    let file = own_token.display();
    let token = std::fs::read_to_string(own_token).with_context(|| {
        format!("--token-issuer auto needs the token of the pod's ServiceAccount: {file}")
    })?;
    let issuer = unverified_issuer(&token)
        .with_context(|| format!("--token-issuer auto: the token in {file}"))?;
    tracing::info!(
        issuer,
        "the issuer of tokens is that of the controller's own token"
    );
    Ok(issuer)
}

/// Follows the keys of the token issuer, in a file or at the API server.
async fn follow_keys(
    args: &Args,
    wanted: &KeyWanted,
    metrics: &mut CredentialCollector,
    vital: &Vital,
) -> anyhow::Result<watch::Receiver<Arc<KeySet>>> {
    if let Some(path) = &args.identity.token_jwks_file {
        let files = key_file(path)?;
        let keys = files.subscribe();
        metrics.0.push(files.health());
        vital.spawn("keys of tokens", files.follow(POLL, vital.ending.clone()));
        return Ok(keys);
    }
    ensure!(
        args.source == Source::Kubernetes,
        "--token-issuer without --source kubernetes needs --token-jwks-file"
    );
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let client = kubernetes::client(kubeconfig, context)
        .await
        .context("--token-issuer")?;
    let (sender, keys) = watch::channel(Arc::new(KeySet::default()));
    let fetch = move || {
        let client = client.clone();
        async move {
            let request = keys::request();
            Ok(client.request_text(request).await?)
        }
    };
    let follow = keys::follow(fetch, sender, Arc::clone(wanted), keys::Pace::default());
    vital.spawn_endless("keys of tokens", follow);
    Ok(keys)
}

fn key_file(path: &Path) -> anyhow::Result<Rotating<KeySet>> {
    let paths = vec![path.to_owned()];
    let files = Rotating::open("token_keys", paths, |files| {
        let file = files.first();
        let content = file.map(|file| file.content.as_slice());
        let keys = KeySet::parse(content.unwrap_or_default());
        match (keys, file) {
            (Ok(value), _) => Ok(Loaded {
                value,
                expires: None,
            }),
            (Err(reason), Some(file)) => Err(file.error(reason)),
            (Err(reason), None) => Err(portolan_tls::FileError::new(Path::new(""), reason)),
        }
    });
    files.context("--token-jwks-file")
}

#[cfg(test)]
mod tests;
