// SPDX-License-Identifier: Apache-2.0

//! Corrections that keepalived makes of a `virtual_server` as a whole (`validate_check_config`).

use super::Statement;
use super::service::Gathered;
use crate::document::{HealthDocument, LoadBalancerSpec, Period, ProtocolName};
use crate::import::{Class, Draft};

/// Persistence of a service of all ports, in seconds.
const PERSISTENT: u64 = 360;

/// Makes the same corrections, with a note for each. The frontends have their protocol.
pub(super) fn correct(draft: &mut Draft, service: &Statement, gathered: &mut Gathered) {
    let sum: u64 = gathered.weights.iter().map(|each| u64::from(*each)).sum();
    let spec = &mut gathered.spec;
    let mut made = vec![persistence(spec), one_packet(spec)];
    if let Some(health) = &mut spec.health {
        made.extend([quorum(health, sum), hysteresis(health)]);
    }
    for (setting, message) in made.into_iter().flatten() {
        draft.note(&service.origin, Class::Nearest, setting, message);
    }
}

/// A setting, and what became of it.
type Correction = Option<(&'static str, String)>;

/// IPVS has all ports of an address with persistence only.
fn persistence(spec: &mut LoadBalancerSpec) -> Correction {
    let mut frontends = spec.frontends.iter();
    let has_all_ports = frontends.any(|each| each.mark.is_none() && each.port == Some(0));
    if !has_all_ports || spec.persistence.is_some() {
        return None;
    }
    let persistence = spec.persistence.get_or_insert_default();
    persistence.timeout = Some(Period::seconds(PERSISTENT));
    let message = format!("absent with port 0: {PERSISTENT}, as keepalived has it");
    Some(("persistence_timeout", message))
}

/// One packet is scheduled of UDP, and by mark.
fn one_packet(spec: &mut LoadBalancerSpec) -> Correction {
    let is_other = |protocol| protocol != Some(ProtocolName::Udp);
    let mut frontends = spec.frontends.iter();
    let acts = !frontends.any(|each| each.mark.is_none() && is_other(each.protocol));
    if !spec.one_packet || acts {
        return None;
    }
    spec.one_packet = false;
    Some(("ops", "not UDP: left out, as keepalived has it".to_owned()))
}

/// A quorum is at most the weight of all servers.
fn quorum(health: &mut HealthDocument, sum: u64) -> Correction {
    let quorum = health.quorum.filter(|quorum| u64::from(*quorum) > sum)?;
    // Without any weight there is no quorum to have.
    let most = u32::try_from(sum).ok().filter(|most| *most > 0)?;
    health.quorum = Some(most);
    let message =
        format!("{quorum} is above the weight of all servers: {most}, as keepalived has it");
    Some(("quorum", message))
}

/// A hysteresis is below the quorum.
fn hysteresis(health: &mut HealthDocument) -> Correction {
    let below = health.quorum.unwrap_or(1).checked_sub(1)?;
    let given = health.hysteresis;
    if given <= below {
        return None;
    }
    health.hysteresis = below;
    let message = format!("{given} is not below the quorum: {below}, as keepalived has it");
    Some(("hysteresis", message))
}
