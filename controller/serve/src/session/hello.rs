// SPDX-License-Identifier: Apache-2.0

//! The first message of a stream.

use std::sync::Arc;

use portolan_model::{NodeKey, SetHash};
use portolan_proto::{VERSION, v1};
use portolan_tablelog::{Have, Scope, TableHashes};
use tokio::time::Instant;
use tonic::Status;

use super::{ServeConfig, not_served};
use crate::RELAY;

/// The longest name of a Kubernetes object.
const MAX_NAME: usize = 253;

/// Maximum length of the agent's version that is kept, in bytes.
const MAX_AGENT_VERSION: usize = 64;

/// An accepted Hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The name that the peer claims: of its node, or of the relay.
    pub(super) name: Arc<str>,
    /// The requested part of the tables.
    pub(super) scope: Scope,
    /// The protocol version of the stream: the lower of both sides'.
    pub(super) version: u32,
    pub(super) agent_version: String,
    /// The cluster that the node belongs to; empty if the agent does not know.
    pub(super) cluster_id: String,
    pub(super) have: Have,
}

impl Hello {
    /// Key of the registry's entry. Relays have a prefix that no node's name can have.
    pub(super) fn entry(&self) -> NodeKey {
        match &self.scope {
            Scope::Node(node) => node.clone(),
            Scope::AllNodes(cluster) => NodeKey {
                cluster: Arc::clone(cluster),
                name: format!("{RELAY}{}", self.name).into(),
            },
        }
    }
}

/// Validates the first message of a stream.
///
/// # Errors
/// If it is no Hello, a field is invalid, or the cluster is not served here.
pub(super) fn accept(message: v1::AgentMessage, config: &ServeConfig) -> Result<Hello, Status> {
    let Some(v1::agent_message::Message::Hello(hello)) = message.message else {
        return Err(Status::invalid_argument("the first message is not Hello"));
    };
    if hello.version == 0 {
        return Err(Status::invalid_argument("version: 0"));
    }
    let node = hello.node.as_str();
    if node.is_empty() || node.len() > MAX_NAME || node.contains('/') {
        return Err(Status::invalid_argument("node: not a name"));
    }
    let Ok(want) = v1::hello::Want::try_from(hello.want) else {
        return Err(Status::invalid_argument("want: unknown"));
    };
    if hello.cluster_id.len() > MAX_NAME {
        return Err(Status::invalid_argument("cluster_id: too long"));
    }
    let Some(cluster) = config.clusters.get(&hello.cluster) else {
        return Err(not_served());
    };
    let mut agent_version = hello.agent_version;
    agent_version.truncate(agent_version.floor_char_boundary(MAX_AGENT_VERSION));
    let records = SetHash::from_bytes(&hello.records_hash);
    let own = SetHash::from_bytes(&hello.own_hash);
    let name: Arc<str> = hello.node.into();
    let scope = match want {
        v1::hello::Want::AllNodes => Scope::AllNodes(cluster),
        _ => Scope::Node(NodeKey {
            cluster,
            name: Arc::clone(&name),
        }),
    };
    Ok(Hello {
        name,
        scope,
        version: hello.version.min(VERSION),
        agent_version,
        cluster_id: hello.cluster_id,
        have: Have {
            epoch: hello.epoch,
            revision: hello.revision,
            hashes: records
                .zip(own)
                .map(|(records, own)| TableHashes { records, own }),
            source_versions: hello.source_versions,
            since: Some(Instant::now()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn hello() -> v1::Hello {
        v1::Hello {
            version: 1,
            node: "a".to_owned(),
            epoch: 3,
            revision: 4,
            records_hash: vec![1; 16],
            own_hash: vec![2; 16],
            ..v1::Hello::default()
        }
    }

    fn accepted(hello: v1::Hello) -> Result<Hello, Code> {
        let message = v1::AgentMessage {
            message: Some(v1::agent_message::Message::Hello(hello)),
        };
        accept(message, &ServeConfig::default()).map_err(|status| status.code())
    }

    #[test]
    fn the_lower_version_is_spoken() {
        assert_eq!(accepted(hello()).unwrap().version, 1);
        let newer = v1::Hello {
            version: 9,
            ..hello()
        };
        assert_eq!(accepted(newer).unwrap().version, VERSION);
    }

    #[test]
    fn a_table_needs_both_hashes() {
        assert!(accepted(hello()).unwrap().have.hashes.is_some());
        let half = v1::Hello {
            own_hash: vec![],
            ..hello()
        };
        assert_eq!(accepted(half).unwrap().have.hashes, None);
    }

    #[test]
    fn a_relay_is_no_node_of_its_name() {
        let agent = accepted(hello()).unwrap();
        assert_eq!(agent.scope, Scope::Node(agent.entry()));
        assert_eq!(&*agent.entry().name, "a");
        let relay = v1::Hello {
            want: v1::hello::Want::AllNodes.into(),
            ..hello()
        };
        let relay = accepted(relay).unwrap();
        assert_eq!(relay.scope, Scope::AllNodes("".into()));
        assert_eq!(&*relay.name, "a");
        assert_eq!(&*relay.entry().name, "relay/a");
    }

    #[test]
    fn a_bad_hello_is_refused() {
        type Change = fn(&mut v1::Hello);
        let cases: [(Code, Change); 6] = [
            (Code::InvalidArgument, |h| h.version = 0),
            (Code::InvalidArgument, |h| h.node.clear()),
            (Code::InvalidArgument, |h| h.node = "n".repeat(254)),
            (Code::InvalidArgument, |h| h.node = "relay/a".to_owned()),
            (Code::InvalidArgument, |h| h.want = 7),
            (Code::NotFound, |h| h.cluster = "other".to_owned()),
        ];
        for (code, change) in cases {
            let mut hello = hello();
            change(&mut hello);
            assert_eq!(accepted(hello), Err(code));
        }
        let other = accept(v1::AgentMessage::default(), &ServeConfig::default());
        assert_eq!(other.unwrap_err().code(), Code::InvalidArgument);
    }
}
