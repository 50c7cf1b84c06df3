// SPDX-License-Identifier: Apache-2.0

//! The issuers of tokens of other clusters: those of Clusters with `spec.access.edge.tokens` for their edge
//! controllers, or `spec.agents.tokens` for their agents.
//!
//! Keys are read as often as the policy's files. Of each cluster the last issuer with usable keys is in force.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portolan_auth::{Issuer, Issuers, KeySet, KeyWanted, TokenConfig, TokenRole};
use portolan_policy::{Access, ClientTokens, Objects, TokenKeys};
use portolan_tls::FileError;
use tokio::sync::watch;

use super::Supervisor;

/// The clients of a Cluster whose tokens a field describes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Clients {
    cluster: String,
    role: TokenRole,
}

impl Clients {
    /// The field, with the name of one in it.
    fn field(&self, name: &str) -> String {
        let tokens = match self.role {
            TokenRole::Edge => "spec.access.edge.tokens",
            TokenRole::Node => "spec.agents.tokens",
        };
        format!("Cluster {}: {tokens}{name}", self.cluster)
    }
}

/// Tokens of a Cluster, and the text of their keys, or the reason why there is none.
type Found = (ClientTokens, Result<Vec<u8>, String>);

/// The issuers that run, shared with the verifier of tokens.
#[derive(Debug, Default)]
pub(super) struct TokenDesk {
    /// `None` without `--cluster-tokens`.
    issuers: Option<watch::Sender<Arc<Issuers>>>,
    known: BTreeMap<Clients, Known>,
    problems: Vec<String>,
}

/// The issuer of the tokens of some clients.
#[derive(Debug)]
struct Known {
    found: Found,
    in_force: Option<(ClientTokens, Arc<KeySet>)>,
    problem: Option<String>,
}

impl TokenDesk {
    pub(super) fn new(issuers: watch::Sender<Arc<Issuers>>) -> Self {
        Self {
            issuers: Some(issuers),
            ..Self::default()
        }
    }

    /// All that is wrong with issuers, in words.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Puts the issuers in force that these clusters have.
    fn take(&mut self, found: BTreeMap<Clients, Found>) {
        let before = self.known.len();
        self.known.retain(|clients, _| found.contains_key(clients));
        let mut is_news = self.known.len() != before;
        for (clients, found) in found {
            let known = self.known.get(&clients);
            if known.is_some_and(|known| known.found == found) {
                continue;
            }
            is_news = true;
            let before = self.known.remove(&clients);
            let before = before.and_then(|known| known.in_force);
            let known = Known::new(&clients, found, before);
            self.known.insert(clients, known);
        }
        if is_news {
            self.tell();
        }
    }

    /// Tells the verifier, and collects what is wrong.
    fn tell(&mut self) {
        let issuers: Issuers = self.known.iter().filter_map(issuer).collect();
        let faults = self.known.values();
        let faults = faults.filter_map(|known| known.problem.clone());
        let shared = issuers.shared_keys().into_iter().map(|shared| {
            let clients = Clients {
                cluster: shared.cluster.clone(),
                role: shared.role,
            };
            format!("{}: {shared}", clients.field(".issuer"))
        });
        self.problems = faults.chain(shared).collect();
        if let Some(sender) = &self.issuers {
            sender.send_replace(Arc::new(issuers));
        }
    }
}

impl Known {
    /// The issuer that was found; the one before if its keys cannot be used.
    fn new(clients: &Clients, found: Found, before: Option<(ClientTokens, Arc<KeySet>)>) -> Self {
        let (tokens, text) = &found;
        match keys(clients, tokens, text) {
            Ok(keys) => Self {
                in_force: Some((tokens.clone(), Arc::new(keys))),
                problem: None,
                found,
            },
            Err(problem) => {
                let stays = match before {
                    Some(_) => "; the issuer and keys before stay in force",
                    None => "",
                };
                Self {
                    problem: Some(format!("{problem}{stays}")),
                    in_force: before,
                    found,
                }
            }
        }
    }
}

fn issuer((clients, known): (&Clients, &Known)) -> Option<Issuer> {
    let (tokens, keys) = known.in_force.clone()?;
    let config = TokenConfig {
        issuer: tokens.issuer,
        audience: tokens.audience,
        cluster: clients.cluster.clone(),
        service_accounts: tokens.service_accounts,
        role: clients.role,
    };
    // Keys change with the issuers, so that nobody waits for a notice of an unknown one.
    let keys = watch::channel(keys).1;
    Some(Issuer::new(config, keys, KeyWanted::default()))
}

/// The text of the keys. Blocks.
fn read(keys: &TokenKeys) -> Result<Vec<u8>, String> {
    match keys {
        TokenKeys::Text(text) => Ok(text.clone().into_bytes()),
        TokenKeys::File(path) => {
            let file = portolan_tls::read(Path::new(path)).map_err(|error| error.to_string())?;
            Ok(file.content)
        }
    }
}

/// The keys of a text, or what is wrong with the field that has them.
fn keys(
    clients: &Clients,
    tokens: &ClientTokens,
    text: &Result<Vec<u8>, String>,
) -> Result<KeySet, String> {
    let field = clients.field(match &tokens.keys {
        TokenKeys::Text(_) => ".jwks",
        TokenKeys::File(_) => ".jwksFile",
    });
    let named = |error| format!("{field}: {error}");
    let text = text.as_ref().map_err(|error| named(error.clone()))?;
    KeySet::parse(text).map_err(|error| {
        named(match &tokens.keys {
            TokenKeys::Text(_) => error.to_string(),
            TokenKeys::File(path) => FileError::new(Path::new(path), error).to_string(),
        })
    })
}

fn wanted(objects: &Objects) -> BTreeMap<Clients, ClientTokens> {
    let clusters = objects.clusters.iter();
    let tokens = clusters.flat_map(|(name, cluster)| {
        let of_edges = match &cluster.access {
            Access::Edge(tokens) => tokens.as_ref(),
            _ => None,
        };
        let of_agents = cluster.agent_tokens.as_deref();
        let all = [(TokenRole::Edge, of_edges), (TokenRole::Node, of_agents)];
        all.into_iter().filter_map(|(role, tokens)| {
            let cluster = name.clone();
            Some((Clients { cluster, role }, tokens?.clone()))
        })
    });
    tokens.collect()
}

fn read_all(wanted: BTreeMap<Clients, ClientTokens>) -> BTreeMap<Clients, Found> {
    let read = |(clients, tokens): (Clients, ClientTokens)| {
        let text = read(&tokens.keys);
        (clients, (tokens, text))
    };
    wanted.into_iter().map(read).collect()
}

/// All that is wrong with the issuers of a policy. Blocks.
pub(in crate::clusters) fn problems(objects: &Objects) -> Vec<String> {
    let mut desk = TokenDesk::default();
    desk.take(read_all(wanted(objects)));
    desk.problems
}

/// The tokens of a policy that a controller without `--cluster-tokens` accepts from nobody, in words.
pub(super) fn unused_in(objects: &Objects) -> Vec<String> {
    let problem = |clients: &Clients| {
        let field = clients.field("");
        format!("{field}: not in use: this controller runs without --cluster-tokens")
    };
    wanted(objects).keys().map(problem).collect()
}

impl Supervisor {
    /// Reads the keys of all clusters whose clients have tokens.
    pub(super) async fn read_tokens(&mut self) {
        if self.tokens.issuers.is_none() {
            self.tokens.problems = unused_in(self.files.objects());
            return;
        }
        let wanted = wanted(self.files.objects());
        if wanted.is_empty() && self.tokens.known.is_empty() {
            return;
        }
        match tokio::task::spawn_blocking(|| read_all(wanted)).await {
            Ok(found) => self.tokens.take(found),
            // Never cancelled, so it panicked: a bug, not to be hidden.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
