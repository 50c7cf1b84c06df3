// SPDX-License-Identifier: Apache-2.0

//! Members of the set.

use std::time::Duration;

use portolan_director::read::Path;

use super::{Meta, Network, spec};
use crate::faults::Faults;
use crate::spec::{AccessSpec, AgentsSpec, ClientTokensSpec, ClusterSpec};
use crate::{Fault, Labels, PolicyError};

/// The property that `spec.region` sets.
pub const REGION: &str = "region.topology.k8s.io";

/// A member of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Name, age and labels.
    pub meta: Meta,
    /// The id, which DNS names and the label `source-cluster` show: a DNS label.
    pub id: String,
    /// Properties that the operator gives, the region among them.
    pub properties: Labels,
    /// Way in which the cluster is reached.
    pub access: Access,
    /// The tokens that its agents may show in place of certificates. No ServiceAccount is one of the edge controllers
    /// too.
    pub agent_tokens: Option<Box<ClientTokens>>,
    /// Its networks.
    pub network: Network,
    /// Its loss, where it differs from the set's.
    pub loss: ClusterLoss,
    /// The operator's drain.
    pub drain: Option<Drain>,
    /// Bounds.
    pub quota: ClusterQuota,
}

/// Way in which a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// By a kubeconfig in a Secret of the controller's namespace.
    KubeconfigSecret {
        /// The name of the Secret.
        name: String,
        /// Its key.
        key: String,
    },
    /// By a kubeconfig in a file.
    KubeconfigFile(String),
    /// A controller in the cluster connects to this one, with a certificate, or with a token of these.
    Edge(Option<ClientTokens>),
    /// By files with its objects.
    Files(Vec<String>),
    /// It is the cluster that the controller runs in.
    Local,
}

/// The ServiceAccount tokens of a cluster's agents or edge controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTokens {
    /// The claim `iss`.
    pub issuer: String,
    /// The value that the claim `aud` must contain.
    pub audience: String,
    /// The issuer's public keys.
    pub keys: TokenKeys,
    /// The ServiceAccounts of these clients, as namespace and name; at least one.
    pub service_accounts: Vec<(String, String)>,
}

/// The public keys of an issuer, as a JSON Web Key Set, which is not read here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKeys {
    /// The text.
    Text(String),
    /// The path of a file with it.
    File(String),
}

/// The loss of a cluster, where it differs from the set's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterLoss {
    /// Time after which it is lost once it is stale; zero for never.
    pub stale_ttl: Option<Duration>,
    /// Time that it is in contact before it returns.
    pub return_after: Option<Duration>,
    /// Time over which its share rises again.
    pub ramp_up: Option<Duration>,
}

/// A drain by the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// The percentage of its load that the cluster keeps, 0 to 100.
    pub to: u8,
    /// The time that this takes.
    pub over: Duration,
}

/// Bounds of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterQuota {
    /// Exports; the set's bound if none.
    pub exports: Option<u32>,
    /// Ready endpoints of all exports together.
    pub endpoints: u32,
}

impl Cluster {
    /// The object that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(meta: Meta, given: &ClusterSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let mut properties = given.properties.clone();
        if let Some(region) = &given.region {
            properties.insert(REGION.to_owned(), region.clone());
        }
        let loss = spec("loss");
        let mut duration = |name, text: &Option<String>| {
            faults.optional_duration(&loss.field(name), text.as_ref())
        };
        let loss = ClusterLoss {
            stale_ttl: duration("staleTTL", &given.loss.stale_ttl),
            return_after: duration("returnAfter", &given.loss.return_after),
            ramp_up: duration("rampUp", &given.loss.ramp_up),
        };
        let drain = given.drain.as_ref().map(|drain| {
            let path = spec("drain");
            Drain {
                to: faults.percent(&path.field("to"), drain.to, 0),
                over: faults.duration(&path.field("over"), drain.over.as_ref(), Duration::ZERO),
            }
        });
        let access = access(&given.access, &mut faults);
        let agents = given.agents.as_ref();
        let agent_tokens = agents.and_then(|agents| agent_tokens(agents, &access, &mut faults));
        let cluster = Self {
            id: given.id.clone().unwrap_or_else(|| meta.name.clone()),
            meta,
            properties,
            access,
            agent_tokens: agent_tokens.map(Box::new),
            network: Network::new(&given.network, &spec("network"), &mut faults),
            loss,
            drain,
            quota: ClusterQuota {
                exports: given.quota.exports,
                endpoints: given.quota.endpoints.unwrap_or(50_000),
            },
        };
        faults.into_result(cluster)
    }

    /// Whether the object may take the place of an earlier version.
    ///
    /// # Errors
    /// [`PolicyError::ImmutableId`], if its id is another.
    pub fn may_replace(&self, earlier: &Self) -> Result<(), Fault> {
        if self.id == earlier.id {
            return Ok(());
        }
        Err(Fault {
            field: String::from("spec.id"),
            error: PolicyError::ImmutableId {
                was: earlier.id.clone(),
                now: self.id.clone(),
            },
        })
    }

    /// Returns the labels that selectors read: labels and properties together. The operator's come before those that
    /// the cluster reports of itself (its ClusterProperty objects), so that a captured cluster does not get itself
    /// selected.
    #[must_use]
    pub fn labels(&self, reported: &Labels) -> Labels {
        let mut labels = reported.clone();
        labels.extend(self.properties.clone());
        labels.extend(self.meta.labels.clone());
        labels
    }
}

fn access(given: &AccessSpec, faults: &mut Faults) -> Access {
    let secret = given.kubeconfig_secret.as_ref();
    let ways = [
        secret.map(|secret| {
            let key = secret.key.clone();
            let access = Access::KubeconfigSecret {
                name: secret.name.clone(),
                key: key.unwrap_or_else(|| String::from("kubeconfig")),
            };
            ("kubeconfigSecret", access)
        }),
        given
            .kubeconfig_file
            .clone()
            .map(|path| ("kubeconfigFile", Access::KubeconfigFile(path))),
        given.edge.as_ref().map(|edge| {
            let tokens = edge.tokens.as_ref();
            let tokens = tokens.map(|tokens| {
                let path = spec("access").field("edge").field("tokens");
                client_tokens(&path, tokens, faults)
            });
            ("edge", Access::Edge(tokens))
        }),
        given
            .files
            .clone()
            .map(|paths| ("files", Access::Files(paths))),
        given.local.map(|_| ("local", Access::Local)),
    ];
    let mut ways: Vec<(&str, Access)> = ways.into_iter().flatten().collect();
    if ways.len() != 1 {
        let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
        let found = if names.is_empty() {
            String::from("none")
        } else {
            names.join(" and ")
        };
        let error = PolicyError::AccessNotOne {
            found,
            expected: "kubeconfigSecret, kubeconfigFile, edge, files and local",
        };
        faults.add(&spec("access"), error);
    }
    ways.pop().map_or(Access::Edge(None), |(_, access)| access)
}

fn agent_tokens(given: &AgentsSpec, access: &Access, faults: &mut Faults) -> Option<ClientTokens> {
    let given = given.tokens.as_ref()?;
    let path = spec("agents").field("tokens");
    let tokens = client_tokens(&path, given, faults);
    let of_edges = match access {
        Access::Edge(Some(edges)) => &edges.service_accounts[..],
        _ => &[],
    };
    let accounts = path.field("serviceAccounts");
    for (index, (namespace, name)) in tokens.service_accounts.iter().enumerate() {
        if of_edges.contains(&(namespace.clone(), name.clone())) {
            let account = format!("{namespace}/{name}");
            faults.add(&accounts.item(index), PolicyError::AccountOfEdges(account));
        }
    }
    Some(tokens)
}

fn client_tokens(path: &Path, given: &ClientTokensSpec, faults: &mut Faults) -> ClientTokens {
    let keys = match (&given.jwks, &given.jwks_file) {
        (Some(text), None) => TokenKeys::Text(text.clone()),
        (None, Some(file)) => TokenKeys::File(file.clone()),
        (text, _) => {
            let found = if text.is_some() {
                "jwks and jwksFile"
            } else {
                "none"
            };
            faults.add(path, PolicyError::TokenKeysNotOne(found));
            TokenKeys::Text(String::new())
        }
    };
    let accounts = path.field("serviceAccounts");
    if given.service_accounts.is_empty() {
        faults.add(&accounts, PolicyError::NoServiceAccount);
    }
    let mut service_accounts = Vec::new();
    for (index, text) in given.service_accounts.iter().enumerate() {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                service_accounts.push((namespace.to_owned(), name.to_owned()));
            }
            _ => faults.add(
                &accounts.item(index),
                PolicyError::ServiceAccount(text.clone()),
            ),
        }
    }
    ClientTokens {
        issuer: given.issuer.clone(),
        audience: given
            .audience
            .clone()
            .unwrap_or_else(|| String::from("portolan-controller")),
        keys,
        service_accounts,
    }
}
