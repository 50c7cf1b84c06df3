// SPDX-License-Identifier: Apache-2.0

//! `real_server`.

use std::net::IpAddr;

use super::checker::{Timers, checker};
use super::service::{Gathered, method, noted};
use super::{Known, Statement};
use crate::document::BackendDocument;
use crate::import::{Class, Draft};

/// A server, and what its checkers inherit.
struct Server {
    backend: BackendDocument,
    weight: u32,
    timers: Timers,
    host: Option<String>,
}

pub(super) fn read(
    draft: &mut Draft,
    statement: &Statement,
    service: &mut Gathered,
    known: &Known,
    director: &str,
) {
    let address = statement
        .value()
        .and_then(|text| text.parse::<IpAddr>().ok());
    let port = statement.words.get(2).map(|text| text.parse::<u16>());
    let (Some(address), Ok(port)) = (address, port.transpose()) else {
        statement.wrong(draft, "an address and a port");
        return;
    };
    let port = port.filter(|port| *port != 0);
    let mut others = service.spec.backends.iter();
    if others.any(|other| (other.address, other.port) == (address, port)) {
        let message = "there already: left out, as keepalived has it";
        statement.note(draft, Class::LeftOut, message);
        return;
    }
    statement.note(draft, Class::Same, "");
    let mut server = Server {
        backend: BackendDocument {
            name: None,
            address,
            port,
            weight: None,
            max_connections: 0,
            resume_connections: 0,
            forwarding: None,
            checks: None,
            administrative_state: None,
        },
        weight: service.default_weight,
        timers: service.timers.clone(),
        host: service.virtual_host.clone(),
    };
    // A checker without settings may be a line without a block.
    let (checkers, settings): (Vec<&Statement>, Vec<&Statement>) = statement
        .block
        .iter()
        .partition(|inner| inner.name().ends_with("_CHECK") || inner.name().ends_with("_GET"));
    for inner in settings {
        setting(draft, inner, &mut server, service);
    }
    let mut checks = Vec::new();
    for inner in checkers {
        let host = server.host.as_deref();
        checks.extend(checker(draft, inner, &server.timers, host, known, director));
    }
    server.backend.checks = Some(checks);
    service.weights.push(server.weight);
    service.spec.backends.push(server.backend);
}

fn setting(draft: &mut Draft, statement: &Statement, server: &mut Server, service: &mut Gathered) {
    if server.timers.setting(draft, statement) {
        return;
    }
    let number = statement.number::<u32>();
    let mut limit = |target: &mut u32| {
        *target = number.unwrap_or_default();
        noted(draft, statement, number.is_some(), "a number");
    };
    match statement.name() {
        "weight" => limit(&mut server.weight),
        "uthreshold" => limit(&mut server.backend.max_connections),
        "lthreshold" => limit(&mut server.backend.resume_connections),
        "lvs_method" => {
            server.backend.forwarding = method(statement);
            let is_right = server.backend.forwarding.is_some();
            noted(draft, statement, is_right, "NAT, DR or TUN with its type");
        }
        "virtualhost" => {
            server.host = statement.value().map(str::to_owned);
            statement.note(draft, Class::Same, "");
        }
        "notify_up" => hook(draft, statement, &mut service.backend_hooks[0]),
        "notify_down" => hook(draft, statement, &mut service.backend_hooks[1]),
        "alpha" => of_all(draft, statement, &mut service.is_alpha),
        "inhibit_on_failure" => of_all(draft, statement, &mut service.inhibits),
        _ => statement.note(draft, Class::LeftOut, "no counterpart"),
    }
}

/// A command that the object has once for all its backends.
fn hook(draft: &mut Draft, statement: &Statement, target: &mut Option<String>) {
    let command = statement.value().unwrap_or_default();
    if target.get_or_insert_with(|| command.to_owned()) == command {
        statement.note(draft, Class::Same, "");
    } else {
        statement.note(draft, Class::LeftOut, "one command per object: the first");
    }
}

/// A setting that the object has for all its backends alike.
fn of_all(draft: &mut Draft, statement: &Statement, target: &mut bool) {
    if *target {
        statement.note(draft, Class::Same, "");
    } else {
        *target = true;
        let message = "holds for all backends of the object";
        statement.note(draft, Class::Nearest, message);
    }
}
