// SPDX-License-Identifier: Apache-2.0

//! Address families that the node serves: the requested ones, or those that it can serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use anyhow::bail;
use portolan_dataplane::{Kernel, NftablesKernel, Unusable};
use portolan_model::{Families, Family};
use portolan_nftables::Lacking;
use portolan_plan::Config;
use portolan_reconcile::NftablesReconciler;

/// Choice of `--families`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedFamilies {
    /// All families that the node can serve, at least one.
    Auto,
    /// These families, all of them.
    These(Families),
}

/// A text that `--families` does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, ipv4, ipv6, or ipv4,ipv6")]
pub struct InvalidFamilies;

impl FromStr for AskedFamilies {
    type Err = InvalidFamilies;

    fn from_str(text: &str) -> Result<Self, InvalidFamilies> {
        let mut these = Families::NONE;
        match text.to_ascii_lowercase().as_str() {
            "auto" => return Ok(Self::Auto),
            "dual" => return Ok(Self::These(Family::ALL.into_iter().collect())),
            names => {
                for name in names.split(',').map(str::trim) {
                    these.insert(match name {
                        "ipv4" => Family::V4,
                        "ipv6" => Family::V6,
                        _ => return Err(InvalidFamilies),
                    });
                }
            }
        }
        Ok(Self::These(these))
    }
}

impl AskedFamilies {
    fn candidates(self) -> Families {
        match self {
            Self::Auto => Family::ALL.into_iter().collect(),
            Self::These(families) => families,
        }
    }
}

/// Probes the families and returns those to serve. Logs the others with the reason.
///
/// # Errors
/// If a requested family cannot be served, or none can.
pub async fn settle(
    kernel: &mut Kernel,
    asked: AskedFamilies,
    scheduler: &str,
) -> anyhow::Result<Families> {
    let mut unusable = BTreeMap::new();
    for family in asked.candidates().iter() {
        if let Err(reason) = kernel.probe(family, scheduler).await {
            unusable.insert(family, reason);
        }
    }
    let served = choose(asked, &unusable)?;
    for (family, reason) in &unusable {
        match reason {
            Unusable::NoIpv6 => tracing::info!("{family} is not served: {reason}"),
            _ => tracing::warn!(
                "{family} is not served, and its programmed objects stay untouched: {reason}"
            ),
        }
    }
    kernel.serve(served);
    Ok(served)
}

/// As [`settle`], for nftables.
///
/// # Errors
/// Same as [`settle`]. If none can be served, with the reasons alone.
pub fn settle_nftables(
    kernel: &mut NftablesKernel,
    asked: AskedFamilies,
    config: &Config,
) -> anyhow::Result<Families> {
    let mut unusable = BTreeMap::new();
    for family in asked.candidates().iter() {
        if let Err(reason) = NftablesReconciler::probe(kernel, config, family) {
            unusable.insert(family, reason);
        }
    }
    if asked.candidates().iter().all(|f| unusable.contains_key(&f)) {
        bail!("{}", once(&unusable));
    }
    let served = choose(asked, &unusable)?;
    for (family, reason) in &unusable {
        tracing::warn!("{family} is not served: nftables: {reason}");
    }
    Ok(served)
}

/// Reasons of all families, each once.
fn once(unusable: &BTreeMap<Family, Lacking>) -> String {
    let reasons: BTreeSet<&Lacking> = unusable.values().collect();
    let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
    reasons.join("; ")
}

/// As [`settle`], for sockets.
///
/// # Errors
/// Same as [`settle`].
pub fn settle_userspace(asked: AskedFamilies) -> anyhow::Result<Families> {
    let mut unusable = BTreeMap::new();
    for family in asked.candidates().iter() {
        let loopback: IpAddr = match family {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        if let Err(error) = UdpSocket::bind((loopback, 0)) {
            unusable.insert(family, error);
        }
    }
    let served = choose(asked, &unusable)?;
    for (family, error) in &unusable {
        tracing::info!("{family} is not served: {error}");
    }
    Ok(served)
}

/// Chooses the families to serve, given the unusable ones.
fn choose(
    asked: AskedFamilies,
    unusable: &BTreeMap<Family, impl Display>,
) -> anyhow::Result<Families> {
    let candidates = asked.candidates();
    let usable = candidates.iter().filter(|f| !unusable.contains_key(f));
    let usable: Families = usable.collect();
    let reasons = unusable
        .iter()
        .map(|(family, reason)| format!("{family}: {reason}"));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    if usable.is_empty() {
        bail!("this node can serve nothing: {reasons}");
    }
    if asked != AskedFamilies::Auto && !unusable.is_empty() {
        bail!("--families names a family that this node cannot serve: {reasons}");
    }
    Ok(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(families: &[Family]) -> AskedFamilies {
        AskedFamilies::These(families.iter().copied().collect())
    }

    #[test]
    fn families_are_named_one_by_one_or_together() {
        for (text, expected) in [
            ("auto", AskedFamilies::Auto),
            ("ipv4", these(&[Family::V4])),
            ("IPv6", these(&[Family::V6])),
            ("ipv4,ipv6", these(&Family::ALL)),
            ("ipv6, ipv4", these(&Family::ALL)),
            ("dual", these(&Family::ALL)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in ["", "ipv5", "ipv4,", "auto,ipv4"] {
            assert!(bad.parse::<AskedFamilies>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn unusable_family_is_left_out_unless_requested() {
        let off = || Unusable::SwitchedOff { interface: "lo" };
        let none = BTreeMap::new();
        let v6 = BTreeMap::from([(Family::V6, off())]);
        let both = BTreeMap::from([(Family::V4, off()), (Family::V6, off())]);
        let found = |asked, unusable| -> Result<Vec<_>, String> {
            let chosen = choose(asked, unusable);
            let chosen = chosen.map_err(|error| error.to_string())?;
            Ok(chosen.iter().collect())
        };
        let auto = AskedFamilies::Auto;
        assert_eq!(found(auto, &none), Ok(Family::ALL.into()));
        assert_eq!(found(auto, &v6), Ok(vec![Family::V4]));
        let asked = these(&[Family::V6]);
        assert_eq!(found(asked, &none), Ok(vec![Family::V6]));
        let reason = "IPv6 is switched off: net.ipv6.conf.lo.disable_ipv6 is 1";
        let nothing = Err(format!("this node can serve nothing: IPv6: {reason}"));
        assert_eq!(found(asked, &v6), nothing);
        let part = "--families names a family that this node cannot serve: IPv6: ";
        assert_eq!(
            found(these(&Family::ALL), &v6),
            Err(format!("{part}{reason}"))
        );
        let nothing = found(auto, &both).unwrap_err();
        assert!(
            nothing.starts_with("this node can serve nothing: IPv4: "),
            "{nothing}"
        );
    }
}
