// SPDX-License-Identifier: Apache-2.0

//! Names of what a kernel lacks, from the answers to a transaction with a rule of every kind.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::nftables::{ChainKind, CommitError, Expression, Request, Rule};

/// Reason the kernel cannot have the rules of a family.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Lacking {
    /// This process may not program it.
    #[error("needs CAP_NET_ADMIN in the host's network namespace")]
    Right,
    /// There is no such subsystem.
    #[error("not in this kernel (modprobe nf_tables)")]
    Subsystem,
    /// A part is missing.
    #[error("this kernel has no {what:?} for {family} ({option})")]
    Part {
        /// Its name, as the kernel or `nft` has it.
        what: String,
        /// The name of the family in `nft`.
        family: &'static str,
        /// The option that a kernel is built with.
        option: String,
    },
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// The name of a family in `nft`.
fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl Lacking {
    /// Returns the reason of a kernel that answers a transaction of [`everything`](crate::everything) with this error.
    #[must_use]
    pub fn new(family: Family, requests: &[Request], error: &CommitError) -> Self {
        match error {
            CommitError::Refused(refused) => Self::of_requests(family, requests, refused),
            CommitError::Whole(Errno::EPERM) => Self::Right,
            CommitError::Whole(Errno::EOPNOTSUPP) => Self::Subsystem,
            other => Self::Other(other.to_string()),
        }
    }

    fn of_requests(family: Family, requests: &[Request], refused: &[(usize, Errno)]) -> Self {
        if refused.iter().any(|(_, errno)| *errno == Errno::EPERM) {
            return Self::Right;
        }
        let part = |what: &str, option: &str| Self::Part {
            what: what.to_owned(),
            family: name(family),
            option: format!("CONFIG_{option}"),
        };
        let numbers: BTreeSet<usize> = refused.iter().map(|(number, _)| *number).collect();
        let refused = || numbers.iter().filter_map(|number| requests.get(*number));
        // What follows refers to the first that is missing.
        let found = refused().find_map(|request| match request {
            Request::AddTable => Some(part("nf_tables", &of_family("NF_TABLES", family))),
            Request::AddChain(chain) => match chain.base.map(|base| base.kind) {
                Some(ChainKind::Nat) => Some(part("nat", "NFT_NAT")),
                _ => None,
            },
            Request::AddSet(set) if set.is_interval => {
                Some(part("ranges in concatenations", "NF_TABLES, Linux 5.6"))
            }
            Request::AddSet(set) => Some(part(&format!("set {}", set.name), "NF_TABLES")),
            _ => None,
        });
        let missing = || missing_expression(requests, &numbers);
        let expression = || {
            let name = missing()?;
            Some(part(name, &option(name, family)))
        };
        let all = refused().count();
        found
            .or_else(expression)
            .unwrap_or_else(|| Self::Other(format!("the kernel refuses {all} of the rules")))
    }
}

/// An expression that is in no accepted rule: one that all refused rules have, or the first of any.
fn missing_expression<'a>(requests: &'a [Request], refused: &BTreeSet<usize>) -> Option<&'a str> {
    let of_rules = |is_refused: bool| {
        let rules = requests.iter().enumerate();
        let rules = rules.filter(move |(number, _)| refused.contains(number) == is_refused);
        rules.filter_map(|(_, request)| match request {
            Request::AddRule(_, rule) => Some(rule),
            _ => None,
        })
    };
    let names = |rule: &'a Rule| rule.iter().map(Expression::name);
    let known: BTreeSet<&str> = of_rules(false).flat_map(names).collect();
    let is_unknown = |name: &&str| !known.contains(name);
    let is_in_all = |name: &&str| of_rules(true).all(|rule| names(rule).any(|of| of == *name));
    let all = || of_rules(true).flat_map(names).filter(is_unknown);
    let found = all().find(is_in_all);
    found.or_else(|| all().next())
}

/// The option that an expression is built by, without `CONFIG_`.
fn option(expression: &str, family: Family) -> String {
    match expression {
        "fib" => of_family("NFT_FIB", family),
        "reject" => of_family("NFT_REJECT", family),
        "masq" => "NFT_MASQ".to_owned(),
        "nat" => "NFT_NAT".to_owned(),
        "ct" => "NFT_CT".to_owned(),
        "numgen" => "NFT_NUMGEN".to_owned(),
        // These are parts of nf_tables itself.
        _ => "NF_TABLES".to_owned(),
    }
}

fn of_family(option: &str, family: Family) -> String {
    let family = match family {
        Family::V4 => "IPV4",
        Family::V6 => "IPV6",
    };
    format!("{option}_{family}")
}

#[cfg(test)]
mod tests {
    use portolan_model::NodeInfo;
    use portolan_plan::Config;

    use super::*;
    use crate::{Surplus, everything, plan};

    fn requests(family: Family) -> Vec<Request> {
        let table = everything(family, &Config::default(), &NodeInfo::default());
        plan(&table, None, Surplus::Delete)
    }

    /// Returns the text for a kernel that refuses these requests.
    fn said(family: Family, is_refused: impl Fn(&Request) -> bool) -> String {
        let requests = requests(family);
        let numbers = (0..requests.len()).filter(|number| is_refused(&requests[*number]));
        let refused: Vec<_> = numbers.map(|number| (number, Errno::ENOENT)).collect();
        assert!(!refused.is_empty());
        Lacking::new(family, &requests, &CommitError::Refused(refused)).to_string()
    }

    #[test]
    fn a_missing_expression_is_named_with_its_option() {
        let has = |name: &'static str| {
            move |request: &Request| match request {
                Request::AddRule(_, rule) => rule.iter().any(|e| e.name() == name),
                _ => false,
            }
        };
        for (family, name, expected) in [
            (Family::V6, "fib", "\"fib\" for ip6 (CONFIG_NFT_FIB_IPV6)"),
            (Family::V4, "fib", "\"fib\" for ip (CONFIG_NFT_FIB_IPV4)"),
            (Family::V4, "masq", "\"masq\" for ip (CONFIG_NFT_MASQ)"),
            (
                Family::V6,
                "numgen",
                "\"numgen\" for ip6 (CONFIG_NFT_NUMGEN)",
            ),
            (
                Family::V4,
                "reject",
                "\"reject\" for ip (CONFIG_NFT_REJECT_IPV4)",
            ),
            (Family::V4, "nat", "\"nat\" for ip (CONFIG_NFT_NAT)"),
        ] {
            let said = said(family, has(name));
            assert_eq!(said, format!("this kernel has no {expected}"));
        }
    }

    #[test]
    fn a_missing_family_right_or_subsystem_is_named() {
        let all = |family| said(family, |_| true);
        let expected = "this kernel has no \"nf_tables\" for ip (CONFIG_NF_TABLES_IPV4)";
        assert_eq!(all(Family::V4), expected);
        let whole = |errno| {
            let requests = requests(Family::V4);
            Lacking::new(Family::V4, &requests, &CommitError::Whole(errno)).to_string()
        };
        let expected = "needs CAP_NET_ADMIN in the host's network namespace";
        assert_eq!(whole(Errno::EPERM), expected);
        assert_eq!(
            whole(Errno::EOPNOTSUPP),
            "not in this kernel (modprobe nf_tables)"
        );
    }
}
