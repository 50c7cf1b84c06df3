// SPDX-License-Identifier: Apache-2.0

//! Answers of several controllers, of which some may not answer.

use anyhow::{bail, ensure};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, Refused};
use crate::reply::Reply;

/// Exit code if a controller does not answer, as for one that is asked alone.
pub(crate) const UNANSWERED: u8 = 2;

/// The answers to one question; at least one.
#[derive(Debug)]
pub(crate) struct Answers {
    /// The answers with their controllers, in the order of the controllers.
    found: Vec<(usize, Value)>,
    /// A sentence for each controller without an answer.
    errors: Vec<String>,
}

impl Answers {
    /// Asks all controllers at once: one that does not answer delays nobody else's answer.
    ///
    /// # Errors
    /// All of them, if no controller answers.
    pub(crate) async fn ask(clients: &[Client], path: &str) -> anyhow::Result<Self> {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        let answers = join_all(clients.iter().map(|client| client.get(path))).await;
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => found.push((index, answer)),
                Err(error) => errors.push(error),
            }
        }
        if found.is_empty() && errors.len() == 1 {
            return Err(errors.remove(0));
        }
        let errors: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        if found.is_empty() {
            ensure!(!errors.is_empty(), "no controller");
            bail!("{}", errors.join("; "));
        }
        Ok(Self { found, errors })
    }

    /// The answers alone.
    pub(crate) fn values(&self) -> Vec<Value> {
        self.found
            .iter()
            .map(|(_, answer)| answer.clone())
            .collect()
    }

    /// The index of the controller to ask about a node, and whether its agent is connected there: else the one with its
    /// last session, or the first that answers.
    pub(crate) fn holder(&self, node: &str) -> (usize, bool) {
        let entries = self.found.iter().flat_map(|(index, answer)| {
            let nodes = answer["nodes"].as_array().into_iter().flatten();
            nodes.map(move |entry| (*index, entry))
        });
        let of_node = entries.filter(|(_, entry)| entry["node"] == node);
        let latest = of_node.max_by_key(|(_, entry)| {
            let is_connected = entry["connected"] == true;
            (is_connected, entry["connected_at_ms"].as_u64())
        });
        match latest {
            Some((index, entry)) => (index, entry["connected"] == true),
            None => (self.found.first().map_or(0, |(index, _)| *index), false),
        }
    }

    /// One answer: the items of a list from all controllers, each with the name of its own if there are several.
    pub(crate) fn joined(&self, list: &str, clients: &[Client]) -> Value {
        let mut all = Vec::new();
        for (index, answer) in &self.found {
            for item in answer[list].as_array().into_iter().flatten() {
                let mut item = item.clone();
                if clients.len() > 1 {
                    item["controller"] = clients[*index].name().into();
                }
                all.push(item);
            }
        }
        json!({ list: all })
    }

    /// An error about the answers, with the controllers that gave none: they may know better.
    pub(crate) fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.errors[..] {
            [] => error,
            errors => anyhow::anyhow!("{error:#}; {}", errors.join("; ")),
        }
    }

    /// A reply that names the controllers without an answer, and is whole without them.
    pub(crate) fn annotate(self, reply: Reply) -> Reply {
        reply.with_notes(self.errors)
    }

    /// A reply that names the controllers without an answer, and has a code for them unless it has another one.
    pub(crate) fn complete(self, reply: Reply) -> Reply {
        let code = match (self.errors.is_empty(), reply.code) {
            (false, 0) => UNANSWERED,
            (_, code) => code,
        };
        reply.with_notes(self.errors).with_code(code)
    }
}

/// The answer of the first controller that has one, and a sentence for each controller before it. A refusal is an
/// answer: it would be the same at another controller.
///
/// # Errors
/// The refusal, or the error of the last controller if none answers.
pub(crate) async fn first<'c, T, F>(
    clients: &'c [Client],
    ask: impl Fn(&'c Client) -> F,
) -> anyhow::Result<(T, Vec<String>)>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let mut notes = Vec::new();
    for client in clients {
        match Box::pin(ask(client)).await {
            Ok(answer) => return Ok((answer, notes)),
            Err(error) if !error.is::<Refused>() && notes.len() + 1 < clients.len() => {
                notes.push(format!("{error:#}"));
            }
            Err(error) => return Err(error),
        }
    }
    bail!("no controller")
}

/// Adds numbers of one answer to those of another one.
pub(crate) fn add(to: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        let numbers = [&*to, from].map(|value| value[field].as_u64().unwrap_or_default());
        to[field] = numbers.iter().sum::<u64>().into();
    }
}
