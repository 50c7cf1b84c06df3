// SPDX-License-Identifier: Apache-2.0

//! From documents of the right structure to checked objects.
//!
//! Conversions go on after a problem with a value that stands in for the wrong one, so that all
//! problems are found; the caller discards the result if there was any.

mod balancer;
mod check;
mod director;
mod findings;
mod forwarding;
mod frontend;
mod host;
mod probe;
mod tls;

use std::net::IpAddr;
use std::time::Duration;

pub(crate) use balancer::load_balancer;
pub(crate) use director::director;
pub(crate) use findings::{Finding, Findings};
pub(crate) use host::name_of;
pub(crate) use probe::RCODES;

use crate::document::Period;
use crate::read::Path;

/// A duration within bounds, both of them allowed.
fn bounded(
    findings: &mut Findings,
    path: &Path,
    period: Period,
    (least, most): (Period, Period),
) -> Duration {
    if period < least || period > most {
        findings.error(path, format!("{period}: expected {least} to {most}"));
    }
    period.get()
}

/// A duration of whole seconds within bounds.
fn bounded_seconds(
    findings: &mut Findings,
    path: &Path,
    period: Period,
    bounds: (Period, Period),
) -> Duration {
    if period.get().subsec_nanos() != 0 {
        findings.error(path, format!("{period}: expected whole seconds"));
        return period.get();
    }
    bounded(findings, path, period, bounds)
}

/// Reports an address that no server or client can have.
fn unicast(findings: &mut Findings, path: &Path, address: IpAddr) {
    let kind = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(address) if address.is_broadcast() => "the broadcast address",
        IpAddr::V6(address) if address.is_unicast_link_local() => "a link-local address",
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => "an IPv4 address within IPv6",
        _ => return,
    };
    findings.error(
        path,
        format!("{address} is {kind}: expected a unicast address"),
    );
}

/// Reports a program that is not named by its absolute path.
fn program(findings: &mut Findings, path: &Path, command: &[String]) {
    if let Some(name) = command.first()
        && !name.starts_with('/')
    {
        findings.error(
            &path.item(0),
            format!("{name:?}: expected an absolute path"),
        );
    }
}

/// Reports what is no regular expression.
fn regex(findings: &mut Findings, path: &Path, pattern: &str) {
    let Err(error) = regex::bytes::Regex::new(pattern) else {
        return;
    };
    let error = error.to_string();
    let reason = error.lines().last().unwrap_or_default();
    let reason = reason.trim_start_matches("error: ");
    let message = format!("{pattern:?}: expected a regular expression: {reason}");
    findings.error(path, message);
}
