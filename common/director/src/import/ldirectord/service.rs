// SPDX-License-Identifier: Apache-2.0

//! `virtual` with its settings and `real` servers.

use std::net::IpAddr;

use portolan_model::Family;

use super::{Options, Setting, Settings, check, real};
use crate::document::{
    ApiVersion, FamilyName, ForwardingDocument, FrontendDocument, HealthDocument, InitialState,
    LoadBalancerDocument, LoadBalancerKind, LoadBalancerSpec, Metadata, Method, OnFailure, Period,
    ProtocolName, SchedulerName, SorryServerDocument,
};
use crate::import::ipvsadm::{netmask, scheduler_flag, socket};
use crate::import::{Class, Draft, Drafted};

/// Settings that have no effect here.
const IGNORED: [&str; 9] = [
    "autoreload",
    "cleanstop",
    "fork",
    "supervised",
    "logfile",
    "execute",
    "monitorfile",
    "readdquiescent",
    "comment",
];

/// Settings of a check, which any level may have.
const OF_CHECKS: [&str; 19] = [
    "checktype",
    "checkinterval",
    "checktimeout",
    "negotiatetimeout",
    "failurecount",
    "checkcount",
    "service",
    "request",
    "receive",
    "checkcommand",
    "checkport",
    "httpmethod",
    "virtualhost",
    "login",
    "passwd",
    "database",
    "secret",
    "smtp",
    "checkretryinterval",
];

/// A setting before the first `virtual`.
pub(super) fn global(
    draft: &mut Draft,
    setting: &Setting,
    defaults: &mut Settings,
    options: Options<'_>,
) {
    match setting.name.as_str() {
        "maintenancedir" => {
            draft.director(options.director).maintenance_directory = Some(setting.value.clone());
            setting.note(draft, Class::Same, "");
        }
        name if IGNORED.contains(&name) => setting.note(draft, Class::Ignored, ""),
        name if is_mail(name) => setting.note(draft, Class::LeftOut, "use metrics and hooks"),
        name if OF_CHECKS.contains(&name)
            || matches!(name, "quiescent" | "fallback" | "fallbackcommand") =>
        {
            setting.note(draft, Class::Same, "");
            defaults.insert(name.to_owned(), setting.value.clone());
        }
        _ => setting.note(draft, Class::LeftOut, "no counterpart"),
    }
}

fn is_mail(name: &str) -> bool {
    name.starts_with("email") || matches!(name, "callback" | "smtp")
}

pub(super) fn read(
    draft: &mut Draft,
    service: &Setting,
    inner: &[Setting],
    defaults: &Settings,
    options: Options<'_>,
) {
    let Some((mut frontend, port)) = frontend(service) else {
        service.note(draft, Class::Error, "expected ADDRESS:PORT or a mark");
        return;
    };
    service.note(draft, Class::Same, "");
    let mut own = Settings::new();
    let mut spec = LoadBalancerSpec {
        // ldirectord's default, unlike ours.
        scheduler: Some(SchedulerName::Wrr),
        ..LoadBalancerSpec::default()
    };
    for setting in inner
        .iter()
        .filter(|setting| !setting.name.starts_with("real"))
    {
        one(draft, setting, &mut spec, &mut frontend, &mut own);
    }
    let settings = check::of_levels(own, defaults);
    if spec.scheduler.is_some_and(SchedulerName::hashes_source) && spec.scheduler_flags.is_none() {
        spec.scheduler_flags = Some(Vec::new());
    }
    let is_udp = frontend.protocol == Some(ProtocolName::Udp);
    let checks = check::checks(draft, service, &settings, port, is_udp, options);
    let is_off = settings.get("checktype").is_some_and(|kind| kind == "off");
    let named = settings.get("service").map(String::as_str);
    spec.frontends = vec![frontend.clone()];
    for setting in inner
        .iter()
        .filter(|setting| setting.name.starts_with("real"))
    {
        let checks = checks.as_deref();
        real::read(draft, setting, &mut spec, checks, named, is_off);
    }
    on_failure(draft, service, &mut spec, &settings);
    fallback(draft, service, &mut spec, &settings, &frontend);
    spec.checks = checks.unwrap_or_default();
    let document = LoadBalancerDocument {
        api_version: ApiVersion::V1Alpha1,
        kind: LoadBalancerKind::LoadBalancer,
        metadata: Metadata {
            name: draft.free_name(&service.value.replace(':', "-")),
            ..Metadata::default()
        },
        spec,
    };
    draft.balancers.push(Drafted {
        document,
        origin: service.origin.clone(),
    });
}

/// The frontend of a `virtual`, with the protocol by its port, and the port.
fn frontend(service: &Setting) -> Option<(FrontendDocument, Option<u16>)> {
    if let Ok(mark) = service.value.parse() {
        let is_v6 = service.name == "virtual6";
        let frontend = FrontendDocument {
            mark: Some(mark),
            family: Some(if is_v6 {
                FamilyName::V6
            } else {
                FamilyName::V4
            }),
            ..FrontendDocument::default()
        };
        return Some((frontend, None));
    }
    let (address, port) = named_socket(&service.value)?;
    let frontend = FrontendDocument {
        addresses: vec![address],
        protocol: (port == Some(53)).then_some(ProtocolName::Udp),
        port: Some(port.unwrap_or(0)),
        ..FrontendDocument::default()
    };
    Some((frontend, port))
}

/// `ADDRESS:PORT`, where well-known ports may have their names.
pub(super) fn named_socket(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let ports = [
        ("http", "80"),
        ("https", "443"),
        ("domain", "53"),
        ("smtp", "25"),
        ("ftp", "21"),
        ("imap", "143"),
        ("imaps", "993"),
        ("pop3", "110"),
        ("pop3s", "995"),
        ("ldap", "389"),
    ];
    let (address, name) = text.rsplit_once(':')?;
    match ports.into_iter().find(|(known, _)| *known == name) {
        Some((_, port)) => socket(&format!("{address}:{port}")),
        None => socket(text),
    }
}

fn one(
    draft: &mut Draft,
    setting: &Setting,
    spec: &mut LoadBalancerSpec,
    frontend: &mut FrontendDocument,
    settings: &mut Settings,
) {
    let value = setting.value.as_str();
    let mut problem = None;
    match setting.name.as_str() {
        "scheduler" => {
            spec.scheduler = SchedulerName::of(value);
            problem = spec
                .scheduler
                .is_none()
                .then(|| format!("unknown scheduler {value:?}"));
        }
        "schedflags" => {
            let flags = value.trim_matches('"').split(',');
            let flags: Option<Vec<_>> = flags.map(|flag| scheduler_flag(flag.trim())).collect();
            problem = flags.is_none().then(|| format!("{value:?}: unknown flag"));
            spec.scheduler_flags = flags;
        }
        "persistent" => {
            let timeout = value.parse().ok().map(Period::seconds);
            problem = timeout
                .is_none()
                .then(|| format!("{value:?}: expected seconds"));
            spec.persistence.get_or_insert_default().timeout = timeout;
        }
        "netmask" => problem = netmask(value, spec.persistence.get_or_insert_default()),
        "ops" => spec.one_packet = value == "yes",
        "protocol" => match (value, frontend.mark) {
            ("fwm", Some(_)) => {}
            ("tcp", None) => frontend.protocol = Some(ProtocolName::Tcp),
            ("udp", None) => frontend.protocol = Some(ProtocolName::Udp),
            _ => {
                problem = Some(format!(
                    "{value:?}: expected tcp or udp, or fwm with a mark"
                ))
            }
        },
        name if IGNORED.contains(&name) => return setting.note(draft, Class::Ignored, ""),
        name if is_mail(name) => {
            return setting.note(draft, Class::LeftOut, "use metrics and hooks");
        }
        name if OF_CHECKS.contains(&name)
            || matches!(name, "quiescent" | "fallback" | "fallbackcommand") =>
        {
            settings.insert(name.to_owned(), value.to_owned());
        }
        _ => return setting.note(draft, Class::LeftOut, "no counterpart"),
    }
    match problem {
        Some(problem) => setting.note(draft, Class::Error, problem),
        None => setting.note(draft, Class::Same, ""),
    }
}

/// Sets the health rules: the action for backends that are down, and their initial state.
fn on_failure(
    draft: &mut Draft,
    service: &Setting,
    spec: &mut LoadBalancerSpec,
    settings: &Settings,
) {
    let quiescent = settings.get("quiescent");
    if quiescent.is_none() {
        let message = "absent: yes, as ldirectord's manual has it; its code removes failed servers";
        draft.note(&service.origin, Class::Nearest, "quiescent", message);
    }
    let removes = quiescent.is_some_and(|value| value == "no");
    spec.health = Some(HealthDocument {
        initial_state: None,
        on_failure: removes.then_some(OnFailure::Remove),
        ..HealthDocument::default()
    });
    if settings.get("checktype").is_some_and(|kind| kind == "on") {
        let health = spec.health.get_or_insert_default();
        health.initial_state = Some(InitialState::Up);
    }
    if spec.health.as_ref() == Some(&HealthDocument::default()) {
        spec.health = None;
    }
}

/// The server that answers while all are down.
fn fallback(
    draft: &mut Draft,
    service: &Setting,
    spec: &mut LoadBalancerSpec,
    settings: &Settings,
    frontend: &FrontendDocument,
) {
    if let Some(fallback) = settings.get("fallback") {
        let mut words = fallback.split_whitespace();
        let found = words
            .next()
            .and_then(|word| named_socket(word).or_else(|| socket(word)));
        let forwarding = words.next().map_or(Some(Method::Direct), method);
        let own = frontend_family(frontend);
        if let (Some((address, _)), Some(own)) = (found, own)
            && Family::of(address) != own
        {
            let message = "fallback is of the other family: left out";
            service.note(draft, Class::LeftOut, message);
        } else if let (Some((address, port)), Some(method)) = (found, forwarding) {
            let translates = translates_ports(method, spec);
            spec.sorry_server = Some(SorryServerDocument {
                address,
                port: port.filter(|_| translates),
                forwarding: forwarding_of(method),
                keep_idle: false,
            });
        } else {
            let message = format!("fallback {fallback:?}: expected a server");
            service.note(draft, Class::Error, message);
        }
    }
    if let Some(command) = settings.get("fallbackcommand") {
        let command = command.trim_matches('"');
        let script = format!(
            "case \"$PORTOLAN_STATE\" in up) {command} stop ;; down) {command} start ;; esac"
        );
        spec.hooks.get_or_insert_default().on_quorum =
            ["/bin/sh", "-c", &script].map(String::from).to_vec();
    }
}

fn frontend_family(frontend: &FrontendDocument) -> Option<Family> {
    let of_mark = frontend.family.map(|family| match family {
        FamilyName::V4 => Family::V4,
        FamilyName::V6 => Family::V6,
    });
    let of_address = frontend
        .addresses
        .first()
        .map(|address| Family::of(*address));
    of_mark.or(of_address)
}

pub(super) fn method(word: &str) -> Option<Method> {
    match word {
        "gate" => Some(Method::Direct),
        "masq" => Some(Method::Masquerade),
        "ipip" => Some(Method::Tunnel),
        _ => None,
    }
}

/// Returns `true` if packets may go to another port. By mark with persistence, IPVS translates no ports.
pub(super) fn translates_ports(method: Method, spec: &LoadBalancerSpec) -> bool {
    let mut frontends = spec.frontends.iter();
    let is_marked = frontends.any(|frontend| frontend.mark.is_some());
    method == Method::Masquerade && !(is_marked && spec.persistence.is_some())
}

pub(super) fn forwarding_of(method: Method) -> Option<ForwardingDocument> {
    (method != Method::Masquerade).then_some(ForwardingDocument {
        method: Some(method),
        tunnel: None,
    })
}
