// SPDX-License-Identifier: Apache-2.0

//! `portolanctl wait`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::{Client, encoded};
use crate::reply::Reply;

/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(250);
/// Number of nodes that a timeout names.
const NAMED: usize = 10;

/// Waits until a target is programmed on all nodes. After an error the controllers of `again` are asked: pods may have been
/// replaced.
pub(crate) async fn run(
    mut clients: Vec<Client>,
    again: impl AsyncFn() -> anyhow::Result<Vec<Client>>,
    target: &Target,
    skip_disconnected: bool,
    limit: Duration,
) -> anyhow::Result<Reply> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        target.check(clients.len())?;
        let asked = timeout_at(deadline, ask(&clients, &target.path, skip_disconnected)).await;
        let has_failed = matches!(asked, Ok(Err(_)));
        match asked {
            Ok(Ok(progress)) if progress.is_done() => {
                let count = progress.nodes.len();
                let text = format!("{}: programmed on {}\n", target.text, nodes(count));
                return Ok(Reply::new(progress.value(&target.text), text));
            }
            Ok(answer) => last = Some(answer),
            Err(_) => {}
        }
        if has_failed {
            match timeout_at(deadline, again()).await {
                Ok(Ok(now)) => clients = now,
                Ok(Err(error)) => last = Some(Err(error)),
                Err(_) => {}
            }
        }
        if Instant::now() + PAUSE >= deadline {
            return match last {
                Some(Ok(progress)) => Ok(progress.timed_out(&target.text, limit)),
                Some(Err(error)) => Err(error),
                None => bail!("{}: no answer in {limit:?}", target.text),
            };
        }
        sleep(PAUSE).await;
    }
}

/// Target of a wait.
#[derive(Debug)]
pub(crate) struct Target {
    /// For people.
    text: String,
    /// The question.
    path: String,
}

impl Target {
    /// A Service or a revision; of a Service perhaps without the address of an endpoint.
    pub(crate) fn new(target: &str, without: Option<&str>) -> anyhow::Result<Self> {
        let path = path(target)?;
        let Some(address) = without else {
            let text = target.to_owned();
            return Ok(Self { text, path });
        };
        ensure!(
            target.contains('/'),
            "--without needs NAMESPACE/NAME of a Service, and {target:?} is a revision"
        );
        Ok(Self {
            text: format!("{target} without {address}"),
            path: format!("{path}&without={}", encoded(address)),
        })
    }
}

impl Target {
    /// Checks that the target is the same at so many controllers.
    fn check(&self, controllers: usize) -> anyhow::Result<()> {
        let is_revision = !self.text.contains('/');
        ensure!(
            controllers == 1 || !is_revision,
            "revision {}: each of {controllers} controllers counts its own; name one with --controller",
            self.text
        );
        Ok(())
    }
}

/// The question of a target: `NAMESPACE/NAME`, or the number of a revision.
fn path(target: &str) -> anyhow::Result<String> {
    if target.parse::<u64>().is_ok() {
        return Ok(format!("/debug/programmed?revision={target}"));
    }
    match target.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            let service = encoded(target);
            Ok(format!("/debug/programmed?service={service}"))
        }
        _ => bail!("{target:?}: expected NAMESPACE/NAME of a Service, or the number of a revision"),
    }
}

/// Nodes by name, and whether each has programmed the target.
#[derive(Debug, Default, PartialEq)]
struct Progress {
    nodes: BTreeMap<String, bool>,
}

async fn ask(clients: &[Client], path: &str, skip_disconnected: bool) -> anyhow::Result<Progress> {
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.get(path).await?);
    }
    Ok(Progress::merge(&answers, skip_disconnected))
}

impl Progress {
    /// A node counts as the controller says to which it is connected; if it is connected to none, it
    /// has programmed the target once one of them says so.
    fn merge(answers: &[Value], skip_disconnected: bool) -> Self {
        let mut found: BTreeMap<String, (bool, bool)> = BTreeMap::new();
        let nodes = answers.iter().flat_map(|answer| answer["nodes"].as_array());
        for node in nodes.flatten() {
            let name = node["node"].as_str().unwrap_or_default().to_owned();
            let (connected, done) = (node["connected"] == true, node["programmed"] == true);
            let merged = match found.get(&name) {
                Some((true, _)) if !connected => continue,
                Some((false, was_done)) if !connected => (false, *was_done || done),
                _ => (connected, done),
            };
            found.insert(name, merged);
        }
        let counted = found.into_iter();
        let counted = counted.filter(|(_, (connected, _))| *connected || !skip_disconnected);
        Self {
            nodes: counted.map(|(name, (_, done))| (name, done)).collect(),
        }
    }

    /// Controllers without any agent have just started, and know nothing yet.
    fn is_done(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.values().all(|done| *done)
    }

    fn pending(&self) -> Vec<&str> {
        let pending = self.nodes.iter().filter(|(_, done)| !**done);
        pending.map(|(name, _)| name.as_str()).collect()
    }

    fn value(&self, target: &str) -> Value {
        json!({
            "target": target,
            "programmed": self.is_done(),
            "nodes": self.nodes.len(),
            "pending": self.pending(),
        })
    }

    fn timed_out(&self, target: &str, limit: Duration) -> Reply {
        let (pending, count) = (self.pending(), self.nodes.len());
        let text = if pending.is_empty() {
            format!("{target}: no agent has connected in {limit:?}\n")
        } else {
            let mut named = pending[..pending.len().min(NAMED)].join(", ");
            if pending.len() > NAMED {
                named.push_str(", ...");
            }
            let (number, all) = (pending.len(), nodes(count));
            format!("{target}: not programmed on {number} of {all} after {limit:?}: {named}\n")
        };
        Reply::new(self.value(target), text).with_code(1)
    }
}

fn nodes(count: usize) -> String {
    match count {
        1 => "1 node".to_owned(),
        _ => format!("{count} nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(nodes: &[(&str, bool, bool)]) -> Value {
        let nodes = nodes.iter().map(|(node, connected, programmed)| {
            json!({ "node": node, "connected": connected, "programmed": programmed })
        });
        json!({ "nodes": nodes.collect::<Vec<_>>() })
    }

    #[test]
    fn a_target_is_a_service_or_a_revision() {
        assert_eq!(path("7").unwrap(), "/debug/programmed?revision=7");
        let service = "/debug/programmed?service=default%2Fweb";
        assert_eq!(path("default/web").unwrap(), service);
        for bad in ["", "web", "/web", "default/", "a/b/c", "-1"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_service_can_be_waited_for_without_an_endpoint() {
        let target = Target::new("default/web", Some("[fd00::1]:80")).unwrap();
        assert_eq!(target.text, "default/web without [fd00::1]:80");
        let path = "/debug/programmed?service=default%2Fweb&without=%5Bfd00%3A%3A1%5D%3A80";
        assert_eq!(target.path, path);
        assert_eq!(Target::new("7", None).unwrap().text, "7");
        let service = Target::new("default/web", None).unwrap();
        assert!(service.check(2).is_ok());
        let revision = Target::new("7", None).unwrap();
        assert!(revision.check(1).is_ok());
        let error = revision.check(2).unwrap_err().to_string();
        assert!(error.contains("--controller"), "{error}");
        let error = Target::new("7", Some("10.0.0.1")).unwrap_err().to_string();
        assert!(error.starts_with("--without "), "{error}");
    }

    #[test]
    fn a_node_counts_as_its_own_controller_says() {
        let one = answer(&[("a", true, true), ("b", false, true), ("c", false, false)]);
        let two = answer(&[("a", false, false), ("b", true, false), ("c", false, true)]);
        for answers in [[one.clone(), two.clone()], [two, one]] {
            let merged = Progress::merge(&answers, false);
            assert_eq!(merged.pending(), ["b"]);
            assert!(!merged.is_done());
        }
    }

    #[test]
    fn disconnected_nodes_can_be_skipped() {
        let answers = [answer(&[("a", true, true), ("b", false, false)])];
        assert_eq!(Progress::merge(&answers, false).pending(), ["b"]);
        assert!(Progress::merge(&answers, true).is_done());
    }

    #[test]
    fn no_agent_at_all_is_no_success() {
        let none = Progress::merge(&[answer(&[])], false);
        assert!(!none.is_done());
        let reply = none.timed_out("7", Duration::from_secs(1));
        assert_eq!(
            (reply.code, &*reply.text),
            (1, "7: no agent has connected in 1s\n")
        );
    }

    #[test]
    fn a_timeout_names_the_first_nodes() {
        let names: Vec<_> = (10..30).map(|n| format!("n{n}")).collect();
        let nodes: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), true, false))
            .collect();
        let progress = Progress::merge(&[answer(&nodes)], false);
        let reply = progress.timed_out("a/b", Duration::from_secs(30));
        assert!(
            reply.text.contains("20 of 20 nodes after 30s: n10, "),
            "{}",
            reply.text
        );
        assert!(reply.text.ends_with("n19, ...\n"));
        assert_eq!(reply.value["pending"].as_array().map(Vec::len), Some(20));
    }
}
