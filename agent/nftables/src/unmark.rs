// SPDX-License-Identifier: Apache-2.0

//! Chains beside our IPVS dataplane, while a node changes over from one to the other.
//!
//! IPVS selects the virtual servers of short circuits by marks, which rules in `mangle` give to packets. A
//! packet whose destination our nat chains have translated must not have such a mark: IPVS would choose
//! another destination for it. So it loses the mark after them.
//!
//! A packet that they have not translated keeps its mark: IPVS would not know it without, and the node refuse it. So
//! the translation alone decides, also for packets that are on their way while the chains come or go.

use std::sync::Arc;

use portolan_netlink::nftables::{
    Base, Chain, ChainKind, Ct, Expression, Hook, Meta, Register, Request, Rule, TableContent,
};

use crate::rules::{has_bits, is_translated};

/// After our nat chains, at -101, and before IPVS selects a virtual server for packets of the node, at -98 (kernel:
/// `ip_vs_ops4`).
const PRIORITY: i32 = -99;

const HOOKS: [(&str, Hook); 2] = [
    ("clear-marks-in", Hook::Prerouting),
    ("clear-marks-out", Hook::Output),
];

/// Adds chains that take bits from the marks of new connections with a translated destination.
pub fn unmark(content: &mut TableContent, bits: u32) {
    for (chain, rule) in chains(bits) {
        let name = Arc::clone(&chain.name);
        content.chains.insert(name, (chain, vec![rule]));
    }
}

/// The requests that add these chains to a table, or make them so.
#[must_use]
pub fn unmark_requests(bits: u32) -> Vec<Request> {
    let requests = chains(bits).into_iter().flat_map(|(chain, rule)| {
        let name = Arc::clone(&chain.name);
        [
            Request::AddChain(chain),
            Request::FlushChain(Arc::clone(&name)),
            Request::AddRule(name, rule),
        ]
    });
    requests.collect()
}

fn chains(bits: u32) -> [(Chain, Rule); 2] {
    HOOKS.map(|(name, hook)| {
        let base = Base {
            kind: ChainKind::Filter,
            hook,
            priority: PRIORITY,
        };
        let chain = Chain {
            name: name.into(),
            base: Some(base),
        };
        let first = Register::FIRST;
        let mut rule = vec![Expression::ct(Ct::State, first)];
        rule.extend(has_bits(Ct::STATE_NEW));
        rule.extend(is_translated());
        rule.extend([
            Expression::meta(Meta::Mark, first),
            Expression::bitwise(first, &(!bits).to_ne_bytes(), &[0; 4]),
            Expression::set_mark(first),
        ]);
        (chain, rule)
    })
}

#[cfg(test)]
mod tests {
    use portolan_model::{Family, NodeInfo};
    use portolan_plan::Config;

    use super::*;
    use crate::{Surplus, advance, everything, plan};

    #[test]
    fn the_chains_come_stay_and_go_by_the_plan() {
        let plain = everything(Family::V4, &Config::default(), &NodeInfo::default());
        let mut beside = plain.clone();
        unmark(&mut beside, 0x3fff_0000);
        let mut kernel = None;
        advance(&mut kernel, &plan(&plain, None, Surplus::Delete));
        let come = plan(&beside, kernel.as_ref(), Surplus::Delete);
        assert_eq!(come.len(), 4, "two chains with a rule each: {come:?}");
        advance(&mut kernel, &come);
        assert!(plan(&beside, kernel.as_ref(), Surplus::Delete).is_empty());
        // What another dataplane adds itself is the same.
        advance(&mut kernel, &unmark_requests(0x3fff_0000));
        assert!(plan(&beside, kernel.as_ref(), Surplus::Delete).is_empty());
        let go = plan(&plain, kernel.as_ref(), Surplus::Delete);
        advance(&mut kernel, &go);
        assert_eq!(kernel, Some(plain));
    }
}
