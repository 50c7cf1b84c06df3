// SPDX-License-Identifier: Apache-2.0

//! Conditions of ServiceExports and ServiceImports.

use std::sync::Arc;

use portolan_catalog::{AFFINITY_PARTIAL, Condition};
use portolan_federate::imports::{ExportStatus, Ready, Valid};
use portolan_federate::merge::condition;

/// A condition that an object should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedCondition {
    /// `type`.
    pub kind: &'static str,
    /// `status`: true or false.
    pub status: bool,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
}

impl WantedCondition {
    pub(crate) fn new(kind: &'static str, status: bool, reason: &str, message: &str) -> Self {
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    pub(crate) fn status(&self) -> &'static str {
        if self.status { "True" } else { "False" }
    }

    /// Returns `true` if an object has the condition, for this generation of it.
    fn is_there(&self, conditions: &[Condition], generation: i64) -> bool {
        let found = self.of_kind(conditions);
        found.is_some_and(|found| {
            *found.status == *self.status()
                && *found.reason == *self.reason
                && *found.message == *self.message
                && found.generation == generation
        })
    }

    fn of_kind<'c>(&self, conditions: &'c [Condition]) -> Option<&'c Condition> {
        conditions.iter().find(|found| *found.kind == *self.kind)
    }

    /// Since when the condition has this status, if it has it already.
    pub(crate) fn since(&self, conditions: &[Condition]) -> Option<Arc<str>> {
        let found = self.of_kind(conditions)?;
        let is_same = *found.status == *self.status() && !found.since.is_empty();
        is_same.then(|| Arc::clone(&found.since))
    }
}

/// The clusters that the condition names.
const NAMED: usize = 8;

/// The condition of an import with affinity whose connections to these clusters go by gateways; none without any.
pub(crate) fn affinity_partial(clusters: &[Arc<str>]) -> Option<WantedCondition> {
    let (first, more) = clusters.split_at(clusters.len().min(NAMED));
    let mut names = first.join(", ");
    if !more.is_empty() {
        names += &format!(" and {} more", more.len());
    }
    let message = format!(
        "Connections of a client are held to a gateway of {names}, and spread over the endpoints behind it"
    );
    let condition = WantedCondition::new(AFFINITY_PARTIAL, true, "ReachedByGateways", &message);
    (!clusters.is_empty()).then_some(condition)
}

/// The conditions of an import that has these. The one about affinity becomes false where it was true and is not wanted
/// any more; imports that never had it go without.
pub(crate) fn of_import(wanted: &[WantedCondition], found: &[Condition]) -> Vec<WantedCondition> {
    let is_it = |kind: &str| kind == AFFINITY_PARTIAL;
    let is_left = found.iter().any(|one| is_it(&one.kind));
    let is_left = is_left && !wanted.iter().any(|one| is_it(one.kind));
    let left = is_left.then(|| WantedCondition::new(AFFINITY_PARTIAL, false, "NotPartial", ""));
    wanted.iter().cloned().chain(left).collect()
}

/// Returns `true` if an object has all conditions, for this generation of it.
pub(crate) fn are_there(wanted: &[WantedCondition], found: &[Condition], generation: i64) -> bool {
    wanted.iter().all(|one| one.is_there(found, generation))
}

/// Type of the condition of exports that differ.
const CONFLICT: &str = "Conflict";

/// The conditions of an export as they are wanted, but for what was said about conflicts, if anything was.
pub(crate) fn with_conflict_of(
    wanted: &[WantedCondition],
    found: &[Condition],
) -> Vec<WantedCondition> {
    let conditions = wanted.iter().map(|one| {
        let said = one.of_kind(found).filter(|_| one.kind == CONFLICT);
        said.map_or_else(
            || one.clone(),
            |said| {
                let status = *said.status == *"True";
                WantedCondition::new(CONFLICT, status, &said.reason, &said.message)
            },
        )
    });
    conditions.collect()
}

/// The conditions of a ServiceExport. `outside` says which of its endpoints no import uses because they lie
/// outside the networks of their cluster.
pub(crate) fn of_export(status: &ExportStatus, outside: Option<&str>) -> Vec<WantedCondition> {
    let valid = match status.valid {
        Valid::Valid => "",
        Valid::NoService => "There is no Service of this name",
        Valid::InvalidServiceType => "A Service of this type cannot be exported",
    };
    let is_valid = status.valid == Valid::Valid;
    let beyond;
    let (ready, reason, message) = match (status.ready, outside) {
        (Ready::Exported, Some(outside)) => (false, "AddressOutsideNetwork", outside),
        (Ready::Exported, None) => (true, Ready::Exported.as_str(), ""),
        (Ready::Failed, _) => (false, Ready::Failed.as_str(), valid),
        (Ready::DeniedByPolicy, _) => (
            false,
            Ready::DeniedByPolicy.as_str(),
            "A policy of the set of clusters denies the export",
        ),
        (Ready::QuotaExceeded(quota), _) => {
            beyond = format!("Quota of the Cluster: {quota}");
            (false, status.ready.as_str(), beyond.as_str())
        }
    };
    let (conflict, differences) = condition(&status.conflicts);
    let has_conflict = !status.conflicts.is_empty();
    vec![
        WantedCondition::new("Valid", is_valid, status.valid.as_str(), valid),
        WantedCondition::new("Ready", ready, reason, message),
        WantedCondition::new(CONFLICT, has_conflict, &conflict, &differences),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portolan_federate::imports::Quota;
    use portolan_federate::merge::{Conflict, ConflictReason};

    use super::*;

    fn told(valid: Valid, ready: Ready, outside: Option<&str>, conflicts: &[Conflict]) -> String {
        let status = ExportStatus {
            valid,
            ready,
            conflicts: conflicts.to_vec(),
            importers: Arc::default(),
        };
        let all = of_export(&status, outside);
        let all = all
            .iter()
            .map(|one| format!("{} {}", one.status(), one.reason));
        all.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_state_of_an_export_has_its_conditions() {
        let of = |valid, ready, outside| told(valid, ready, outside, &[]);
        let (good, exported) = (Valid::Valid, Ready::Exported);
        let none = "False NoConflicts";
        let ready = format!("True Valid, True Exported, {none}");
        assert_eq!(of(good, exported, None), ready);
        for (state, outside, reason) in [
            (exported, Some("10.9.0.1"), "AddressOutsideNetwork"),
            (Ready::DeniedByPolicy, None, "DeniedByPolicy"),
            (
                Ready::QuotaExceeded(Quota::Endpoints(3)),
                None,
                "QuotaExceeded",
            ),
        ] {
            let expected = format!("True Valid, False {reason}, {none}");
            assert_eq!(of(good, state, outside), expected);
        }
        for (valid, reason) in [
            (Valid::NoService, "NoService"),
            (Valid::InvalidServiceType, "InvalidServiceType"),
        ] {
            let expected = format!("False {reason}, False Failed, {none}");
            assert_eq!(of(valid, Ready::Failed, None), expected);
        }
        let conflict = Conflict {
            reason: ConflictReason::Port,
            winner: "a".into(),
            others: BTreeSet::from(["b".into()]),
            of: 2,
        };
        let expected = "True Valid, True Exported, True PortConflict";
        assert_eq!(told(good, exported, None, &[conflict]), expected);
    }

    #[test]
    fn a_refused_export_is_told_the_field_of_the_quota() {
        let status = ExportStatus {
            valid: Valid::Valid,
            ready: Ready::QuotaExceeded(Quota::Endpoints(3)),
            conflicts: Vec::new(),
            importers: Arc::default(),
        };
        let ready = of_export(&status, None)[1].message.clone();
        assert!(ready.contains("spec.quota.endpoints"), "{ready}");
    }
}
