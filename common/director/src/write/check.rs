// SPDX-License-Identifier: Apache-2.0

//! Health checks.

use std::fmt::Write as _;

use portolan_model::check::{
    DnsProbe, ExecProbe, FileProbe, GrpcProbe, HttpProbe, HttpVersion, Probe, Source, Step,
    TcpProbe, TlsProbe, UdpProbe, Verify, Via, WeightFrom,
};

use super::{period, unless};
use crate::check::DeclaredCheck;
use crate::convert::RCODES;
use crate::document::{
    AgentDocument, CheckDocument, DnsDocument, ExecDocument, ExpectedHeader, FileDocument,
    GrpcDocument, HeaderDocument, HttpDocument, HttpVersionName, IcmpDocument, SourceDocument,
    StatusDocument, StepDocument, TcpDocument, TlsDocument, UdpDocument, VerifyName, ViaName,
    WeightSource,
};

pub(super) fn document(check: &DeclaredCheck) -> CheckDocument {
    let (via, frontend) = match &check.via {
        Via::Direct => (None, None),
        Via::Service { frontend } => (Some(ViaName::Service), frontend.as_deref()),
    };
    let mut document = CheckDocument {
        address: check.address,
        port: check.port,
        via,
        frontend: frontend.map(str::to_owned),
        source: check.source.as_ref().map(source),
        interval: check.timers.interval.map(period),
        fast_interval: check.timers.fast_interval.map(period),
        timeout: check.timers.timeout.map(period),
        rise: check.timers.rise,
        fall: check.timers.fall,
        log_failures: check.log_failures,
        ..CheckDocument::default()
    };
    match &check.probe {
        Probe::Tcp(probe) => document.tcp = Some(tcp(probe)),
        Probe::Tls(probe) => document.tls = Some(tls(probe)),
        Probe::Http(probe) => document.http = Some(http(probe)),
        Probe::Udp(probe) => document.udp = Some(udp(probe)),
        Probe::Dns(probe) => document.dns = Some(dns(probe)),
        Probe::Grpc(probe) => document.grpc = Some(grpc(probe)),
        Probe::Icmp => document.icmp = Some(IcmpDocument {}),
        Probe::Exec(probe) => document.exec = Some(exec(probe)),
        Probe::Agent(probe) => {
            let send = probe.send.as_deref();
            document.agent = Some(AgentDocument {
                send: send.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
            });
        }
        Probe::File(probe) => document.file = Some(file(probe)),
    }
    document
}

pub(super) fn source(source: &Source) -> SourceDocument {
    SourceDocument {
        address: source.address,
        interface: source.interface.as_deref().map(str::to_owned),
        mark: source.mark,
    }
}

fn tcp(probe: &TcpProbe) -> TcpDocument {
    TcpDocument {
        steps: probe.steps.iter().map(step).collect(),
    }
}

/// Bytes that are no text are written in hexadecimal.
fn step(step: &Step) -> StepDocument {
    let text = step.send.clone().map(String::from_utf8);
    let (send, send_hex) = match text {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(error)) => (None, Some(hex(error.as_bytes()))),
    };
    StepDocument {
        send,
        send_hex,
        expect: step.expect.clone(),
    }
}

fn tls(probe: &TlsProbe) -> TlsDocument {
    let (verify, ca) = match &probe.verify {
        Verify::None => (None, None),
        Verify::System => (Some(VerifyName::System), None),
        Verify::Ca(path) => (Some(VerifyName::Ca), Some(path.clone())),
    };
    TlsDocument {
        server_name: probe.server_name.clone(),
        verify,
        ca,
        certificate: probe.certificate.clone(),
        key: probe.key.clone(),
        alpn: probe.alpn.clone(),
        minimum_days_valid: probe.minimum_days_valid,
    }
}

fn http(probe: &HttpProbe) -> HttpDocument {
    let default = HttpProbe::default();
    let headers = probe.headers.iter().map(|(name, value)| HeaderDocument {
        name: name.clone(),
        value: value.clone(),
    });
    let expected = probe
        .expect_headers
        .iter()
        .map(|(name, regex)| ExpectedHeader {
            name: name.clone(),
            regex: regex.clone(),
        });
    let statuses = unless(probe.statuses.clone(), &default.statuses);
    HttpDocument {
        method: unless(probe.method.clone(), &default.method),
        path: unless(probe.path.clone(), &default.path),
        host: probe.host.clone(),
        version: match probe.version {
            HttpVersion::Http10 => Some(HttpVersionName::Http10),
            HttpVersion::Http11 => None,
            HttpVersion::Http2 => Some(HttpVersionName::Http2),
        },
        statuses: statuses.map(|ranges| ranges.into_iter().map(status).collect()),
        headers: headers.collect(),
        expect_headers: expected.collect(),
        body_regex: probe.body_regex.clone(),
        body_not_regex: probe.body_not_regex.clone(),
        body_md5: probe.body_md5.as_ref().map(|digest| hex(digest)),
        tls: probe.tls.as_ref().map(tls),
    }
}

fn status((first, last): (u16, u16)) -> StatusDocument {
    if first == last {
        StatusDocument::Code(first)
    } else {
        StatusDocument::Range(format!("{first}-{last}"))
    }
}

fn udp(probe: &UdpProbe) -> UdpDocument {
    let default = UdpProbe::default();
    let expect = probe.expect.iter().map(|nibble| match nibble {
        Some(nibble) => char::from_digit(u32::from(*nibble), 16).unwrap_or('x'),
        None => 'x',
    });
    UdpDocument {
        payload_hex: unless(hex(&probe.payload), &String::new()),
        require_reply: probe.require_reply,
        expect_hex: unless(expect.collect(), &String::new()),
        min_length: unless(probe.min_length, &default.min_length),
        max_length: unless(probe.max_length, &default.max_length),
    }
}

fn dns(probe: &DnsProbe) -> DnsDocument {
    let default = DnsProbe::default();
    let names = |codes: Vec<u16>| -> Vec<String> {
        let names = codes
            .into_iter()
            .filter_map(|code| RCODES.get(usize::from(code)));
        names.map(ToString::to_string).collect()
    };
    DnsDocument {
        name: unless(probe.name.clone(), &default.name),
        record_type: unless(probe.record_type.clone(), &default.record_type),
        rcodes: unless(probe.rcodes.clone(), &default.rcodes).map(names),
        answers: probe.answers.clone(),
        tcp: probe.tcp,
    }
}

fn grpc(probe: &GrpcProbe) -> GrpcDocument {
    GrpcDocument {
        service: probe.service.clone(),
        tls: probe.tls.as_ref().map(tls),
    }
}

fn exec(probe: &ExecProbe) -> ExecDocument {
    ExecDocument {
        command: probe.command.clone(),
        weight_from: match probe.weight_from {
            WeightFrom::None => None,
            WeightFrom::ExitCode => Some(WeightSource::ExitCode),
            WeightFrom::Stdout => Some(WeightSource::Stdout),
        },
    }
}

fn file(probe: &FileProbe) -> FileDocument {
    FileDocument {
        path: probe.path.clone(),
        weight: unless(probe.weight, &0),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
