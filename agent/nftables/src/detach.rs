// SPDX-License-Identifier: Apache-2.0

//! The first of the two transactions that delete a table: no packet enters its rules any more.

use std::sync::Arc;

use portolan_netlink::nftables::{Chain, Request};

use crate::rules::{NAT_IN, NAT_OUT};

/// The requests after which no packet enters the rules of a table. What is in the table stays.
///
/// A table is not deleted at one moment for a packet that is in its rules on another processor. The rules stay those
/// of before (kernel: `nft_do_chain` reads the generation once), but elements of maps are gone: each lookup reads the
/// generation anew (`nft_set_elem_active`). The packet would be refused, since its address is one of the Services' and
/// no verdict is found for it, although a kube-proxy or IPVS serves it.
#[must_use]
pub fn detach_requests() -> Vec<Request> {
    let of_chain = |name: &str| {
        let name: Arc<str> = name.into();
        // No error if the chain is there, whatever its hook.
        let chain = Chain {
            name: Arc::clone(&name),
            base: None,
        };
        [Request::AddChain(chain), Request::FlushChain(name)]
    };
    [NAT_IN, NAT_OUT].into_iter().flat_map(of_chain).collect()
}

#[cfg(test)]
mod tests {
    use portolan_model::{Family, NodeInfo};
    use portolan_netlink::nftables::{ChainKind, Hook};
    use portolan_plan::Config;

    use super::*;
    use crate::{advance, everything};

    #[test]
    fn no_packet_enters_the_rules_and_all_else_stays() {
        for family in Family::ALL {
            let before = everything(family, &Config::default(), &NodeInfo::default());
            let mut content = Some(before.clone());
            advance(&mut content, &detach_requests());
            let after = content.unwrap();
            assert_eq!(after.sets, before.sets);
            for (name, (chain, rules)) in &before.chains {
                let translates = chain.base.as_ref().is_some_and(|base| {
                    base.kind == ChainKind::Nat && base.hook != Hook::Postrouting
                });
                let left = &after.chains[name].1;
                assert!(!rules.is_empty(), "{name}");
                if translates {
                    assert!(left.is_empty(), "{name}: {left:?}");
                } else {
                    assert_eq!(left, rules, "{name}");
                }
            }
        }
    }
}
