// SPDX-License-Identifier: Apache-2.0

//! Decisions of the replica that leads, as text for the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_federate::state::Status;
use portolan_policy::Drain;
use serde::{Deserialize, Serialize};

use super::{SavedCluster, SavedDrain};

/// Decisions of the replica that leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The order of texts: a later one has a greater number. 0 in those of an earlier version, which have none.
    pub(crate) order: u64,
    /// The statuses of clusters, by id.
    pub(crate) statuses: BTreeMap<Arc<str>, Status>,
    /// Drains of an operator, by the name of the cluster.
    pub(crate) drains: BTreeMap<Arc<str>, Drain>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Spelled {
    #[serde(default)]
    order: u64,
    clusters: Vec<SavedCluster>,
    drains: Vec<SavedDrain>,
}

impl Decided {
    /// The text of the decisions.
    ///
    /// # Errors
    /// If the decisions cannot be written as JSON, which is not expected of them.
    pub(crate) fn spell(&self) -> serde_json::Result<String> {
        let statuses = self.statuses.iter();
        let drains = self.drains.iter();
        serde_json::to_string(&Spelled {
            order: self.order,
            clusters: statuses
                .map(|(id, status)| SavedCluster::new(id, status))
                .collect(),
            drains: drains
                .map(|(cluster, drain)| SavedDrain::new(cluster, drain))
                .collect(),
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// An error if the text is not that of decisions.
    pub(crate) fn read(text: &str) -> serde_json::Result<Self> {
        let Spelled {
            order,
            clusters,
            drains,
        } = serde_json::from_str(text)?;
        let clusters = clusters.into_iter();
        let drains = drains.into_iter();
        Ok(Self {
            order,
            statuses: clusters.map(SavedCluster::into_status).collect(),
            drains: drains.map(SavedDrain::into_drain).collect(),
        })
    }

    /// The same without its order, and without times that pass all the while.
    pub(crate) fn without_times(&self) -> Self {
        let mut bare = self.clone();
        bare.order = 0;
        for status in bare.statuses.values_mut() {
            status.last_contact = None;
            status.stale_for = Duration::ZERO;
        }
        bare
    }
}

#[cfg(test)]
mod tests {
    use portolan_federate::Moment;
    use portolan_federate::state::Phase;

    use super::*;

    #[test]
    fn decisions_are_read_as_they_were_spelled() {
        let status = Status {
            phase: Phase::Draining,
            step: 3,
            reach_step: 20,
            drain_step: 3,
            drained: true,
            last_contact: Some(Moment(Duration::from_secs(7))),
            stale_for: Duration::from_millis(1500),
            recent_losses: vec![Moment(Duration::from_secs(3))],
            losses: 9,
        };
        let drain = Drain {
            to: 0,
            over: Duration::from_secs(20),
        };
        let decided = Decided {
            order: 5,
            statuses: [("eu-1".into(), status)].into(),
            drains: [("eu".into(), drain)].into(),
        };
        let text = decided.spell().unwrap();
        assert_eq!(Decided::read(&text).unwrap(), decided);
        // A later version may say more.
        let later = text.replacen('{', r#"{"more": 1, "#, 1);
        assert_eq!(Decided::read(&later).unwrap(), decided);
        // An earlier one says less.
        let earlier = text.replacen(r#""order":5,"#, "", 1);
        let expected = Decided {
            order: 0,
            ..decided
        };
        assert_eq!(Decided::read(&earlier).unwrap(), expected);
        for text in ["", "{}", "[]", r#"{"clusters": [{}], "drains": []}"#] {
            assert!(Decided::read(text).is_err(), "{text}");
        }
    }
}
