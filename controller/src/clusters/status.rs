// SPDX-License-Identifier: Apache-2.0

//! The status of the Clusters of an API server, written by the replica that leads.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use portolan_federate::state::{Phase, Status};
use portolan_policy::Kind;
use portolan_policy::spec::{
    API_GROUP, API_VERSION, ClusterCounts, ClusterStatus, Condition, GROUP_VERSION, PhaseName,
};
use portolan_source::kubernetes::{Resource, Resources};
use portolan_source::objects::FIELD_MANAGER;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::ClusterStates;
use super::states::States;
use crate::mcs::{Leading, WriteCounts, failure};

/// The time between two looks at what differs, and the time for the writes of one: what is written is no older.
const PERIOD: Duration = Duration::from_secs(1);
/// The time between two writes: at most 20 in a second.
const PACE: Duration = Duration::from_millis(50);
/// Time limit of a write.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for a write to be seen in a watch, and the pause after one that failed.
const AGAIN: Duration = Duration::from_secs(10);
/// The pause after a refusal that only a person changes.
const RARELY: Duration = Duration::from_secs(60);

/// Writes the status of Clusters.
pub(crate) struct StatusWriter {
    pub(crate) client: Client,
    pub(crate) served: watch::Receiver<Resources>,
    pub(crate) states: ClusterStates,
    pub(crate) leading: Leading,
    pub(crate) counts: WriteCounts,
}

/// The last write of a status.
struct Tried {
    /// `None` if it failed.
    written: Option<Value>,
    /// The time until which nothing is written again.
    until: Instant,
}

impl StatusWriter {
    /// Writes for ever.
    pub(crate) async fn run(self) {
        let mut tried: BTreeMap<String, Tried> = BTreeMap::new();
        let mut last = String::new();
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.leading.is_leading() {
                // Another replica writes, and this one does not know what.
                tried.clear();
                continue;
            }
            let begin = Instant::now();
            for (name, status) in after(self.due(&mut tried), &last) {
                if !self.leading.is_leading() || begin.elapsed() >= PERIOD {
                    break;
                }
                let outcome = self.write(&name, &status).await;
                let now = Instant::now();
                let (written, until) = match outcome {
                    Ok(()) => (Some(status), now + AGAIN),
                    Err(pause) => (None, now + pause),
                };
                last.clone_from(&name);
                tried.insert(name, Tried { written, until });
                sleep(PACE).await;
            }
        }
    }

    /// The statuses that differ from what the API server has.
    fn due(&self, tried: &mut BTreeMap<String, Tried>) -> Vec<(String, Value)> {
        let (now, time) = (Instant::now(), Timestamp::now());
        tried.retain(|_, tried| tried.until > now);
        let served = self.served.borrow();
        // Before that no object is in force or refused.
        if !Kind::ALL
            .iter()
            .all(|kind| served.listed.contains(kind.as_str()))
        {
            return Vec::new();
        }
        let states = self.states.lock();
        let clusters = served.objects.iter();
        let clusters = clusters.filter(|((kind, _), _)| *kind == Kind::Cluster.as_str());
        let due = clusters.filter_map(|((_, name), object)| {
            let before = match tried.get(name) {
                // It failed a moment ago.
                Some(Tried { written: None, .. }) => return None,
                Some(Tried {
                    written: Some(written),
                    ..
                }) => written,
                None => &object.status,
            };
            let status = wanted(name, object, before, &states, time);
            let status = serde_json::to_value(status).unwrap_or_default();
            (status != *before).then(|| (name.clone(), status))
        });
        due.collect()
    }

    /// Writes a status. Returns the pause after a failure.
    async fn write(&self, name: &str, status: &Value) -> Result<(), Duration> {
        let kind = Kind::Cluster;
        let resource = ApiResource {
            group: API_GROUP.to_owned(),
            version: GROUP_VERSION.to_owned(),
            api_version: API_VERSION.to_owned(),
            kind: kind.to_string(),
            plural: kind.plural().to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": kind.as_str(),
            "metadata": {"name": name},
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        let (result, refused, message) =
            match timeout(PATIENCE, api.patch_status(name, &params, &patch)).await {
                Ok(Ok(_)) => ("written", false, None),
                Ok(Err(error)) => {
                    let failure = failure(&error);
                    (failure.result, failure.refused, Some(failure.message))
                }
                Err(_) => ("error", false, Some(format!("no answer in {PATIENCE:?}"))),
            };
        self.counts.count(name, kind.as_str(), result);
        let Some(message) = message else {
            return Ok(());
        };
        let pause = if refused { RARELY } else { AGAIN };
        tracing::warn!(cluster = name, result, message, retry_in = ?pause,
            "cannot write the status of the Cluster");
        Err(pause)
    }
}

/// The statuses from the one after a name on, and around to that: each Cluster has its turn.
fn after(mut due: Vec<(String, Value)>, last: &str) -> Vec<(String, Value)> {
    // They are in the order of names.
    let next = due.partition_point(|(name, _)| name.as_str() <= last);
    due.rotate_left(next);
    due
}

/// The status that a Cluster should have, after another one.
fn wanted(
    name: &str,
    object: &Resource,
    before: &Value,
    states: &States,
    now: Timestamp,
) -> ClusterStatus {
    let before: ClusterStatus = serde_json::from_value(before.clone()).unwrap_or_default();
    let status = states.statuses.get(name);
    let mut conditions = Vec::new();
    let mut add = |kind: &str, [status, reason]: [&str; 2], message: &str| {
        let mut earlier = before.conditions.iter();
        let earlier = earlier.find(|one| one.kind == kind && one.status == status);
        let since = earlier.map(|one| one.last_transition_time.clone());
        conditions.push(Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: object.generation,
            last_transition_time: since.unwrap_or_else(|| at(now.as_second())),
        });
    };
    match states.refused.get(name) {
        Some((reason, message)) => add("Accepted", ["False", reason], message),
        None => add("Accepted", ["True", "Accepted"], ""),
    }
    if let Some(status) = status {
        add("Connected", connected(status.phase), "");
        let preserving = match states.preserving {
            true => ["True", "MassLoss"],
            false => ["False", "NotNeeded"],
        };
        add("SelfPreservation", preserving, "");
    }
    let count = |counts: &BTreeMap<std::sync::Arc<str>, usize>| {
        let count = counts.get(name).copied().unwrap_or_default();
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    ClusterStatus {
        phase: status.map(|status| phase(status.phase)),
        step: status.map(|status| u32::from(status.step)),
        last_contact: status.and_then(last_contact),
        losses: status.map(|status| i64::try_from(status.losses).unwrap_or(i64::MAX)),
        counts: status.map(|_| ClusterCounts {
            exports: count(&states.counts.exports),
            imports: count(&states.counts.imports),
        }),
        conditions,
    }
}

/// To a minute, so that a cluster in contact is written once a minute.
fn last_contact(status: &Status) -> Option<String> {
    let seconds = i64::try_from(status.last_contact?.0.as_secs()).ok()?;
    Some(at(seconds - seconds % 60))
}

fn connected(phase: Phase) -> [&'static str; 2] {
    match phase {
        Phase::Connecting => ["Unknown", "Connecting"],
        Phase::Stale | Phase::Lost => ["False", "Unreachable"],
        Phase::Ready | Phase::Returning | Phase::Draining | Phase::Drained => ["True", "Watching"],
    }
}

fn phase(phase: Phase) -> PhaseName {
    match phase {
        Phase::Connecting => PhaseName::Connecting,
        Phase::Ready => PhaseName::Ready,
        Phase::Stale => PhaseName::Stale,
        Phase::Lost => PhaseName::Lost,
        Phase::Returning => PhaseName::Returning,
        Phase::Draining => PhaseName::Draining,
        Phase::Drained => PhaseName::Drained,
    }
}

/// A time in whole seconds, as in `metav1.Time`.
fn at(seconds: i64) -> String {
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_string()
}

#[cfg(test)]
mod tests;
