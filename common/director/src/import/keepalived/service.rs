// SPDX-License-Identifier: Apache-2.0

//! `virtual_server` and its `real_server` blocks.

use super::checker::Timers;
use super::{Known, Statement, complete, server};
use crate::document::{
    ApiVersion, FamilyName, ForwardingDocument, FrontendDocument, LoadBalancerDocument,
    LoadBalancerKind, LoadBalancerSpec, Metadata, Method, Period, PersistenceEngine, ProtocolName,
    SchedulerFlag, SchedulerName, SorryServerDocument, TunnelChecksum, TunnelDocument, TunnelKind,
};
use crate::import::ipvsadm::{netmask, scheduler_flag};
use crate::import::{Class, Draft, Drafted};

/// Settings that a service gathers before it becomes an object.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) spec: LoadBalancerSpec,
    pub(super) name: Option<String>,
    pub(super) protocol: Option<ProtocolName>,
    pub(super) family: Option<FamilyName>,
    pub(super) timers: Timers,
    pub(super) virtual_host: Option<String>,
    pub(super) flags: Vec<SchedulerFlag>,
    pub(super) is_alpha: bool,
    pub(super) inhibits: bool,
    pub(super) weights: Vec<u32>,
    pub(super) default_weight: u32,
    pub(super) quorum_hooks: [Option<String>; 2],
    pub(super) backend_hooks: [Option<String>; 2],
    pub(super) is_group: bool,
}

pub(super) fn read(draft: &mut Draft, service: &Statement, known: &Known, director_name: &str) {
    let Some(frontends) = frontends(draft, service, known) else {
        return;
    };
    let mut gathered = Gathered {
        default_weight: 1,
        is_group: service.value() == Some("group"),
        ..Gathered::default()
    };
    gathered.spec.frontends = frontends;
    for statement in &service.block {
        if !matches!(statement.name(), "real_server") {
            setting(draft, statement, &mut gathered, director_name);
        }
    }
    for statement in service
        .block
        .iter()
        .filter(|inner| inner.name() == "real_server")
    {
        server::read(draft, statement, &mut gathered, known, director_name);
    }
    if gathered.spec.backends.is_empty() {
        let message = "no real servers: left out, as keepalived has it";
        service.note(draft, Class::LeftOut, message);
        return;
    }
    let words = service.words[1..].strip_prefix(&[String::from("group")]);
    let identity = words.unwrap_or(&service.words[1..]).join("-");
    let name = gathered.name.clone().unwrap_or(identity);
    let (spec, marks) = complete::complete(draft, service, gathered);
    add(draft, service, &name, spec);
    if let Some(marks) = marks {
        add(draft, service, &format!("{name}-marks"), marks);
    }
}

/// Adds a load balancer of this name, or of the next free one.
fn add(draft: &mut Draft, service: &Statement, name: &str, spec: LoadBalancerSpec) {
    let document = LoadBalancerDocument {
        api_version: ApiVersion::V1Alpha1,
        kind: LoadBalancerKind::LoadBalancer,
        metadata: Metadata {
            name: draft.free_name(name),
            ..Metadata::default()
        },
        spec,
    };
    draft.balancers.push(Drafted {
        document,
        origin: service.origin.clone(),
    });
}

/// `IP PORT`, `fwmark N` or `group NAME`.
fn frontends(
    draft: &mut Draft,
    service: &Statement,
    known: &Known,
) -> Option<Vec<FrontendDocument>> {
    let words: Vec<&str> = service.words[1..].iter().map(String::as_str).collect();
    let found = match words[..] {
        ["group", name] => known.groups.get(name).cloned(),
        ["fwmark", mark, ..] => mark.parse().ok().map(|mark| {
            vec![FrontendDocument {
                mark: Some(mark),
                family: match words.get(2) {
                    Some(&"inet") => Some(FamilyName::V4),
                    Some(&"inet6") => Some(FamilyName::V6),
                    _ => None,
                },
                ..FrontendDocument::default()
            }]
        }),
        [address, ref rest @ ..] => address.parse().ok().and_then(|address| {
            let port = rest.first().map_or(Ok(0), |port| port.parse()).ok()?;
            Some(vec![FrontendDocument {
                addresses: vec![address],
                port: Some(port),
                ..FrontendDocument::default()
            }])
        }),
        [] => None,
    };
    match &found {
        Some(_) => service.note(draft, Class::Same, ""),
        None => service.wrong(
            draft,
            "an address and port, fwmark N, or group and a known name",
        ),
    }
    found
}

/// Notes a setting as the same, or its value as wrong.
pub(super) fn noted(draft: &mut Draft, statement: &Statement, is_right: bool, expected: &str) {
    if is_right {
        statement.note(draft, Class::Same, "");
    } else {
        statement.wrong(draft, expected);
    }
}

fn setting(draft: &mut Draft, statement: &Statement, service: &mut Gathered, director_name: &str) {
    let is_done = service.timers.setting(draft, statement)
        || scheduling(draft, statement, service)
        || quorum(draft, statement, service);
    if is_done {
        return;
    }
    let text = statement.value().map(str::to_owned);
    match statement.name() {
        "lvs_method" | "lb_kind" => {
            let found = method(statement);
            noted(
                draft,
                statement,
                found.is_some(),
                "NAT, DR or TUN with its type",
            );
            service.spec.forwarding = found;
        }
        "protocol" => {
            service.protocol = protocol(statement.value());
            let is_right = service.protocol.is_some();
            noted(draft, statement, is_right, "TCP, UDP or SCTP");
        }
        "ip_family" => {
            service.family = match statement.value() {
                Some("inet") => Some(FamilyName::V4),
                Some("inet6") => Some(FamilyName::V6),
                _ => None,
            };
            noted(draft, statement, service.family.is_some(), "inet or inet6");
        }
        "quorum_up" | "quorum_down" => {
            service.quorum_hooks[usize::from(statement.name() == "quorum_down")] = text;
            noted(draft, statement, statement.value().is_some(), "a command");
        }
        "alpha" => {
            service.is_alpha = true;
            statement.note(draft, Class::Same, "");
        }
        "omega" => statement.note(draft, Class::Ignored, "nothing is removed at stop"),
        "inhibit_on_failure" => {
            service.inhibits = true;
            statement.note(draft, Class::Same, "");
        }
        "ha_suspend" => {
            draft.director(director_name).checks_on_standby = Some(false);
            let difference = "checksOnStandby of all objects, with spec.vips.role: Command";
            statement.note(draft, Class::Nearest, difference);
        }
        "virtualhost" => {
            service.virtual_host = text;
            statement.note(draft, Class::Same, "");
        }
        "snmp_name" => {
            service.name = text;
            statement.note(draft, Class::Same, "");
        }
        "weight" => {
            service.default_weight = statement.number().unwrap_or(1);
            noted(
                draft,
                statement,
                statement.number::<u32>().is_some(),
                "a weight",
            );
        }
        name if name.starts_with("sorry_server") => sorry_server(draft, statement, service),
        _ => statement.note(draft, Class::LeftOut, "no counterpart"),
    }
}

/// Quorum and hysteresis; whether the statement is one of them.
fn quorum(draft: &mut Draft, statement: &Statement, service: &mut Gathered) -> bool {
    match statement.name() {
        "quorum" => {
            let health = service.spec.health.get_or_insert_default();
            health.quorum = statement.number();
            let is_right = health.quorum.is_some();
            noted(draft, statement, is_right, "a weight");
        }
        "hysteresis" => {
            let health = service.spec.health.get_or_insert_default();
            health.hysteresis = statement.number().unwrap_or_default();
            noted(
                draft,
                statement,
                statement.number::<u32>().is_some(),
                "a weight",
            );
        }
        _ => return false,
    }
    true
}

/// Scheduler, its flags and persistence; whether the statement is one of them.
fn scheduling(draft: &mut Draft, statement: &Statement, service: &mut Gathered) -> bool {
    let spec = &mut service.spec;
    match statement.name() {
        "lvs_sched" | "lb_algo" => {
            spec.scheduler = statement.value().and_then(SchedulerName::of);
            let is_right = spec.scheduler.is_some();
            noted(draft, statement, is_right, "a scheduler of the kernel");
        }
        "ops" => {
            spec.one_packet = true;
            statement.note(draft, Class::Same, "");
        }
        "hashed" => statement.note(draft, Class::Ignored, ""),
        "persistence_timeout" => {
            let seconds = statement.value().map_or(Ok(360), str::parse::<u64>);
            if seconds == Ok(0) {
                // keepalived complains about it and goes on without.
                let message = "0: no persistence, as keepalived has it";
                statement.note(draft, Class::Nearest, message);
                return true;
            }
            noted(draft, statement, seconds.is_ok(), "seconds");
            let timeout = seconds.ok().map(Period::seconds);
            spec.persistence.get_or_insert_default().timeout = timeout;
        }
        "persistence_granularity" => {
            let persistence = spec.persistence.get_or_insert_default();
            match netmask(statement.value().unwrap_or_default(), persistence) {
                None if service.is_group => {
                    let message = "in force here: keepalived forgets it for a group";
                    statement.note(draft, Class::Nearest, message);
                }
                None => statement.note(draft, Class::Same, ""),
                Some(problem) => statement.note(draft, Class::Error, problem),
            }
        }
        "persistence_engine" => {
            let is_sip = statement.value() == Some("sip");
            noted(draft, statement, is_sip, "sip");
            spec.persistence.get_or_insert_default().engine =
                is_sip.then_some(PersistenceEngine::Sip);
        }
        name => {
            let Some(flag) = scheduler_flag(name) else {
                return false;
            };
            service.flags.push(flag);
            statement.note(draft, Class::Same, "");
        }
    }
    true
}

fn protocol(name: Option<&str>) -> Option<ProtocolName> {
    match name?.to_ascii_uppercase().as_str() {
        "TCP" => Some(ProtocolName::Tcp),
        "UDP" => Some(ProtocolName::Udp),
        "SCTP" => Some(ProtocolName::Sctp),
        _ => None,
    }
}

/// `NAT`, `DR`, `TUN [type ipip | gue port N [csum] | gre [csum]]`.
pub(super) fn method(statement: &Statement) -> Option<ForwardingDocument> {
    let mut forwarding = ForwardingDocument {
        method: Some(match statement.value()? {
            "NAT" => Method::Masquerade,
            "DR" => Method::Direct,
            "TUN" => Method::Tunnel,
            _ => return None,
        }),
        tunnel: None,
    };
    let mut words = statement.words.iter().skip(2);
    while let Some(word) = words.next() {
        let tunnel: &mut TunnelDocument = forwarding.tunnel.get_or_insert_default();
        match word.as_str() {
            "type" => {
                tunnel.kind = Some(match words.next()?.as_str() {
                    "ipip" => TunnelKind::Ipip,
                    "gue" => TunnelKind::Gue,
                    "gre" => TunnelKind::Gre,
                    _ => return None,
                });
            }
            "port" => tunnel.port = Some(words.next()?.parse().ok()?),
            "nocsum" => tunnel.checksum = Some(TunnelChecksum::None),
            "csum" => tunnel.checksum = Some(TunnelChecksum::Full),
            "remcsum" => tunnel.checksum = Some(TunnelChecksum::Remote),
            _ => return None,
        }
    }
    Some(forwarding)
}

fn sorry_server(draft: &mut Draft, statement: &Statement, service: &mut Gathered) {
    let nearest = "the others go to weight 0 instead of away";
    match (statement.name(), &mut service.spec.sorry_server) {
        ("sorry_server", sorry) => {
            let address = statement.value().and_then(|text| text.parse().ok());
            let port = statement.words.get(2).map(|text| text.parse::<u16>());
            match (address, port.transpose()) {
                (Some(address), Ok(port)) => {
                    statement.note(draft, Class::Nearest, nearest);
                    let before = sorry.take();
                    *sorry = Some(SorryServerDocument {
                        address,
                        port: port.filter(|port| *port != 0),
                        forwarding: before.as_ref().and_then(|sorry| sorry.forwarding.clone()),
                        keep_idle: before.is_some_and(|sorry| sorry.keep_idle),
                    });
                }
                _ => statement.wrong(draft, "an address and a port"),
            }
        }
        ("sorry_server_inhibit", Some(sorry)) => {
            sorry.keep_idle = true;
            statement.note(draft, Class::Nearest, "keepIdle");
        }
        ("sorry_server_lvs_method", Some(sorry)) => {
            sorry.forwarding = method(statement);
            let is_right = sorry.forwarding.is_some();
            noted(draft, statement, is_right, "NAT, DR or TUN with its type");
        }
        _ => statement.note(draft, Class::Error, "expected after sorry_server"),
    }
}
