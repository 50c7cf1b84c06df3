// SPDX-License-Identifier: Apache-2.0

//! The examples of the specification, compared with the objects that they mean.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use portolan_director::{
    Already, Backend, DeclaredCheck, DeclaredTimers, File, Forwarding, Frontend, Generation,
    LoadBalancer, Packets, Persistence, SchedulerFlag, SchedulerName, Thresholds, Tunnel,
    TunnelChecksum, parse,
};
use portolan_model::check::{DnsProbe, HttpProbe, Probe, Step, TcpProbe, Via};
use portolan_model::{Family, Protocol};

fn read(text: &str) -> Generation {
    let file = File {
        name: "x.yaml",
        text,
    };
    parse(&[file], &Already::default()).unwrap()
}

fn only(text: &str) -> LoadBalancer {
    let generation = read(text);
    assert_eq!(generation.warnings, []);
    let only = generation.load_balancers.into_iter().next();
    Arc::unwrap_or_clone(only.unwrap())
}

fn backend(address: &str, port: Option<u16>) -> Backend {
    let address = address.parse().unwrap();
    Backend {
        name: Backend::default_name(address, port),
        address,
        port,
        weight: 1,
        thresholds: Thresholds::default(),
        forwarding: Forwarding::Masquerade,
        checks: None,
        administrative_state: <_>::default(),
    }
}

fn check(probe: Probe) -> DeclaredCheck {
    DeclaredCheck {
        probe,
        address: None,
        port: None,
        via: Via::Direct,
        source: None,
        timers: DeclaredTimers::default(),
        log_failures: false,
    }
}

#[test]
fn nat_with_checks_and_a_sorry_server() {
    let web = only(include_str!("good/nat.yaml"));
    assert_eq!(web.name.to_string(), "default/web");
    assert_eq!(
        web.frontends,
        [Frontend {
            name: "http".to_owned(),
            packets: Packets::Port {
                addresses: vec![
                    "192.0.2.10".parse().unwrap(),
                    "2001:db8::10".parse().unwrap()
                ],
                protocol: Protocol::Tcp,
                port: 80,
            },
            source_ranges: vec![],
        }]
    );
    assert_eq!(web.scheduler, SchedulerName::Wlc);
    assert_eq!(web.scheduler_flags, BTreeSet::new());
    let weighted = Backend {
        weight: 3,
        ..backend("10.0.0.11", Some(8080))
    };
    let others = [
        backend("10.0.0.12", Some(8080)),
        backend("fd00::11", Some(8080)),
    ];
    assert_eq!(web.backends, [&[weighted][..], &others].concat());
    let http = HttpProbe {
        path: "/healthz".to_owned(),
        host: Some("www.example.org".to_owned()),
        ..HttpProbe::default()
    };
    let timers = DeclaredTimers {
        interval: Some(Duration::from_secs(5)),
        fall: Some(3),
        ..DeclaredTimers::default()
    };
    let expected = DeclaredCheck {
        timers,
        ..check(Probe::Http(Box::new(http)))
    };
    assert_eq!(web.checks, [expected]);
    assert_eq!(web.health.slow_start, Duration::from_secs(30));
    let v6 = &web.backends[2];
    assert!(web.serves(v6.address, v6.forwarding, Family::V6));
    assert!(!web.serves(v6.address, v6.forwarding, Family::V4));
}

#[test]
fn dns_by_direct_routing() {
    let dns = only(include_str!("good/dns.yaml"));
    let names: Vec<&str> = dns
        .frontends
        .iter()
        .map(|frontend| frontend.name.as_str())
        .collect();
    assert_eq!(names, ["udp-53", "tcp-53"]);
    assert_eq!(
        dns.scheduler_flags,
        BTreeSet::from([SchedulerFlag::Fallback])
    );
    assert!(dns.one_packet);
    assert_eq!(dns.backends[0].forwarding, Forwarding::Direct);
    let question = DnsProbe {
        name: "example.org".to_owned(),
        ..DnsProbe::default()
    };
    let via = Via::Service { frontend: None };
    assert_eq!(
        dns.checks,
        [DeclaredCheck {
            via,
            ..check(Probe::Dns(question))
        }]
    );
}

#[test]
fn passive_ftp_by_gue() {
    let ftp = only(include_str!("good/ftp.yaml"));
    assert_eq!(
        ftp.frontends[0].packets,
        Packets::Ranges {
            addresses: vec!["192.0.2.21".parse().unwrap()],
            protocol: Protocol::Tcp,
            ports: vec![(21, 21), (20000, 20999)],
        }
    );
    assert_eq!(ftp.frontends[0].name, "tcp-21-20000-20999");
    let persistence = Persistence {
        timeout: Duration::from_secs(600),
        ipv4_prefix_length: 24,
        ..Persistence::default()
    };
    assert_eq!(ftp.persistence, Some(persistence));
    let tunnel = Tunnel::Gue {
        port: 6080,
        checksum: TunnelChecksum::Full,
    };
    assert_eq!(ftp.backends[1].forwarding, Forwarding::Tunnel(tunnel));
    assert_eq!(
        ftp.backends[1].thresholds,
        Thresholds {
            maximum: 2000,
            resume: 0
        }
    );
    let step = Step {
        send: None,
        expect: Some("^220".to_owned()),
    };
    let greeting = Probe::Tcp(TcpProbe { steps: vec![step] });
    assert_eq!(
        ftp.checks,
        [DeclaredCheck {
            port: Some(21),
            ..check(greeting)
        }]
    );
}

#[test]
fn other_apis_are_for_other_readers() {
    let generation = read(include_str!("good/marks.yaml"));
    let [service] = &generation.not_ours[..] else {
        panic!("one document");
    };
    assert_eq!(
        (service.api_version.as_str(), service.kind.as_str()),
        ("v1", "Service")
    );
    assert_eq!(service.at.line, 17);
}

#[test]
fn a_mixed_family_is_served_by_tunnels_only() {
    let generation = read(include_str!("good/marks.yaml"));
    let mixed = &generation.load_balancers[1];
    let server = &mixed.backends[0];
    assert!(mixed.serves(server.address, server.forwarding, Family::V4));
    assert!(!mixed.serves(server.address, server.forwarding, Family::V6));
    assert_eq!(mixed.of_mixed_families().count(), 1);
    assert_eq!(generation.load_balancers[0].of_mixed_families().count(), 0);
}

#[test]
fn what_others_have_already_is_taken() {
    let text = "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {name: web}\n\
                spec:\n  frontends: [{addresses: [192.0.2.10], port: 80}]\n";
    let claims = read(text).load_balancers[0].frontends[0].claims();
    let already = Already {
        claims: claims
            .into_iter()
            .map(|claim| (claim, "Service prod/web".to_owned()))
            .collect(),
        ..Already::default()
    };
    let problems = parse(
        &[File {
            name: "lb.yaml",
            text,
        }],
        &already,
    )
    .unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "lb.yaml:5:15: spec.frontends[0]: TCP 192.0.2.10:80 is of Service prod/web already: \
         expected once"
    );
}

const STATELESS: &str = "apiVersion: portolan.dev/v1alpha1
kind: Director
metadata: {name: lb1}
spec:
  statelessFailover: true
  sync: {interface: eth1}
  marks: 0xf0
";

const UNFIT: &str = r#"apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{addresses: [192.0.2.10], port: 80}]
  scheduler: wlc
  forwarding: {method: Tunnel}
  backends: [{address: "fd00::1"}]
---
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: marked}
spec:
  frontends: [{mark: 0x10}]
  scheduler: mh
"#;

#[test]
fn objects_of_files_must_fit_those_from_elsewhere() {
    let already = Already {
        load_balancers: read(UNFIT).load_balancers,
        directors: read(STATELESS).directors,
        ..Already::default()
    };
    let problems = |text: &str| {
        let file = File {
            name: "lb.yaml",
            text,
        };
        let found = parse(&[file], &already).err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let of_director = [
        "lb.yaml:5:22: spec.statelessFailover: default/web has scheduler \"wlc\": expected mh",
        "lb.yaml:6:9: spec.sync: web/tcp-80 has a Tunnel backend of the other family (fd00::1): \
         excludes the sync daemon",
        "lb.yaml:7:10: spec.marks: 0x000000f0 has bits of the mark 16 of default/marked: \
         expected none",
    ];
    assert_eq!(problems(STATELESS), of_director);
    let of_balancers = [
        "lb.yaml:6:14: spec.scheduler: \"wlc\": expected mh, by spec.statelessFailover of \
         Director lb1",
        "lb.yaml:8:24: spec.backends[0].address: fd00::1 is behind a tunnel of the other family: \
         excluded by spec.sync of Director lb1",
        "lb.yaml:14:22: spec.frontends[0].mark: 16 has bits of the agent's marks 0x000000f0: \
         expected none of them",
    ];
    assert_eq!(problems(UNFIT), of_balancers);
    // What does not fit elsewhere is no problem of the files.
    let fits = UNFIT.replace("wlc", "mh").replace("fd00::1", "10.0.0.1");
    assert_eq!(problems(&fits.replace("0x10", "0x100")), [""; 0]);
}
