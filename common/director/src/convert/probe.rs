// SPDX-License-Identifier: Apache-2.0

//! The kinds of health checks.

use portolan_model::check::{
    AgentProbe, DnsProbe, ExecProbe, FileProbe, GrpcProbe, HttpProbe, HttpVersion, Probe, Step,
    TcpProbe, UdpProbe, WeightFrom,
};

use super::tls::{offers_http2, tls};
use super::{Findings, host, program, regex};
use crate::document::{
    AgentDocument, CheckDocument, DnsDocument, ExecDocument, FileDocument, GrpcDocument,
    HttpDocument, HttpVersionName, StatusDocument, StepDocument, TcpDocument, UdpDocument,
    WeightSource,
};
use crate::problem::alternatives;
use crate::read::Path;

/// Names of DNS response codes, by number (RFC 6895, section 2.3).
pub(crate) const RCODES: [&str; 11] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET",
    "NXRRSET", "NOTAUTH", "NOTZONE",
];

/// Record types that a question can have, besides `TYPE` and a number.
const RECORD_TYPES: [&str; 18] = [
    "A", "AAAA", "ANY", "CAA", "CNAME", "DNSKEY", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR",
    "RRSIG", "SOA", "SRV", "SVCB", "TLSA", "TXT",
];

/// The longest payload of UDP over IPv4, in bytes.
const MOST_PAYLOAD: usize = 65_507;

/// The one probe of a check.
pub(super) fn probe(findings: &mut Findings, path: &Path, document: &CheckDocument) -> Probe {
    let kinds: Vec<(&str, Probe)> = [
        document
            .tcp
            .as_ref()
            .map(|d| ("tcp", Probe::Tcp(tcp(findings, &path.field("tcp"), d)))),
        document
            .tls
            .as_ref()
            .map(|d| ("tls", Probe::Tls(tls(findings, &path.field("tls"), d)))),
        document.http.as_ref().map(|d| {
            (
                "http",
                Probe::Http(Box::new(http(findings, &path.field("http"), d))),
            )
        }),
        document
            .udp
            .as_ref()
            .map(|d| ("udp", Probe::Udp(udp(findings, &path.field("udp"), d)))),
        document
            .dns
            .as_ref()
            .map(|d| ("dns", Probe::Dns(dns(findings, &path.field("dns"), d)))),
        document
            .grpc
            .as_ref()
            .map(|d| ("grpc", Probe::Grpc(grpc(findings, &path.field("grpc"), d)))),
        document.icmp.as_ref().map(|_| ("icmp", Probe::Icmp)),
        document
            .exec
            .as_ref()
            .map(|d| ("exec", Probe::Exec(exec(findings, &path.field("exec"), d)))),
        document
            .agent
            .as_ref()
            .map(|d| ("agent", Probe::Agent(agent(d)))),
        document
            .file
            .as_ref()
            .map(|d| ("file", Probe::File(file(d)))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if kinds.len() != 1 {
        let message = if kinds.is_empty() {
            String::from(
                "has no kind: expected one of tcp, tls, http, udp, dns, grpc, icmp, exec, agent and file",
            )
        } else {
            let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
            format!("has the kinds {}: expected one kind", names.join(", "))
        };
        findings.error(path, message);
    }
    let first = kinds.into_iter().next();
    first.map_or(Probe::Icmp, |(_, probe)| probe)
}

fn tcp(findings: &mut Findings, path: &Path, document: &TcpDocument) -> TcpProbe {
    let steps = document.steps.iter().enumerate();
    let steps =
        steps.map(|(index, document)| step(findings, &path.field("steps").item(index), document));
    TcpProbe {
        steps: steps.collect(),
    }
}

fn step(findings: &mut Findings, path: &Path, document: &StepDocument) -> Step {
    if document.send.is_some() && document.send_hex.is_some() {
        findings.error(path, "has send and sendHex: expected one of them");
    }
    if document == &StepDocument::default() {
        findings.error(path, "does nothing: expected send, sendHex or expect");
    }
    if let Some(pattern) = &document.expect {
        regex(findings, &path.field("expect"), pattern);
    }
    let text = document.send.as_ref().map(|text| text.clone().into_bytes());
    Step {
        send: text.or_else(|| document.send_hex.as_deref().map(bytes)),
        expect: document.expect.clone(),
    }
}

fn http(findings: &mut Findings, path: &Path, document: &HttpDocument) -> HttpProbe {
    let default = HttpProbe::default();
    for (name, pattern) in [
        ("bodyRegex", &document.body_regex),
        ("bodyNotRegex", &document.body_not_regex),
    ] {
        if let Some(pattern) = pattern {
            regex(findings, &path.field(name), pattern);
        }
    }
    for (index, header) in document.expect_headers.iter().enumerate() {
        let path = path.field("expectHeaders").item(index).field("regex");
        regex(findings, &path, &header.regex);
    }
    if let Some(text) = &document.host {
        let tls = document.tls.as_ref();
        let names_server = tls.is_some_and(|tls| tls.server_name.is_none());
        host::host(findings, &path.field("host"), text, names_server);
    }
    if let (Some(HttpVersionName::Http2), Some(tls)) = (document.version, &document.tls) {
        offers_http2(findings, &path.field("tls"), tls);
    }
    let pairs = document
        .headers
        .iter()
        .map(|h| (h.name.clone(), h.value.clone()));
    let expected = document
        .expect_headers
        .iter()
        .map(|h| (h.name.clone(), h.regex.clone()));
    HttpProbe {
        method: document.method.clone().unwrap_or(default.method),
        path: document.path.clone().unwrap_or(default.path),
        host: document.host.clone(),
        version: match document.version {
            Some(HttpVersionName::Http10) => HttpVersion::Http10,
            None | Some(HttpVersionName::Http11) => HttpVersion::Http11,
            Some(HttpVersionName::Http2) => HttpVersion::Http2,
        },
        statuses: statuses(findings, path, document).unwrap_or(default.statuses),
        headers: pairs.collect(),
        expect_headers: expected.collect(),
        body_regex: document.body_regex.clone(),
        body_not_regex: document.body_not_regex.clone(),
        body_md5: document
            .body_md5
            .as_deref()
            .and_then(|text| bytes(text).try_into().ok()),
        tls: document
            .tls
            .as_ref()
            .map(|document| tls(findings, &path.field("tls"), document)),
    }
}

fn statuses(
    findings: &mut Findings,
    path: &Path,
    document: &HttpDocument,
) -> Option<Vec<(u16, u16)>> {
    let mut ranges = Vec::new();
    for (index, status) in document.statuses.as_ref()?.iter().enumerate() {
        let range = match status {
            StatusDocument::Code(code) => (*code, *code),
            StatusDocument::Range(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                // The schema has made sure that both are numbers.
                (
                    first.parse().unwrap_or_default(),
                    last.parse().unwrap_or_default(),
                )
            }
        };
        if range.0 > range.1 {
            let message = format!("{}-{}: expected the lower code first", range.0, range.1);
            findings.error(&path.field("statuses").item(index), message);
        }
        ranges.push(range);
    }
    Some(ranges)
}

fn udp(findings: &mut Findings, path: &Path, document: &UdpDocument) -> UdpProbe {
    let default = UdpProbe::default();
    let probe = UdpProbe {
        payload: document
            .payload_hex
            .as_deref()
            .map(bytes)
            .unwrap_or_default(),
        require_reply: document.require_reply,
        expect: document
            .expect_hex
            .as_deref()
            .map(nibbles)
            .unwrap_or_default(),
        min_length: document.min_length.unwrap_or(default.min_length),
        max_length: document.max_length.unwrap_or(default.max_length),
    };
    let expected = probe.expect.len() / 2;
    if expected > usize::from(probe.max_length) {
        let message = format!(
            "{expected} bytes are more than maxLength {}: expected at most that",
            probe.max_length
        );
        findings.error(&path.field("expectHex"), message);
    }
    if probe.payload.len() > MOST_PAYLOAD {
        let message = format!(
            "{} bytes do not fit a datagram: expected at most {MOST_PAYLOAD}",
            probe.payload.len()
        );
        findings.error(&path.field("payloadHex"), message);
    }
    if probe.min_length > probe.max_length {
        let message = format!(
            "{} is more than maxLength {}: expected at most that",
            probe.min_length, probe.max_length
        );
        findings.error(&path.field("minLength"), message);
    }
    probe
}

fn dns(findings: &mut Findings, path: &Path, document: &DnsDocument) -> DnsProbe {
    let default = DnsProbe::default();
    if let Some(name) = &document.name {
        host::question(findings, &path.field("name"), name);
    }
    let record_type = document.record_type.clone().unwrap_or(default.record_type);
    let by_number = record_type.strip_prefix("TYPE");
    let is_number = by_number.is_some_and(|number| number.parse::<u16>().is_ok());
    if !RECORD_TYPES.contains(&record_type.as_str()) && !is_number {
        let expected = alternatives(&RECORD_TYPES.map(String::from));
        findings.error(
            &path.field("type"),
            format!("{record_type:?}: expected {expected}"),
        );
    }
    let mut rcodes = Vec::new();
    for (index, name) in document.rcodes.iter().flatten().enumerate() {
        match (0..).zip(RCODES).find(|(_, known)| known == name) {
            Some((number, _)) => rcodes.push(number),
            None => {
                let expected = alternatives(&RCODES.map(String::from));
                let path = path.field("rcodes").item(index);
                findings.error(&path, format!("{name:?}: expected {expected}"));
            }
        }
    }
    DnsProbe {
        name: document.name.clone().unwrap_or(default.name),
        record_type,
        rcodes: if document.rcodes.is_some() {
            rcodes
        } else {
            default.rcodes
        },
        answers: document.answers.clone(),
        tcp: document.tcp,
    }
}

fn grpc(findings: &mut Findings, path: &Path, document: &GrpcDocument) -> GrpcProbe {
    if let Some(tls) = &document.tls {
        offers_http2(findings, &path.field("tls"), tls);
    }
    GrpcProbe {
        service: document.service.clone(),
        tls: document
            .tls
            .as_ref()
            .map(|document| tls(findings, &path.field("tls"), document)),
    }
}

fn exec(findings: &mut Findings, path: &Path, document: &ExecDocument) -> ExecProbe {
    program(findings, &path.field("command"), &document.command);
    ExecProbe {
        command: document.command.clone(),
        weight_from: match document.weight_from {
            None | Some(WeightSource::None) => WeightFrom::None,
            Some(WeightSource::ExitCode) => WeightFrom::ExitCode,
            Some(WeightSource::Stdout) => WeightFrom::Stdout,
        },
    }
}

fn agent(document: &AgentDocument) -> AgentProbe {
    AgentProbe {
        send: document.send.as_ref().map(|text| text.clone().into_bytes()),
    }
}

fn file(document: &FileDocument) -> FileProbe {
    FileProbe {
        path: document.path.clone(),
        weight: document.weight.unwrap_or(0),
    }
}

/// The bytes of a text that is known to be hexadecimal.
fn bytes(text: &str) -> Vec<u8> {
    let nibbles = nibbles(text);
    let pairs = nibbles.chunks_exact(2);
    pairs
        .map(|pair| pair[0].unwrap_or(0) << 4 | pair[1].unwrap_or(0))
        .collect()
}

/// Half bytes; `None` for `x`.
fn nibbles(text: &str) -> Vec<Option<u8>> {
    let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.chars().map(digit).collect()
}
