// SPDX-License-Identifier: Apache-2.0

//! Warnings about base chains of others that drop what the node forwards for Services.

use std::time::Duration;

use portolan_dataplane::{DataplaneError, ForwardHook};
use portolan_nftables::{ClosedChain, ClosedLooks, Translation, closed_chains};
use portolan_runtime::Vital;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::{MissedTickBehavior, interval};

/// Number of the chains that were told and are still there.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClosedChains(Gauge);

impl ClosedChains {
    /// Adds the number to the metrics that are named after the agent.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register(
            "closed_forward_chains",
            "Base chains of other nftables tables that drop forwarded packets of Services",
            this.0.clone(),
        );
        this
    }

    fn set(&self, looks: &ClosedLooks) {
        self.0.set(i64::try_from(looks.count()).unwrap_or(i64::MAX));
    }
}

/// Starts to look for such chains, at once and in each period.
pub(crate) fn start(dataplane: &str, period: Duration, registry: &mut Registry, vital: &Vital) {
    let translation = match dataplane {
        "nftables" => Translation::Nftables,
        "ipvs" => Translation::Ipvs,
        // Sockets forward nothing.
        _ => return,
    };
    let number = ClosedChains::register(registry);
    match ForwardHook::open() {
        Ok(hook) => {
            vital.spawn_endless("chains of others", watch(hook, translation, period, number))
        }
        Err(error) => tracing::warn!(%error, "chains of others are not looked at"),
    }
}

async fn watch(
    mut hook: ForwardHook,
    translation: Translation,
    period: Duration,
    number: ClosedChains,
) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = ClosedLooks::default();
    loop {
        ticks.tick().await;
        match hook.look() {
            Ok(found) => {
                let found = found.map(|chains| closed_chains(&chains, translation));
                for chain in looks.take(found) {
                    warn(&chain, translation);
                }
                number.set(&looks);
            }
            // A kernel without nftables has no such chains either.
            Err(error) => tracing::debug!(%error, "chains of others cannot be read"),
        }
    }
}

fn warn(chain: &ClosedChain, translation: Translation) {
    tracing::warn!(
        %chain,
        advice = translation.advice(),
        "a base chain of another program drops forwarded packets of Services, unless other rules of it accept them"
    );
}

/// Warns of the chains that are there now, before an agent runs.
///
/// # Errors
/// If the kernel cannot be read.
pub(crate) fn tell_now(translation: Translation) -> Result<(), DataplaneError> {
    let chains = ForwardHook::open()?.look()?.unwrap_or_default();
    // The rules of a run with IPVS accept answers in that of iptables.
    let is_closed =
        |chain: &&ClosedChain| translation == Translation::Nftables || !chain.is_of_iptables();
    for chain in closed_chains(&chains, translation).iter().filter(is_closed) {
        warn(chain, translation);
    }
    Ok(())
}
