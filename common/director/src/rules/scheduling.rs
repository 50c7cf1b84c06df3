// SPDX-License-Identifier: Apache-2.0

//! Scheduler, persistence, weights and quorum.

use portolan_model::Protocol;
use portolan_model::check::OnFailure;

use crate::balancer::LoadBalancer;
use crate::convert::Findings;
use crate::document::{PersistenceEngine, SchedulerFlag, SchedulerName};
use crate::read::Path;

/// Slots of the scheduler sh.
const SH_SLOTS: u64 = 256;

pub(super) fn check(object: &LoadBalancer, findings: &mut Findings) {
    let spec = Path::default().field("spec");
    if !findings.is_broken("spec.scheduler") {
        flags(object, findings, &spec);
        failure(object, findings, &spec);
        weights(object, findings, &spec);
        slow_start(object, findings, &spec);
    }
    if !findings.is_broken("spec.frontends") {
        one_packet(object, findings, &spec);
        persistence(object, findings, &spec);
    }
    quorum(object, findings, &spec);
}

fn flags(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    let path = spec.field("schedulerFlags");
    let scheduler = object.scheduler;
    for flag in &object.scheduler_flags {
        let named = matches!(flag, SchedulerFlag::Port | SchedulerFlag::Fallback);
        if named && !scheduler.hashes_source() {
            let message =
                format!("scheduler \"{scheduler}\" has no flag {flag:?}: expected with sh or mh");
            findings.error(&path, message);
        }
    }
}

fn failure(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    if object.scheduler == SchedulerName::Dh && object.health.on_failure == OnFailure::Quiesce {
        let message = "scheduler \"dh\" refuses the clients of a backend with weight 0: \
                       expected onFailure Remove";
        findings.error(&spec.field("health").field("onFailure"), message);
    }
}

fn weights(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    let path = spec.field("backends");
    let weights = || object.backends.iter().map(|backend| backend.weight);
    if object.scheduler.ignores_shares() {
        let mut shares = weights().filter(|weight| *weight != 0);
        let first = shares.next();
        if shares.any(|weight| Some(weight) != first) {
            let message = format!(
                "the weights differ: scheduler \"{}\" only tells 0 from others",
                object.scheduler
            );
            findings.warning(&path, message);
        }
    }
    let sum: u64 = weights().map(u64::from).sum();
    if object.scheduler == SchedulerName::Sh && sum > SH_SLOTS {
        let message = format!(
            "the weights add up to {sum}: scheduler \"sh\" has {SH_SLOTS} slots, and some \
             backends get none"
        );
        findings.warning(&path, message);
    }
}

fn slow_start(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    if !object.health.slow_start.is_zero() && !object.scheduler.ramps() {
        let message = format!(
            "scheduler \"{}\" has no shares: use wrr, wlc, sed, nq, twos or lblcr",
            object.scheduler
        );
        findings.error(&spec.field("health").field("slowStart"), message);
    }
}

fn one_packet(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    let path = spec.field("onePacket");
    if !object.one_packet {
        return;
    }
    if object.persistence.is_some() {
        findings.error(&path, "true with persistence: expected one of them");
    }
    let acts = object.frontends.iter().any(|frontend| {
        frontend
            .packets
            .protocol()
            .is_none_or(|protocol| protocol == Protocol::Udp)
    });
    if !acts {
        findings.error(&path, "no frontend is UDP or a mark: expected one");
    }
}

fn persistence(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    let Some(persistence) = object.persistence else {
        for (index, frontend) in object.frontends.iter().enumerate() {
            if matches!(
                frontend.packets,
                crate::frontend::Packets::Port { port: 0, .. }
            ) {
                let path = spec.field("frontends").item(index).field("port");
                findings.error(
                    &path,
                    "0 stands for all ports: expected with persistence only",
                );
            }
        }
        return;
    };
    let carries_sip = object.frontends.iter().any(|frontend| {
        frontend
            .packets
            .protocol()
            .is_none_or(|protocol| protocol == Protocol::Udp)
    });
    if persistence.engine == Some(PersistenceEngine::Sip) && !carries_sip {
        let path = spec.field("persistence").field("engine");
        findings.error(
            &path,
            "Sip reads UDP: expected a frontend that is UDP or a mark",
        );
    }
}

/// A quorum that no set of backends can have is a slip, but may be on purpose while a service is
/// built up.
fn quorum(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    let sum: u64 = object
        .backends
        .iter()
        .map(|backend| u64::from(backend.weight))
        .sum();
    let needed = u64::from(object.health.quorum) + u64::from(object.health.hysteresis);
    if object.health.quorum > 1 && needed > sum && !findings.is_broken("spec.backends") {
        let message = format!("needs weight {needed}: all backends together have {sum}");
        findings.warning(&spec.field("health").field("quorum"), message);
    }
}
