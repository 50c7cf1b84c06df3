//! Nodes: only their zone counts.

use std::sync::Arc;

use portolan_catalog::{self as catalog, Kind, Object};
use portolan_model::NodeInfo;

use super::{Converted, Manifest, Node};

const ZONE: &str = "topology.kubernetes.io/zone";

impl Manifest for Node {
    const KIND: Kind = Kind::Node;

    fn convert(self, cluster: &Arc<str>) -> Converted {
        match self.metadata.reference(Self::KIND, cluster) {
            Err(problem) => Converted::refused(None, problem),
            Ok(node) => Converted::Put {
                object: Object::Node(catalog::Node {
                    key: node.key,
                    info: NodeInfo {
                        zone: self
                            .metadata
                            .label(ZONE)
                            .filter(|zone| !zone.is_empty())
                            .map(Arc::from),
                        ..NodeInfo::default()
                    },
                }),
                problems: Vec::new(),
            },
        }
    }
}
