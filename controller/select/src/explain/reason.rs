// SPDX-License-Identifier: Apache-2.0

//! Verdicts in words.

use std::sync::Arc;

use portolan_catalog::EndpointRef;

use crate::rule::{Topology, Verdict};

/// Reason why a list has an endpoint, or has not.
pub(super) fn in_words(verdict: Verdict, endpoint: &EndpointRef<'_>) -> String {
    let text = match verdict {
        Verdict::Ready(Topology::All) => "ready",
        Verdict::Ready(Topology::SameNode) => "ready, and hinted to this node",
        Verdict::Ready(Topology::SameZone) => "ready, and hinted to this node's zone",
        Verdict::StillServing => "terminating, but it still serves, and none is ready",
        Verdict::Terminating => "terminating, and others are ready",
        Verdict::NotReady if endpoint.terminating => "terminating, and serves no longer",
        Verdict::NotReady => "not ready",
        Verdict::HintedElsewhere(Topology::SameNode) => {
            return format!("hinted to nodes: {}", names(endpoint.node_hints));
        }
        Verdict::HintedElsewhere(_) => {
            return format!("hinted to zones: {}", names(endpoint.zone_hints));
        }
        Verdict::Elsewhere => {
            return match endpoint.node {
                Some(node) => format!("on node {node}, and the traffic policy is Local"),
                None => "on no known node, and the traffic policy is Local".to_owned(),
            };
        }
    };
    text.to_owned()
}

fn names(hints: Option<&[Arc<str>]>) -> String {
    match hints {
        Some([]) | None => "none".to_owned(),
        Some(hints) => hints.join(", "),
    }
}
