// SPDX-License-Identifier: Apache-2.0

//! The check of a service: `checktype` and `service`, with their settings.

use super::{Options, Setting, Settings};
use crate::document::{
    CheckDocument, DnsDocument, ExecDocument, HttpDocument, IcmpDocument, Period, StepDocument,
    TcpDocument, TlsDocument,
};
use crate::import::{Class, Draft, smtp_steps};

/// Services by their ports.
const PORTS: [(u16, &str); 18] = [
    (21, "ftp"),
    (25, "smtp"),
    (53, "dns"),
    (80, "http"),
    (110, "pop"),
    (119, "nntp"),
    (143, "imap"),
    (389, "ldap"),
    (443, "https"),
    (587, "submission"),
    (636, "ldaps"),
    (993, "imaps"),
    (995, "pops"),
    (1521, "oracle"),
    (1812, "radius"),
    (3306, "mysql"),
    (5060, "sip"),
    (5432, "pgsql"),
];

/// Sets `a` and `p` to the virtual address and its port, or to the mark and nothing, and `r` to the real server's
/// address, in a shell. IPv6 addresses are in brackets, as ldirectord passes them.
const PLACE: &str = "f=${PORTOLAN_FRONTEND#*/}; \
     case $f in *:*) a=${f%:*} p=${f##*:} ;; *) a=${f%%/*} p= ;; esac; \
     case $PORTOLAN_ADDRESS in *:*) r=[$PORTOLAN_ADDRESS] ;; *) r=$PORTOLAN_ADDRESS ;; esac";

/// Result of the import of a negotiation.
enum Negotiation {
    /// A check with the same meaning.
    Same(Box<CheckDocument>),
    /// A check of the greeting alone.
    Greeting(&'static str, bool),
    /// Nothing.
    None,
}

/// The checks of a service; `None` if a problem was noted.
pub(super) fn checks(
    draft: &mut Draft,
    service: &Setting,
    settings: &Settings,
    port: Option<u16>,
    is_udp: bool,
    options: Options<'_>,
) -> Option<Vec<CheckDocument>> {
    let kind = settings
        .get("checktype")
        .map_or("negotiate", String::as_str);
    let external = |command: &str| {
        // Its four arguments: virtual address and port, real address and port.
        let script = format!("{PLACE}; exec {command} \"$a\" \"$p\" \"$r\" \"$PORTOLAN_PORT\"");
        CheckDocument {
            exec: Some(ExecDocument {
                command: ["/bin/sh", "-c", &script].map(String::from).to_vec(),
                weight_from: None,
            }),
            ..CheckDocument::default()
        }
    };
    let mut found = match kind {
        "on" | "off" => return Some(Vec::new()),
        "connect" if is_udp => vec![icmp()],
        "ping" => vec![icmp()],
        "connect" => vec![tcp(Vec::new())],
        "external" => match settings.get("checkcommand") {
            Some(command) => vec![external(command.trim_matches('"'))],
            None => {
                service.note(
                    draft,
                    Class::Error,
                    "checktype external: expected checkcommand",
                );
                return None;
            }
        },
        "negotiate" => negotiated(draft, service, settings, port, options)?,
        number if number.parse::<u32>().is_ok() => {
            let message = "checktype N: a connection and a negotiation, both every time";
            service.note(draft, Class::Nearest, message);
            let mut checks = vec![tcp(Vec::new())];
            checks.extend(negotiated(draft, service, settings, port, options)?);
            checks
        }
        other => {
            let expected = "expected negotiate, connect, ping, external, on, off or a number";
            return unsupported(
                draft,
                service,
                options,
                &format!("checktype {other}: {expected}"),
            );
        }
    };
    for check in &mut found {
        timers(check, settings, kind);
    }
    Some(found)
}

/// The settings of a virtual and, where it has none, those of the file. At each level, a timeout that is absent is
/// the other one of that level, as in ldirectord.
pub(super) fn of_levels(mut own: Settings, file: &Settings) -> Settings {
    let mut settings = file.clone();
    let [check, negotiate] = ["checktimeout", "negotiatetimeout"];
    for level in [&mut settings, &mut own] {
        for (absent, other) in [(check, negotiate), (negotiate, check)] {
            if let Some(value) = level.get(other).cloned() {
                level.entry(absent.to_owned()).or_insert(value);
            }
        }
    }
    settings.extend(own);
    settings
}

fn timers(check: &mut CheckDocument, settings: &Settings, kind: &str) {
    let number = |name: &str| settings.get(name).and_then(|text| text.parse::<u64>().ok());
    let timeout = if matches!(kind, "negotiate") || kind.parse::<u32>().is_ok() {
        number("negotiatetimeout").unwrap_or(30)
    } else {
        number("checktimeout").unwrap_or(5)
    };
    let interval = number("checkinterval").unwrap_or(10);
    let failures = match kind {
        "ping" | "connect" => number("failurecount").or(number("checkcount")),
        _ => number("failurecount"),
    };
    check.interval = Some(Period::seconds(interval));
    check.fast_interval = check.interval;
    check.timeout = Some(Period::seconds(timeout));
    check.fall = Some(
        failures
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(1)
            .max(1),
    );
    check.rise = Some(1);
    if has_port(check) {
        check.port = number("checkport").and_then(|port| u16::try_from(port).ok());
    }
}

/// Returns `true` if a check goes to a port.
pub(super) fn has_port(check: &CheckDocument) -> bool {
    check.icmp.is_none() && check.exec.is_none()
}

/// The check that a service's name stands for; by its port if there is none.
fn negotiated(
    draft: &mut Draft,
    service: &Setting,
    settings: &Settings,
    port: Option<u16>,
    options: Options<'_>,
) -> Option<Vec<CheckDocument>> {
    let name = settings
        .get("service")
        .map_or_else(|| by_port(port), String::as_str);
    match negotiation(name, settings) {
        Negotiation::Same(check) => Some(vec![*check]),
        Negotiation::Greeting(expect, is_tls) => {
            service.note(
                draft,
                Class::Nearest,
                format!("service {name}: only its greeting"),
            );
            let greeting = Some(greeting(expect)).filter(|_| !expect.is_empty());
            let mut check = tcp(greeting.into_iter().collect());
            if is_tls {
                check.tcp = None;
                check.tls = Some(TlsDocument::default());
            }
            Some(vec![check])
        }
        Negotiation::None if name == "none" => Some(vec![tcp(Vec::new())]),
        Negotiation::None => unsupported(
            draft,
            service,
            options,
            &format!("service {name}: no such check"),
        ),
    }
}

/// An error or, if a part is enough, a check that fails, so that nobody takes it for a good one.
fn unsupported(
    draft: &mut Draft,
    service: &Setting,
    options: Options<'_>,
    message: &str,
) -> Option<Vec<CheckDocument>> {
    if !options.allow_partial {
        service.note(draft, Class::Error, message);
        return None;
    }
    service.note(
        draft,
        Class::LeftOut,
        format!("{message}: a check that fails"),
    );
    let command = vec![String::from("/bin/false")];
    let exec = ExecDocument {
        command,
        weight_from: None,
    };
    Some(vec![CheckDocument {
        exec: Some(exec),
        ..CheckDocument::default()
    }])
}

fn by_port(port: Option<u16>) -> &'static str {
    let mut known = PORTS.into_iter();
    let found = known.find(|(known, _)| Some(*known) == port);
    found.map_or("none", |(_, service)| service)
}

/// The port of a service that has one.
pub(super) fn port_of(service: &str) -> Option<u16> {
    let mut known = PORTS.into_iter();
    let found = known.find(|(_, known)| *known == service);
    found.map(|(port, _)| port)
}

fn negotiation(service: &str, settings: &Settings) -> Negotiation {
    let text = |name: &str| {
        settings
            .get(name)
            .map(|text| text.trim_matches('"').to_owned())
    };
    let request = text("request");
    let receive = text("receive");
    match service {
        "http" | "https" => Negotiation::Same(Box::new(CheckDocument {
            http: Some(HttpDocument {
                method: text("httpmethod").filter(|method| method != "GET"),
                path: request.as_deref().map(path),
                host: text("virtualhost"),
                body_regex: receive,
                tls: (service == "https").then(TlsDocument::default),
                ..HttpDocument::default()
            }),
            ..CheckDocument::default()
        })),
        "dns" => {
            let answer = receive.and_then(|text| text.parse().ok());
            Negotiation::Same(Box::new(CheckDocument {
                dns: Some(DnsDocument {
                    name: request,
                    record_type: Some(String::from("A")),
                    answers: answer.into_iter().collect(),
                    ..DnsDocument::default()
                }),
                ..CheckDocument::default()
            }))
        }
        "smtp" | "submission" => {
            let steps = smtp_steps(String::from("EHLO localhost\r\n"));
            Negotiation::Same(Box::new(tcp(steps)))
        }
        "simpletcp" => Negotiation::Same(Box::new(tcp(vec![StepDocument {
            send: request.as_deref().map(unescaped),
            expect: receive,
            ..StepDocument::default()
        }]))),
        "ftp" => Negotiation::Greeting("^220", false),
        "imap" => Negotiation::Greeting("^\\* OK", false),
        "pop" => Negotiation::Greeting("^\\+OK", false),
        "nntp" => Negotiation::Greeting("^20[01]", false),
        "sip" => Negotiation::Greeting("", false),
        "imaps" | "pops" => Negotiation::Greeting("", true),
        _ => Negotiation::None,
    }
}

/// A request as a path, which ldirectord lets begin without a slash.
pub(super) fn path(request: &str) -> String {
    format!("/{}", request.trim_start_matches('/'))
}

/// A request with its signs for the ends of lines in their places.
pub(super) fn unescaped(request: &str) -> String {
    request.replace("\\n", "\n").replace("\\r", "\r")
}

fn icmp() -> CheckDocument {
    CheckDocument {
        icmp: Some(IcmpDocument {}),
        ..CheckDocument::default()
    }
}

fn tcp(steps: Vec<StepDocument>) -> CheckDocument {
    CheckDocument {
        tcp: Some(TcpDocument { steps }),
        ..CheckDocument::default()
    }
}

/// The first step of a conversation, in which the server speaks.
fn greeting(expect: &str) -> StepDocument {
    StepDocument {
        expect: Some(expect.to_owned()),
        ..StepDocument::default()
    }
}
