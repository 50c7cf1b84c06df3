// SPDX-License-Identifier: Apache-2.0

//! One probe.

use portolan_health::Outcome;
use portolan_model::check::{Check, Probe};

use crate::fault::{Checked, within};
use crate::kinds::{agent, dns, exec, file, grpc, http, icmp, tcp, tls, udp};
use crate::{Context, Target};

/// Runs a check of a backend once. It ends after the check's timeout at the latest, whatever the backend
/// sends. Dropped, it closes its connection, and kills its program.
pub async fn probe(check: &Check, target: &Target, context: &Context) -> Outcome {
    run(check, target, context)
        .await
        .unwrap_or_else(Outcome::from)
}

async fn run(check: &Check, target: &Target, context: &Context) -> Checked<Outcome> {
    let limit = check.timers.timeout;
    match &check.probe {
        Probe::Tcp(probe) => within(limit, tcp::run(probe, target, context)).await,
        Probe::Tls(probe) => within(limit, tls::run(probe, target, context)).await,
        Probe::Http(probe) => within(limit, http::run(probe, target, context)).await,
        Probe::Udp(probe) => udp::run(probe, target, limit).await,
        Probe::Dns(probe) => within(limit, dns::run(probe, target)).await,
        Probe::Grpc(probe) => within(limit, grpc::run(probe, target, context)).await,
        Probe::Icmp => within(limit, icmp::run(target, context)).await,
        Probe::Exec(probe) => exec::run(probe, target, context, limit).await,
        Probe::Agent(probe) => agent::run(probe, target, limit).await,
        Probe::File(probe) => within(limit, file::run(probe)).await,
    }
}
