// SPDX-License-Identifier: Apache-2.0

//! Policies of exports and imports.

use super::{Meta, spec};
use crate::Fault;
use crate::faults::Faults;
use crate::selector::{Closeness, Selector, Services};
use crate::spec::{Action, ExportPolicySpec, ImportPolicySpec};

/// Rule for exports: the clusters and Services that may export, and the clusters that may import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPolicy {
    /// Name, age and labels.
    pub meta: Meta,
    /// Its priority; the highest applies.
    pub priority: i32,
    /// The exporting clusters.
    pub clusters: Selector,
    /// The Services.
    pub services: Services,
    /// Its action.
    pub action: Action,
    /// Whether the Services are exported without a ServiceExport.
    pub automatic: bool,
    /// The clusters that may import them.
    pub to: Selector,
}

impl ExportPolicy {
    /// The object that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(meta: Meta, given: &ExportPolicySpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let policy = Self {
            meta,
            priority: given.priority,
            clusters: Selector::new(&given.clusters, &spec("clusters"), &mut faults),
            services: Services::new(&given.services, &spec("services"), &mut faults),
            action: given.action,
            automatic: given.automatic,
            to: Selector::new(&given.to, &spec("to"), &mut faults),
        };
        faults.into_result(policy)
    }
}

/// Rule for imports: the clusters that import, and the Services that they import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPolicy {
    /// Name, age and labels.
    pub meta: Meta,
    /// Its priority; the highest applies.
    pub priority: i32,
    /// The importing clusters.
    pub clusters: Selector,
    /// The exporting clusters.
    pub from: Selector,
    /// The Services, by the names that they are exported under.
    pub services: Services,
    /// Its action.
    pub action: Action,
    /// The namespace that they have in the importing clusters, if another.
    pub namespace_as: Option<String>,
    /// The nodes that get the virtual address.
    pub nodes: Selector,
}

impl ImportPolicy {
    /// The object that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(meta: Meta, given: &ImportPolicySpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let policy = Self {
            meta,
            priority: given.priority,
            clusters: Selector::new(&given.clusters, &spec("clusters"), &mut faults),
            from: Selector::new(&given.from, &spec("from"), &mut faults),
            services: Services::new(&given.services, &spec("services"), &mut faults),
            action: given.action,
            namespace_as: given.namespace_as.clone(),
            nodes: Selector::new(&given.nodes, &spec("nodes"), &mut faults),
        };
        faults.into_result(policy)
    }

    /// Returns `true` if only some nodes get the virtual address.
    #[must_use]
    pub fn narrows(&self) -> bool {
        self.nodes.closeness() != Closeness::All
    }
}
