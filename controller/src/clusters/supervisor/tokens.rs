// SPDX-License-Identifier: Apache-2.0

//! The issuers of edge controllers' tokens: those of the Clusters with `spec.access.edge.tokens`.
//!
//! Keys are read as often as the policy's files. Of each cluster the last issuer with usable keys is in force.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portolan_auth::{Issuer, Issuers, KeySet, KeyWanted, TokenConfig, TokenRole};
use portolan_policy::{Access, EdgeTokens, Objects, TokenKeys};
use portolan_tls::FileError;
use tokio::sync::watch;

use super::Supervisor;

/// The tokens of a Cluster, and the text of their keys, or the reason why there is none.
type Found = (EdgeTokens, Result<Vec<u8>, String>);

/// The issuers that run, shared with the verifier of tokens.
#[derive(Debug, Default)]
pub(super) struct TokenDesk {
    /// `None` without `--edge-tokens`.
    issuers: Option<watch::Sender<Arc<Issuers>>>,
    known: BTreeMap<String, Known>,
    problems: Vec<String>,
}

/// The issuer of one cluster.
#[derive(Debug)]
struct Known {
    found: Found,
    in_force: Option<(EdgeTokens, Arc<KeySet>)>,
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
    fn take(&mut self, found: BTreeMap<String, Found>) {
        let before = self.known.len();
        self.known.retain(|cluster, _| found.contains_key(cluster));
        let mut is_news = self.known.len() != before;
        for (cluster, found) in found {
            let known = self.known.get(&cluster);
            if known.is_some_and(|known| known.found == found) {
                continue;
            }
            is_news = true;
            let before = self.known.remove(&cluster);
            let before = before.and_then(|known| known.in_force);
            self.known.insert(cluster, Known::new(found, before));
        }
        if is_news {
            self.tell();
        }
    }

    /// Tells the verifier, and collects what is wrong.
    fn tell(&mut self) {
        let issuers: Issuers = self.known.iter().filter_map(issuer).collect();
        let faults = self.known.iter().filter_map(|(cluster, known)| {
            let problem = known.problem.as_ref()?;
            Some(format!("Cluster {cluster}: {problem}"))
        });
        let shared = issuers.shared_keys().into_iter().map(|shared| {
            let cluster = &shared.cluster;
            format!("Cluster {cluster}: spec.access.edge.tokens.issuer: {shared}")
        });
        self.problems = faults.chain(shared).collect();
        if let Some(sender) = &self.issuers {
            sender.send_replace(Arc::new(issuers));
        }
    }
}

impl Known {
    /// The issuer that was found; the one before if its keys cannot be used.
    fn new(found: Found, before: Option<(EdgeTokens, Arc<KeySet>)>) -> Self {
        let (tokens, text) = &found;
        match keys(tokens, text) {
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

fn issuer((cluster, known): (&String, &Known)) -> Option<Issuer> {
    let (tokens, keys) = known.in_force.clone()?;
    let config = TokenConfig {
        issuer: tokens.issuer,
        audience: tokens.audience,
        cluster: cluster.clone(),
        service_accounts: tokens.service_accounts,
        role: TokenRole::Edge,
    };
    // Keys change with the issuers, so that nobody waits for a notice of an unknown one.
    let keys = watch::channel(keys).1;
    Some(Issuer::new(config, keys, KeyWanted::default()))
}

/// The text of the keys. Blocks.
fn read(tokens: &EdgeTokens) -> Result<Vec<u8>, String> {
    match &tokens.keys {
        TokenKeys::Text(text) => Ok(text.clone().into_bytes()),
        TokenKeys::File(path) => {
            let file = portolan_tls::read(Path::new(path)).map_err(|error| error.to_string())?;
            Ok(file.content)
        }
    }
}

/// The keys of a text, or what is wrong with the field that has them.
fn keys(tokens: &EdgeTokens, text: &Result<Vec<u8>, String>) -> Result<KeySet, String> {
    let named = |error| match &tokens.keys {
        TokenKeys::Text(_) => format!("spec.access.edge.tokens.jwks: {error}"),
        TokenKeys::File(_) => format!("spec.access.edge.tokens.jwksFile: {error}"),
    };
    let text = text.as_ref().map_err(|error| named(error.clone()))?;
    KeySet::parse(text).map_err(|error| {
        named(match &tokens.keys {
            TokenKeys::Text(_) => error.to_string(),
            TokenKeys::File(path) => FileError::new(Path::new(path), error).to_string(),
        })
    })
}

fn wanted(objects: &Objects) -> BTreeMap<String, EdgeTokens> {
    let clusters = objects.clusters.iter();
    let tokens = clusters.filter_map(|(name, cluster)| match &cluster.access {
        Access::Edge(tokens) => Some((name.clone(), tokens.clone()?)),
        _ => None,
    });
    tokens.collect()
}

fn read_all(wanted: BTreeMap<String, EdgeTokens>) -> BTreeMap<String, Found> {
    let read = |(cluster, tokens)| {
        let text = read(&tokens);
        (cluster, (tokens, text))
    };
    wanted.into_iter().map(read).collect()
}

/// All that is wrong with the issuers of a policy. Blocks.
pub(in crate::clusters) fn problems(objects: &Objects) -> Vec<String> {
    let mut desk = TokenDesk::default();
    desk.take(read_all(wanted(objects)));
    desk.problems
}

/// The tokens of a policy that a controller without `--edge-tokens` accepts from nobody, in words.
pub(super) fn unused_in(objects: &Objects) -> Vec<String> {
    let problem = |cluster| {
        format!(
            "Cluster {cluster}: spec.access.edge.tokens: not in use: this controller runs without --edge-tokens"
        )
    };
    wanted(objects).keys().map(problem).collect()
}

impl Supervisor {
    /// Reads the keys of all clusters whose edge controllers have tokens.
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
