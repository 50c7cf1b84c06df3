// SPDX-License-Identifier: Apache-2.0

//! `real` servers.

use std::net::{IpAddr, Ipv4Addr};

use super::service::{forwarding_of, method, named_socket, translates_ports};
use super::{Setting, check};
use crate::document::{
    AdministrativeState, BackendDocument, CheckDocument, LoadBalancerSpec, StepDocument,
};
use crate::import::ipvsadm::socket;
use crate::import::{Class, Draft};

/// `A[->B][:PORT] METHOD [WEIGHT] [<l:N>] [<u:N>] ["REQUEST", "RECEIVE"]`. The port of the `service` is checked where
/// there is no other.
pub(super) fn read(
    draft: &mut Draft,
    setting: &Setting,
    spec: &mut LoadBalancerSpec,
    checks: Option<&[CheckDocument]>,
    service: Option<&str>,
    is_off: bool,
) {
    let (plain, quoted) = setting
        .value
        .split_once('"')
        .unwrap_or((&setting.value, ""));
    let mut words = plain.split_whitespace();
    let servers = words.next().and_then(servers);
    let method = words.next().and_then(method);
    let (Some((addresses, port)), Some(method)) = (servers, method) else {
        setting.note(
            draft,
            Class::Error,
            "expected ADDRESS:PORT and gate, masq or ipip",
        );
        return;
    };
    let (mut weight, mut upper, mut lower) = (1_u16, 0, 0);
    for word in words {
        let limit = word.trim_matches(['<', '>']);
        let is_right = match (limit.strip_prefix("u:"), limit.strip_prefix("l:")) {
            (Some(number), _) => number.parse().map(|number| upper = number).is_ok(),
            (_, Some(number)) => number.parse().map(|number| lower = number).is_ok(),
            _ => word.parse().map(|number| weight = number).is_ok(),
        };
        if !is_right {
            setting.note(
                draft,
                Class::Error,
                format!("{word:?}: expected a weight, <l:N> or <u:N>"),
            );
            return;
        }
    }
    let own = own_checks(draft, setting, quoted, checks, service);
    setting.note(draft, Class::Same, "");
    let translates = translates_ports(method, spec);
    let wanted = spec.frontends.first().and_then(|frontend| frontend.port);
    if !translates && port.is_some() && wanted.is_some() && port != wanted {
        let message = "its port became the frontend's, as ipvsadm has it";
        setting.note(draft, Class::Nearest, message);
    }
    // ldirectord checks the server's port also where packets go to another one.
    let checked = match port.filter(|port| *port != 0) {
        Some(port) => (!translates && wanted != Some(port)).then_some(port),
        None => service
            .and_then(check::port_of)
            .filter(|_| wanted.is_none_or(|port| port == 0)),
    };
    let own = with_port(own, checks, checked);
    for address in addresses {
        spec.backends.push(BackendDocument {
            name: None,
            address,
            port: port.filter(|_| translates),
            weight: (weight != 1).then_some(weight),
            max_connections: upper,
            resume_connections: lower,
            forwarding: forwarding_of(method),
            checks: own.clone(),
            administrative_state: is_off.then_some(AdministrativeState::Disabled),
        });
    }
}

/// The checks of the service with a request and an expected answer of the server's own. Where one of them is empty, it
/// is the service's.
fn own_checks(
    draft: &mut Draft,
    setting: &Setting,
    quoted: &str,
    checks: Option<&[CheckDocument]>,
    service: Option<&str>,
) -> Option<Vec<CheckDocument>> {
    // What is between the quotes: the request, the comma, the answer.
    let mut texts = quoted.split('"').step_by(2);
    let mut text = || texts.next().filter(|text| !text.trim().is_empty());
    let (request, receive) = (text(), text());
    if request.is_none() && receive.is_none() {
        return None;
    }
    let mut own = checks?.to_vec();
    let mut is_used = false;
    for document in &mut own {
        if let Some(http) = &mut document.http {
            http.path = request.map(check::path).or(http.path.take());
            http.body_regex = receive.map(str::to_owned).or(http.body_regex.take());
        } else if let Some(dns) = &mut document.dns {
            dns.name = request.map(str::to_owned).or(dns.name.take());
            match receive.map(str::parse::<IpAddr>) {
                Some(Ok(answer)) => dns.answers = vec![answer],
                Some(Err(_)) => setting.note(draft, Class::LeftOut, "its answer is no address"),
                None => {}
            }
        } else if let Some(step) = simple_step(document, service) {
            step.send = request.map(check::unescaped).or(step.send.take());
            step.expect = receive.map(str::to_owned).or(step.expect.take());
        } else {
            continue;
        }
        is_used = true;
    }
    if !is_used {
        let message = "its request is of no use for this check";
        setting.note(draft, Class::LeftOut, message);
        return None;
    }
    Some(own)
}

/// The only step of a check of the service `simpletcp`; none of another service.
fn simple_step<'d>(
    document: &'d mut CheckDocument,
    service: Option<&str>,
) -> Option<&'d mut StepDocument> {
    let is_simple = service == Some("simpletcp");
    let tcp = document.tcp.as_mut().filter(|_| is_simple)?;
    tcp.steps.first_mut()
}

/// The server's own checks, or else those of the service as its own, with a port where they have none.
fn with_port(
    own: Option<Vec<CheckDocument>>,
    checks: Option<&[CheckDocument]>,
    port: Option<u16>,
) -> Option<Vec<CheckDocument>> {
    let is_needed = checks.is_some_and(|checks| checks.iter().any(lacks_port));
    if port.is_none() || !is_needed {
        return own;
    }
    let mut found = own.or_else(|| Some(checks?.to_vec()))?;
    for check in found.iter_mut().filter(|check| lacks_port(check)) {
        check.port = port;
    }
    Some(found)
}

fn lacks_port(check: &CheckDocument) -> bool {
    check.port.is_none() && check::has_port(check)
}

/// `A[:PORT]` and `A->B[:PORT]`, at most 256 servers.
fn servers(text: &str) -> Option<(Vec<IpAddr>, Option<u16>)> {
    let Some((first, rest)) = text.split_once("->") else {
        let (address, port) = named_socket(text).or_else(|| socket(text))?;
        return Some((vec![address], port));
    };
    let (last, port) = named_socket(rest).or_else(|| socket(rest))?;
    let first: IpAddr = first.trim_matches(['[', ']']).parse().ok()?;
    let (IpAddr::V4(first), IpAddr::V4(last)) = (first, last) else {
        return (first == last).then_some((vec![first], port));
    };
    let range = u32::from(first)..=u32::from(last);
    let addresses: Vec<IpAddr> = range
        .take(257)
        .map(|bits| IpAddr::V4(Ipv4Addr::from(bits)))
        .collect();
    ((1..=256).contains(&addresses.len())).then_some((addresses, port))
}
