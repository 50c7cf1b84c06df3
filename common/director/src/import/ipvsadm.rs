// SPDX-License-Identifier: Apache-2.0

//! `ipvsadm -Sn`: one load balancer per service, by the options of `ipvsadm -A` and `-a`.

mod server;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Class, Draft, Drafted, Import, Origin};
use crate::document::{
    ApiVersion, FamilyName, FrontendDocument, LoadBalancerDocument, LoadBalancerKind,
    LoadBalancerSpec, Metadata, Period, PersistenceDocument, PersistenceEngine, ProtocolName,
    SchedulerFlag, SchedulerName,
};
use crate::generation::File;

/// Reads the output of `ipvsadm -Sn`. With `merge`, services that differ in nothing but their
/// addresses and ports become one object.
#[must_use]
pub fn import(file: File<'_>, merge: bool) -> Import {
    let mut draft = Draft::default();
    let whole = Origin::whole(file.name);
    for (setting, message) in [
        ("-x, -y", "ipvsadm saves no thresholds: all are 0 here"),
        ("--set", "ipvsadm saves no timeouts: unchanged here"),
        ("--start-daemon", "ipvsadm saves no sync daemons: none here"),
    ] {
        draft.note(&whole, Class::LeftOut, setting, message);
    }
    read(&mut draft, file, merge);
    draft.finish()
}

/// Reads commands of `ipvsadm`.
pub(super) fn read(draft: &mut Draft, file: File<'_>, merge: bool) {
    let mut services: Vec<Service> = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        let origin = Origin {
            file: file.name.to_owned(),
            line,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = words.strip_prefix(&["ipvsadm"]).unwrap_or(&words);
        match words {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["-A" | "--add-service", options @ ..] => {
                services.extend(service(draft, &origin, options));
            }
            ["-a" | "--add-server", options @ ..] => {
                server::read(draft, &origin, options, &mut services);
            }
            [first, ..] => {
                draft.note(
                    &origin,
                    Class::Error,
                    first,
                    "expected -A or -a, as ipvsadm -Sn prints",
                );
            }
        }
    }
    if merge {
        services = merged(services);
    }
    for service in services {
        let document = service.document(draft);
        draft.balancers.push(Drafted {
            document,
            origin: service.origin,
        });
    }
}

/// A service, with the words that identify it.
struct Service {
    origin: Origin,
    identity: Vec<String>,
    frontend: FrontendDocument,
    name: String,
    spec: LoadBalancerSpec,
}

impl Service {
    fn document(&self, draft: &mut Draft) -> LoadBalancerDocument {
        LoadBalancerDocument {
            api_version: ApiVersion::V1Alpha1,
            kind: LoadBalancerKind::LoadBalancer,
            metadata: Metadata {
                name: draft.free_name(&self.name),
                ..Metadata::default()
            },
            spec: self.spec.clone(),
        }
    }
}

/// Joins services with equal settings and backends.
fn merged(services: Vec<Service>) -> Vec<Service> {
    let mut kept: Vec<Service> = Vec::new();
    for service in services {
        let without_frontends = |spec: &LoadBalancerSpec| LoadBalancerSpec {
            frontends: Vec::new(),
            ..spec.clone()
        };
        let settings = without_frontends(&service.spec);
        match kept
            .iter_mut()
            .find(|other| without_frontends(&other.spec) == settings)
        {
            Some(other) => {
                let mut frontend = service.frontend;
                // Names by default are equal for two addresses with one port.
                frontend.name = Some(super::object_name(&service.name).replace('.', "-"));
                other.spec.frontends.push(frontend);
            }
            None => kept.push(service),
        }
    }
    kept
}

/// The identity of a service among the options: `-t`, `-u`, `--sctp-service` or `-f`.
fn identity(options: &[&str]) -> Option<Vec<String>> {
    let at = options.iter().position(|option| {
        matches!(
            *option,
            "-t" | "--tcp-service"
                | "-u"
                | "--udp-service"
                | "--sctp-service"
                | "-f"
                | "--fwmark-service"
        )
    })?;
    let mut identity = vec![options[at].to_owned(), (*options.get(at + 1)?).to_owned()];
    if options
        .iter()
        .any(|option| matches!(*option, "-6" | "--ipv6"))
    {
        identity.push(String::from("-6"));
    }
    Some(identity)
}

fn service(draft: &mut Draft, origin: &Origin, options: &[&str]) -> Option<Service> {
    let Some((identity, frontend)) =
        identity(options).and_then(|identity| Some((identity.clone(), frontend(&identity)?)))
    else {
        draft.note(
            origin,
            Class::Error,
            "-A",
            "expected -t, -u, --sctp-service or -f and a service",
        );
        return None;
    };
    draft.note(origin, Class::Same, &identity[0], "");
    let mut spec = LoadBalancerSpec {
        frontends: vec![frontend.clone()],
        ..LoadBalancerSpec::default()
    };
    let mut rest = options.iter().copied();
    while let Some(option) = rest.next() {
        service_option(draft, origin, option, &mut rest, &mut spec);
    }
    if spec.scheduler.is_some_and(SchedulerName::hashes_source) && spec.scheduler_flags.is_none() {
        spec.scheduler_flags = Some(Vec::new());
    }
    Some(Service {
        origin: origin.clone(),
        name: identity.join("-").trim_start_matches('-').to_owned(),
        identity,
        frontend,
        spec,
    })
}

fn service_option<'a>(
    draft: &mut Draft,
    origin: &Origin,
    option: &str,
    rest: &mut impl Iterator<Item = &'a str>,
    spec: &mut LoadBalancerSpec,
) {
    let mut value = || rest.next().unwrap_or_default();
    let mut problem = None;
    match option {
        "-t" | "--tcp-service" | "-u" | "--udp-service" | "--sctp-service" | "-f"
        | "--fwmark-service" => {
            value();
            return;
        }
        "-6" | "--ipv6" => {}
        "-s" | "--scheduler" => {
            let name = value();
            spec.scheduler = SchedulerName::of(name);
            if spec.scheduler.is_none() {
                problem = Some(format!("unknown scheduler {name:?}"));
            }
        }
        "-p" | "--persistent" => {
            let seconds = value();
            let timeout = seconds.parse().ok().map(Period::seconds);
            problem = timeout
                .is_none()
                .then(|| format!("{seconds:?}: expected seconds"));
            spec.persistence.get_or_insert_default().timeout = timeout;
        }
        "-M" | "--netmask" => problem = netmask(value(), spec.persistence.get_or_insert_default()),
        "--pe" => match value() {
            "sip" => {
                let persistence = spec.persistence.get_or_insert_default();
                persistence.engine = Some(PersistenceEngine::Sip);
            }
            other => problem = Some(format!("unknown engine {other:?}")),
        },
        "-o" | "--ops" => spec.one_packet = true,
        "-b" | "--sched-flags" => {
            let flags: Option<Vec<_>> = value().split(',').map(scheduler_flag).collect();
            problem = flags.is_none().then(|| String::from("unknown flag"));
            spec.scheduler_flags = flags;
        }
        _ => problem = Some(String::from("unknown option")),
    }
    match problem {
        Some(problem) => draft.note(origin, Class::Error, option, problem),
        None => draft.note(origin, Class::Same, option, ""),
    }
}

pub(super) fn scheduler_flag(name: &str) -> Option<SchedulerFlag> {
    match name {
        "sh-fallback" | "mh-fallback" => Some(SchedulerFlag::Fallback),
        "sh-port" | "mh-port" => Some(SchedulerFlag::Port),
        "flag-1" => Some(SchedulerFlag::Flag1),
        "flag-2" => Some(SchedulerFlag::Flag2),
        "flag-3" => Some(SchedulerFlag::Flag3),
        _ => None,
    }
}

/// A netmask of IPv4 or a prefix length of IPv6; what is wrong with it.
pub(super) fn netmask(text: &str, persistence: &mut PersistenceDocument) -> Option<String> {
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        let bits = u32::from(mask);
        let length = bits.leading_ones();
        if length == 0 || bits.count_ones() != length {
            return Some(format!(
                "{mask} has holes or is empty: no prefix length is equal to it"
            ));
        }
        persistence.ipv4_prefix_length = u8::try_from(length).ok();
        return None;
    }
    match text.parse::<u8>() {
        Ok(length @ 1..=128) => {
            persistence.ipv6_prefix_length = Some(length);
            None
        }
        _ => Some(format!("{text:?}: expected a netmask or a prefix length")),
    }
}

fn frontend(identity: &[String]) -> Option<FrontendDocument> {
    let [kind, value, rest @ ..] = identity else {
        return None;
    };
    if kind == "-f" || kind == "--fwmark-service" {
        return Some(FrontendDocument {
            mark: Some(value.parse().ok()?),
            family: Some(if rest.is_empty() {
                FamilyName::V4
            } else {
                FamilyName::V6
            }),
            ..FrontendDocument::default()
        });
    }
    let (address, port) = socket(value)?;
    Some(FrontendDocument {
        addresses: vec![address],
        protocol: match kind.as_str() {
            "-u" | "--udp-service" => Some(ProtocolName::Udp),
            "--sctp-service" => Some(ProtocolName::Sctp),
            _ => None,
        },
        port: Some(port.unwrap_or(0)),
        ..FrontendDocument::default()
    })
}

/// `ADDRESS[:PORT]`, an IPv6 address in brackets.
pub(super) fn socket(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some((socket.ip(), Some(socket.port())));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok().map(|address| (address, None))
}
