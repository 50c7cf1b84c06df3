// SPDX-License-Identifier: Apache-2.0

//! One probe.

use futures_util::future::BoxFuture;
use portolan_health::Outcome;
use portolan_model::check::{Check, Probe};

use tokio::time::Instant;

use crate::fault::{Checked, within};
use crate::kinds::{agent, dns, exec, file, grpc, http, icmp, tcp, tls, udp};
use crate::{Context, Target};

/// Runs a check of a backend once. It ends after the check's timeout at the latest, whatever the backend
/// sends. Dropped, it closes its connection, and kills its program.
pub async fn probe(check: &Check, target: &Target, context: &Context) -> Outcome {
    probe_from(Instant::now(), check, target, context).await
}

/// As [`probe`], with the check's timeout from `start` on.
pub(crate) async fn probe_from(
    start: Instant,
    check: &Check,
    target: &Target,
    context: &Context,
) -> Outcome {
    run(start, check, target, context)
        .await
        .unwrap_or_else(Outcome::from)
}

/// Each kind in a box of its own size: that of HTTP over TLS is ten times that of TCP.
fn run<'a>(
    start: Instant,
    check: &'a Check,
    target: &'a Target,
    context: &'a Context,
) -> BoxFuture<'a, Checked<Outcome>> {
    let limit = check.timers.timeout;
    match &check.probe {
        Probe::Tcp(probe) => Box::pin(within(start, limit, tcp::run(probe, target, context))),
        Probe::Tls(probe) => Box::pin(within(start, limit, tls::run(probe, target, context))),
        Probe::Http(probe) => Box::pin(within(start, limit, http::run(probe, target, context))),
        Probe::Udp(probe) => Box::pin(udp::run(probe, target, limit)),
        Probe::Dns(probe) => Box::pin(within(start, limit, dns::run(probe, target))),
        Probe::Grpc(probe) => Box::pin(within(start, limit, grpc::run(probe, target, context))),
        Probe::Icmp => Box::pin(within(start, limit, icmp::run(target, context))),
        Probe::Exec(probe) => Box::pin(exec::run(probe, target, context, limit)),
        Probe::Agent(probe) => Box::pin(agent::run(probe, target, limit)),
        Probe::File(probe) => Box::pin(within(start, limit, file::run(probe, context))),
    }
}
