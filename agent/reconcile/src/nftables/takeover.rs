// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy in iptables or nftables mode.
//!
//! Its rules stay in force until our table has each of its addresses and ports. Our nat chains come before
//! its ones, and of the chains of a hook the first that translates a connection is the only one: so our table
//! serves new connections from its first transaction on, and the kube-proxy's rules serve what the table
//! lacks. Then they are deleted. Open connections keep their translation by their entries in conntrack.

use portolan_dataplane::{DataplaneError, KubeProxyRules};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, NodeTable};
use portolan_nftables::{WayKey, Ways, has_way};
use portolan_plan::kube_proxy::Claim;

use super::{NftablesReconciler, Observed};
use crate::kube_proxy::{TakeoverProgress, TakeoverStart};

impl NftablesReconciler {
    /// Has it take the node over from a kube-proxy that has left such rules.
    #[must_use]
    pub fn taking_over(self, kube_proxy: Option<KubeProxyRules>) -> Self {
        Self { kube_proxy, ..self }
    }

    /// Looks at the kube-proxy's rules before the first table is programmed. Nothing is changed.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn begin_takeover(
        &mut self,
        table: &NodeTable,
        is_doubtful: impl Fn(&Claim) -> bool,
    ) -> Result<TakeoverStart, DataplaneError> {
        let Some(kube_proxy) = &mut self.kube_proxy else {
            return Ok(TakeoverStart::Nothing);
        };
        let rules = kube_proxy.read(&self.config.families).await?;
        if rules.is_empty() {
            self.kube_proxy = None;
            return Ok(TakeoverStart::Nothing);
        }
        let facts = self.kernel.facts().await?;
        let ways = Ways::new(table, &facts).ways;
        self.facts = Some(facts);
        let is_wanted =
            |key: &VirtualServerKey| way(key).is_some_and(|way| ways.contains_key(&way));
        let (wanted_rules, unwanted_rules) = rules.frontends.into_iter().partition(is_wanted);
        let claim = Claim {
            wanted_rules,
            unwanted_rules,
            ..Claim::default()
        };
        match is_doubtful(&claim) {
            true => Ok(TakeoverStart::Doubtful(claim)),
            false => Ok(TakeoverStart::Begun(claim)),
        }
    }

    /// Deletes the kube-proxy's rules, once our table has all that it can have of their addresses and ports. A
    /// Service that is refused for good holds up nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses.
    pub async fn continue_takeover(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        let families = self.config.families.clone();
        let Some(kube_proxy) = &mut self.kube_proxy else {
            return Ok(TakeoverProgress::Done);
        };
        let rules = kube_proxy.read(&families).await?;
        let frontends = match &self.observed {
            Some(observed) => {
                let is_unserved = |key: &&VirtualServerKey| lacks(observed, &self.ways, key);
                let is_without_table = |family: &&Family| !has_table(observed, **family);
                let unserved = rules.frontends.iter().filter(is_unserved).count();
                unserved + families.iter().filter(is_without_table).count()
            }
            // Unknown after an error.
            None => rules.frontends.len().max(1),
        };
        if frontends > 0 {
            return Ok(TakeoverProgress::Unserved { frontends });
        }
        kube_proxy.delete(&families).await?;
        self.kube_proxy = None;
        Ok(TakeoverProgress::Done)
    }
}

fn way(key: &VirtualServerKey) -> Option<WayKey> {
    let (socket, protocol) = (key.socket()?, key.protocol()?);
    Some(WayKey {
        address: socket.ip(),
        protocol,
        port: socket.port(),
    })
}

fn has_table(observed: &Observed, family: Family) -> bool {
    observed.tables.get(&family).is_some_and(Option::is_some)
}

/// Returns `true` if an address and port is wanted and not in the kernel's table yet.
fn lacks(observed: &Observed, ways: &Ways, key: &VirtualServerKey) -> bool {
    let Some(way) = way(key).filter(|way| ways.ways.contains_key(way)) else {
        return false;
    };
    let table = observed.tables.get(&key.family());
    let table = table.and_then(Option::as_ref);
    !table.is_some_and(|table| has_way(table, &way))
}
