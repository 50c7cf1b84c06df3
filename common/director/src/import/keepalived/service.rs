// SPDX-License-Identifier: Apache-2.0

//! `virtual_server` and its `real_server` blocks.

use super::checker::{Timers, checker};
use super::{Known, Statement};
use crate::document::{
    ApiVersion, BackendDocument, CheckDocument, FamilyName, ForwardingDocument, FrontendDocument,
    HealthDocument, InitialState, LoadBalancerDocument, LoadBalancerKind, LoadBalancerSpec,
    Metadata, Method, OnFailure, Period, PersistenceEngine, ProtocolName, SchedulerFlag,
    SchedulerName, SorryServerDocument, TunnelChecksum, TunnelDocument, TunnelKind,
};
use crate::import::ipvsadm::{netmask, scheduler_flag};
use crate::import::{Class, Draft, Drafted};

/// What a service gathers before it becomes an object.
#[derive(Default)]
struct Gathered {
    spec: LoadBalancerSpec,
    name: Option<String>,
    protocol: Option<ProtocolName>,
    family: Option<FamilyName>,
    timers: Timers,
    virtual_host: Option<String>,
    flags: Vec<SchedulerFlag>,
    is_alpha: bool,
    inhibits: bool,
    weights: Vec<u32>,
    default_weight: u32,
    quorum_hooks: [Option<String>; 2],
    backend_hooks: [Option<String>; 2],
}

pub(super) fn read(draft: &mut Draft, service: &Statement, known: &Known, director_name: &str) {
    let Some(frontends) = frontends(draft, service, known) else {
        return;
    };
    let mut gathered = Gathered {
        default_weight: 1,
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
        real_server(draft, statement, &mut gathered, known, director_name);
    }
    complete(draft, service, &mut gathered);
    let words = service.words[1..].strip_prefix(&[String::from("group")]);
    let identity = words.unwrap_or(&service.words[1..]).join("-");
    let wanted = gathered.name.clone().unwrap_or(identity);
    let document = LoadBalancerDocument {
        api_version: ApiVersion::V1Alpha1,
        kind: LoadBalancerKind::LoadBalancer,
        metadata: Metadata {
            name: draft.free_name(&wanted),
            ..Metadata::default()
        },
        spec: gathered.spec,
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
fn noted(draft: &mut Draft, statement: &Statement, is_right: bool, expected: &str) {
    if is_right {
        statement.note(draft, Class::Same, "");
    } else {
        statement.wrong(draft, expected);
    }
}

fn setting(draft: &mut Draft, statement: &Statement, service: &mut Gathered, director_name: &str) {
    if service.timers.setting(draft, statement) || scheduling(draft, statement, service) {
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
            statement.note(draft, Class::Same, "");
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
            let seconds = statement.value().map_or(Ok(360), str::parse);
            noted(draft, statement, seconds.is_ok(), "seconds");
            let timeout = seconds.ok().map(Period::seconds);
            spec.persistence.get_or_insert_default().timeout = timeout;
        }
        "persistence_granularity" => {
            let persistence = spec.persistence.get_or_insert_default();
            match netmask(statement.value().unwrap_or_default(), persistence) {
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
fn method(statement: &Statement) -> Option<ForwardingDocument> {
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

fn real_server(
    draft: &mut Draft,
    server: &Statement,
    service: &mut Gathered,
    known: &Known,
    director_name: &str,
) {
    let address = server.value().and_then(|text| text.parse().ok());
    let port = server
        .words
        .get(2)
        .map(|text| text.parse::<u16>())
        .transpose();
    let (Some(address), Ok(port)) = (address, port) else {
        server.wrong(draft, "an address and a port");
        return;
    };
    server.note(draft, Class::Same, "");
    let mut backend = BackendDocument {
        name: None,
        address,
        port: port.filter(|port| *port != 0),
        weight: None,
        max_connections: 0,
        resume_connections: 0,
        forwarding: None,
        checks: None,
        administrative_state: None,
    };
    let mut weight = service.default_weight;
    let mut timers = service.timers.clone();
    let mut host = service.virtual_host.clone();
    for statement in server.block.iter().filter(|inner| inner.block.is_empty()) {
        if timers.setting(draft, statement) {
            continue;
        }
        match statement.name() {
            "weight" => {
                weight = statement.number().unwrap_or(1);
                noted(
                    draft,
                    statement,
                    statement.number::<u32>().is_some(),
                    "a weight",
                );
            }
            "uthreshold" | "lthreshold" => {
                let number = statement.number();
                noted(
                    draft,
                    statement,
                    number.is_some(),
                    "a number of connections",
                );
                let number = number.unwrap_or_default();
                match statement.name() {
                    "uthreshold" => backend.max_connections = number,
                    _ => backend.resume_connections = number,
                }
            }
            "lvs_method" => {
                backend.forwarding = method(statement);
                let is_right = backend.forwarding.is_some();
                noted(draft, statement, is_right, "NAT, DR or TUN with its type");
            }
            "virtualhost" => {
                host = statement.value().map(str::to_owned);
                statement.note(draft, Class::Same, "");
            }
            "notify_up" | "notify_down" => {
                let hook = statement.value().map(str::to_owned);
                let slot = usize::from(statement.name() == "notify_down");
                let target = &mut service.backend_hooks[slot];
                let differs = target.is_some() && *target != hook;
                target.get_or_insert(hook.unwrap_or_default());
                if differs {
                    statement.note(draft, Class::LeftOut, "one command per object: the first");
                } else {
                    statement.note(draft, Class::Same, "");
                }
            }
            "alpha" | "inhibit_on_failure" => {
                let target = match statement.name() {
                    "alpha" => &mut service.is_alpha,
                    _ => &mut service.inhibits,
                };
                let message = if *target {
                    ""
                } else {
                    "holds for all backends of the object"
                };
                let class = if *target { Class::Same } else { Class::Nearest };
                *target = true;
                statement.note(draft, class, message);
            }
            // A checker without settings is a line without a block.
            name if name.ends_with("_CHECK") || name.ends_with("_GET") => {}
            _ => statement.note(draft, Class::LeftOut, "no counterpart"),
        }
    }
    let mut checks: Vec<CheckDocument> = Vec::new();
    for statement in &server.block {
        if statement.name().ends_with("_CHECK") || statement.name().ends_with("_GET") {
            checks.extend(checker(
                draft,
                statement,
                &timers,
                host.as_deref(),
                known,
                director_name,
            ));
        } else if !statement.block.is_empty() {
            statement.note(draft, Class::LeftOut, "no counterpart");
        }
    }
    backend.checks = Some(checks);
    service.weights.push(weight);
    service.spec.backends.push(backend);
}

/// What follows from all settings together.
fn complete(draft: &mut Draft, service: &Statement, gathered: &mut Gathered) {
    let spec = &mut gathered.spec;
    for frontend in &mut spec.frontends {
        if frontend.mark.is_some() {
            frontend.family = frontend.family.or(gathered.family);
        } else {
            frontend.protocol = Some(gathered.protocol.unwrap_or(ProtocolName::Udp));
        }
    }
    if gathered.protocol.is_none() && spec.frontends.iter().any(|one| one.mark.is_none()) {
        draft.note(
            &service.origin,
            Class::Nearest,
            "protocol",
            "absent: UDP, as keepalived has it",
        );
    }
    if spec.scheduler.is_some_and(SchedulerName::hashes_source) || !gathered.flags.is_empty() {
        spec.scheduler_flags = Some(gathered.flags.clone());
    }
    weights(draft, service, gathered);
    ports(draft, service, &mut gathered.spec);
    let spec = &mut gathered.spec;
    let health: &mut HealthDocument = spec.health.get_or_insert_default();
    if !gathered.is_alpha {
        health.initial_state = Some(InitialState::Up);
    }
    if !gathered.inhibits {
        health.on_failure = Some(OnFailure::Remove);
    }
    if spec.health.as_ref() == Some(&HealthDocument::default()) {
        spec.health = None;
    }
    let hooks = spec.hooks.get_or_insert_default();
    hooks.on_quorum = hook(&gathered.quorum_hooks);
    hooks.on_backend = hook(&gathered.backend_hooks);
    if hooks.on_quorum.is_empty() && hooks.on_backend.is_empty() {
        spec.hooks = None;
    }
    share_checks(spec);
}

/// Weights above the most that there is are scaled, all of them alike.
fn weights(draft: &mut Draft, service: &Statement, gathered: &mut Gathered) {
    let most = gathered.weights.iter().copied().max().unwrap_or_default();
    let limit = u32::from(u16::MAX);
    if most > limit {
        let message = format!("{most} is above {limit}: all weights are scaled");
        draft.note(&service.origin, Class::Nearest, "weight", message);
    }
    for (backend, weight) in gathered.spec.backends.iter_mut().zip(&gathered.weights) {
        let scaled = if most > limit {
            (u64::from(*weight) * u64::from(limit)).div_ceil(u64::from(most))
        } else {
            u64::from(*weight)
        };
        backend.weight = u16::try_from(scaled).ok().filter(|weight| *weight != 1);
    }
}

/// keepalived silently gives servers that it does not masquerade the frontend's port.
fn ports(draft: &mut Draft, service: &Statement, spec: &mut LoadBalancerSpec) {
    let inherited = spec
        .forwarding
        .as_ref()
        .and_then(|forwarding| forwarding.method);
    let wanted = spec.frontends.first().and_then(|frontend| frontend.port);
    let is_one = spec
        .frontends
        .iter()
        .all(|frontend| frontend.port == wanted);
    for backend in &mut spec.backends {
        let own = backend
            .forwarding
            .as_ref()
            .and_then(|forwarding| forwarding.method);
        let masquerades = own
            .or(inherited)
            .is_none_or(|method| method == Method::Masquerade);
        if !masquerades && backend.port.is_some() {
            if backend.port != wanted {
                let message = format!("{}: its port became the frontend's", backend.address);
                draft.note(&service.origin, Class::Nearest, "real_server", message);
            }
            let checked = backend.port.take();
            if !is_one || checked != wanted {
                for check in backend
                    .checks
                    .iter_mut()
                    .flatten()
                    .filter(|check| has_port(check))
                {
                    check.port = check.port.or(checked);
                }
            }
        }
    }
}

/// Whether a check connects to a port.
fn has_port(check: &CheckDocument) -> bool {
    check.icmp.is_none() && check.exec.is_none() && check.file.is_none()
}

/// One program for both changes, which tells them apart by its environment.
fn hook(commands: &[Option<String>; 2]) -> Vec<String> {
    let cases: Vec<String> = ["up", "down"]
        .iter()
        .zip(commands)
        .filter_map(|(state, command)| Some(format!("{state}) {} ;;", command.as_ref()?)))
        .collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let script = format!("case \"$PORTOLAN_STATE\" in {} esac", cases.join(" "));
    ["/bin/sh", "-c", &script].map(String::from).to_vec()
}

/// Checks that all backends have alike become the object's.
fn share_checks(spec: &mut LoadBalancerSpec) {
    let first = spec
        .backends
        .first()
        .and_then(|backend| backend.checks.clone());
    if spec.backends.iter().all(|backend| backend.checks == first) {
        spec.checks = first.unwrap_or_default();
        for backend in &mut spec.backends {
            backend.checks = None;
        }
    }
}
