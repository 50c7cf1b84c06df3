// SPDX-License-Identifier: Apache-2.0

//! Importers: settings whose meaning depends on others, and ports that IPVS ignores.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use portolan_director::import::kernel::Kernel;
use portolan_director::import::{Class, Import, ipvsadm, keepalived, kernel, ldirectord};
use portolan_director::{File, Forwarding, LoadBalancer, Packets, SchedulerFlag};
use portolan_model::check::{OnFailure, Probe};
use portolan_model::{Families, Family};
use regex::bytes::Regex;

fn keepalived(text: &str) -> Import {
    let options = keepalived::Options {
        include: &|_, _| Vec::new(),
        config_id: None,
        director: "lb1",
    };
    let file = File {
        name: "keepalived.conf",
        text,
    };
    keepalived::import(file, &options)
}

fn ldirectord(text: &str) -> Import {
    let options = ldirectord::Options {
        allow_partial: false,
        director: "lb1",
    };
    let file = File {
        name: "ldirectord.cf",
        text,
    };
    ldirectord::import(file, options)
}

fn ipvsadm(text: &str) -> Import {
    let file = File {
        name: "rules",
        text,
    };
    ipvsadm::import(file, false)
}

fn kernel(commands: &str) -> Import {
    let kernel = Kernel {
        commands: commands.to_owned(),
        timeouts: [900, 120, 300],
        ..Kernel::default()
    };
    kernel::import(&kernel, "lb1", false)
}

/// The errors of an import, each with its place.
fn errors(import: &Import) -> Vec<String> {
    let errors = import.notes.iter();
    let errors = errors.filter(|note| note.class == Class::Error);
    errors.map(ToString::to_string).collect()
}

/// The only load balancer of an import without errors.
fn only(import: &Import) -> &LoadBalancer {
    assert_eq!(errors(import), [""; 0]);
    let [balancer] = &import.generation.load_balancers[..] else {
        panic!("{}", import.to_yaml());
    };
    balancer
}

#[test]
fn timeouts_of_ldirectord_stand_for_each_other_at_each_level() {
    let level = |indent: &str, timeouts: [u64; 2]| {
        let mut text = String::new();
        for (name, seconds) in ["checktimeout", "negotiatetimeout"].iter().zip(timeouts) {
            if seconds > 0 {
                let _ = writeln!(text, "{indent}{name} = {seconds}");
            }
        }
        text
    };
    // checktimeout and negotiatetimeout of the file and of the virtual, 0 for none; what checks of both kinds have.
    for (file, own, expected) in [
        ([0, 0], [0, 0], [5, 30]),
        ([3, 0], [0, 0], [3, 3]),
        ([0, 9], [0, 0], [9, 9]),
        ([3, 9], [0, 0], [3, 9]),
        ([0, 9], [4, 0], [4, 4]),
        ([9, 0], [0, 4], [4, 4]),
        ([8, 9], [4, 6], [4, 6]),
    ] {
        let (file, own) = (level("", file), level(" ", own));
        for (kind, seconds) in ["connect", "negotiate"].iter().zip(expected) {
            let text = format!(
                "{file}virtual = 192.0.2.1:80\n real = 10.0.0.1:80 masq\n checktype = {kind}\n{own}"
            );
            let timers = only(&ldirectord(&text)).checks[0].timers;
            let expected = Some(Duration::from_secs(seconds));
            assert_eq!(timers.timeout, expected, "{text}");
        }
    }
}

#[test]
fn each_step_of_an_imported_check_of_mail_takes_a_whole_reply() {
    for import in [
        keepalived(
            "virtual_server 192.0.2.1 25 {\n protocol TCP\n real_server 10.0.0.1 25 {\n SMTP_CHECK {\n \
             helo_name lb\n }\n }\n}\n",
        ),
        ldirectord("virtual = 192.0.2.1:25\n real = 10.0.0.1:25 masq\n"),
    ] {
        let Probe::Tcp(mail) = &only(&import).checks[0].probe else {
            panic!("{}", import.to_yaml());
        };
        assert_eq!(mail.steps.len(), 3);
        // A name in Latin-1 is none in UTF-8.
        let replies: [(&[u8], &[u8]); 3] = [
            (b"220-a\r\n", b"220 M\xfcnchen ESMTP\r\n"),
            (b"250-mail\r\n", b"250 HELP\r\n"),
            (b"", b"221\r\n"),
        ];
        for (step, (first, last)) in mail.steps.iter().zip(replies) {
            let pattern = Regex::new(step.expect.as_deref().unwrap()).unwrap();
            assert!(pattern.find(first).is_none(), "{pattern}");
            let whole = [first, last].concat();
            // What comes next begins at its first byte.
            let found = pattern.find(&whole).map(|found| found.end());
            assert_eq!(found, Some(whole.len()), "{pattern}");
            assert!(pattern.find(b"554 no\r\n").is_none(), "{pattern}");
        }
    }
}

/// The first check that the first server of ldirectord's has for itself, and the report.
fn own_check(text: &str) -> (Option<Probe>, String) {
    let import = ldirectord(&format!("quiescent = yes\n{text}"));
    let own = only(&import).backends[0].checks.as_deref();
    let probe = own.map(|own| own[0].probe.clone());
    (probe, import.report())
}

#[test]
fn a_request_and_an_answer_of_a_server_of_ldirectord_are_those_of_its_check() {
    let (probe, report) = own_check(
        "virtual = 192.0.2.53:53\n service = dns\n request = \"example.org\"\n \
         real = 10.0.0.1:53 masq 1 \"www.example.org\", \"192.0.2.1\"\n",
    );
    let Some(Probe::Dns(dns)) = probe else {
        panic!("{probe:?}: {report}");
    };
    assert_eq!(dns.name, "www.example.org");
    assert_eq!(dns.answers, [std::net::IpAddr::from([192, 0, 2, 1])]);
    let (probe, report) = own_check(
        "virtual = 192.0.2.1:7\n service = simpletcp\n request = \"ping\"\n receive = \"pong\"\n \
         real = 10.0.0.1:7 masq 1 \"hello\\n\"\n",
    );
    let Some(Probe::Tcp(tcp)) = probe else {
        panic!("{probe:?}: {report}");
    };
    assert_eq!(tcp.steps[0].send.as_deref(), Some(&b"hello\n"[..]));
    assert_eq!(tcp.steps[0].expect.as_deref(), Some("pong"));
    // An empty request is the service's.
    let (probe, report) = own_check(
        "virtual = 192.0.2.1:80\n service = http\n request = \"index.html\"\n receive = \"Page\"\n \
         real = 10.0.0.1:80 masq 1 \"\", \"OK\"\n",
    );
    let Some(Probe::Http(http)) = probe else {
        panic!("{probe:?}: {report}");
    };
    assert_eq!(http.path, "/index.html");
    assert_eq!(http.body_regex.as_deref(), Some("OK"));
}

#[test]
fn a_request_of_a_server_of_ldirectord_that_no_check_sends_is_told() {
    let (probe, report) = own_check(
        "virtual = 192.0.2.1:25\n service = smtp\n real = 10.0.0.1:25 masq 1 \"a\", \"b\"\n",
    );
    assert_eq!(probe, None);
    let note = "ldirectord.cf:4: w: real: its request is of no use for this check";
    assert!(report.contains(note), "{report}");
    let (_, report) = own_check(
        "virtual = 192.0.2.53:53\n service = dns\n real = 10.0.0.1:53 masq 1 \"a.example\", \"b\"\n",
    );
    let note = "ldirectord.cf:4: w: real: its answer is no address";
    assert!(report.contains(note), "{report}");
}

#[test]
fn an_absent_quiescent_of_ldirectord_is_told() {
    for (setting, exit_code, on_failure) in [
        ("", 2, OnFailure::Quiesce),
        ("quiescent = yes", 0, OnFailure::Quiesce),
        ("quiescent = no", 0, OnFailure::Remove),
    ] {
        let text = format!("{setting}\nvirtual = 192.0.2.1:80\n real = 10.0.0.1:80 masq\n");
        let import = ldirectord(&text);
        assert_eq!(only(&import).health.on_failure, on_failure, "{setting}");
        assert_eq!(import.exit_code(), exit_code, "{setting}");
        let note = "ldirectord.cf:2: ~: quiescent: absent: yes, as ldirectord's manual has it";
        let report = import.report();
        assert_eq!(report.contains(note), exit_code == 2, "{report}");
    }
}

#[test]
fn scheduler_flags_of_ldirectord_are_read() {
    let with = |flags: &str| {
        ldirectord(&format!(
            "quiescent = yes\nvirtual = 192.0.2.1:80\n real = 10.0.0.1:80 masq\n scheduler = sh\n \
             schedflags = {flags}\n"
        ))
    };
    for flags in ["sh-fallback,sh-port", "\"sh-port, sh-fallback\""] {
        let import = with(flags);
        let expected = BTreeSet::from([SchedulerFlag::Port, SchedulerFlag::Fallback]);
        assert_eq!(only(&import).scheduler_flags, expected, "{flags}");
        assert_eq!(import.exit_code(), 0, "{}", import.report());
    }
    let expected = "ldirectord.cf:5: error: schedflags: \"sh-other\": unknown flag";
    assert_eq!(errors(&with("sh-other")), [expected]);
}

#[test]
fn a_port_of_a_sorry_server_that_ipvs_ignores_is_left_out() {
    let group = "virtual_server_group g {\n 192.0.2.1 80\n fwmark 7\n}\n";
    for (before, service, method) in [
        ("", "192.0.2.1 80", "lb_kind DR"),
        ("", "fwmark 1", "lb_kind DR"),
        (group, "group g", "lvs_method DR"),
    ] {
        let import = keepalived(&format!(
            "{before}virtual_server {service} {{\n protocol TCP\n {method}\n sorry_server 10.0.0.9 8080\n \
             real_server 10.0.0.1 80\n}}\n"
        ));
        let sorry = only(&import).sorry_server.as_ref().unwrap();
        assert_eq!(sorry.port, None, "{service}");
        let report = import.report();
        let note = "~: sorry_server: 10.0.0.9: its port became the frontend's";
        assert!(report.contains(note), "{report}");
    }
    // The method of its own goes before that of the service.
    for (own, port) in [("DR", None), ("NAT", Some(8080))] {
        let import = keepalived(&format!(
            "virtual_server 192.0.2.1 80 {{\n protocol TCP\n sorry_server 10.0.0.9 8080\n \
             sorry_server_lvs_method {own}\n real_server 10.0.0.1 81\n}}\n"
        ));
        let balancer = only(&import);
        let sorry = balancer.sorry_server.as_ref().unwrap();
        assert_eq!(sorry.port, port, "{own}");
        assert_eq!(balancer.backends[0].port, Some(81));
    }
}

#[test]
fn ports_by_mark_with_persistence_are_left_out() {
    let commands = "-A -f 1 -s wlc -p 300\n-a -f 1 -r 10.0.0.1:80 -m\n";
    for import in [
        ipvsadm(commands),
        kernel(commands),
        keepalived(
            "virtual_server fwmark 1 {\n lvs_method NAT\n persistence_timeout 300\n \
             sorry_server 10.0.0.9 80\n real_server 10.0.0.1 80 {\n TCP_CHECK\n }\n}\n",
        ),
        ldirectord(
            "virtual = 1\n real = 10.0.0.1:80 masq\n fallback = 10.0.0.9:80 masq\n \
             service = http\n persistent = 300\n",
        ),
    ] {
        let balancer = only(&import);
        let backend = &balancer.backends[0];
        assert_eq!(backend.port, None, "{}", import.to_yaml());
        assert_eq!(backend.forwarding, Forwarding::Masquerade);
        if let Some(sorry) = &balancer.sorry_server {
            assert_eq!(sorry.port, None, "{}", import.to_yaml());
            // Checks go to the port all the same.
            let checks = backend.checks.as_ref().unwrap_or(&balancer.checks);
            assert_eq!(checks[0].port, Some(80), "{}", import.to_yaml());
        }
    }
    // Without persistence, the kernel translates.
    let import = ipvsadm("-A -f 1 -s wlc\n-a -f 1 -r 10.0.0.1:80 -m\n");
    assert_eq!(only(&import).backends[0].port, Some(80));
}

#[test]
fn marks_have_an_object_of_their_own_where_addresses_need_the_ports_of_servers() {
    let with = |server: &str| {
        keepalived(&format!(
            "virtual_server_group g {{\n 192.0.2.1 80\n fwmark 7\n}}\nvirtual_server group g {{\n protocol TCP\n \
             lvs_method NAT\n persistence_timeout 300\n quorum_up /bin/up\n {server}\n}}\n"
        ))
    };
    let checked = "{\n TCP_CHECK\n }";
    let one = with(&format!("real_server 10.0.0.1 80 {checked}"));
    assert_eq!(only(&one).backends[0].port, None);
    for servers in [
        format!("real_server 10.0.0.1 8080 {checked}\n real_server 10.0.0.2 8081 {checked}"),
        format!("sorry_server 10.0.0.9 8080\n real_server 10.0.0.1 80 {checked}"),
    ] {
        let import = with(&servers);
        assert_eq!(errors(&import), [""; 0]);
        let [addresses, marks] = &import.generation.load_balancers[..] else {
            panic!("{}", import.to_yaml());
        };
        let names = [&addresses.name, &marks.name].map(ToString::to_string);
        assert_eq!(names, ["default/g", "default/g-marks"]);
        assert!(matches!(
            addresses.frontends[0].packets,
            Packets::Port { port: 80, .. }
        ));
        assert!(matches!(marks.frontends[0].packets, Packets::Mark { .. }));
        for (address, mark) in addresses.backends.iter().zip(&marks.backends) {
            assert_ne!(address.port, None);
            assert_eq!(mark.port, None, "{}", import.to_yaml());
            let checks = mark.checks.as_ref().unwrap_or(&marks.checks);
            assert_eq!(checks[0].port, address.port, "{}", import.to_yaml());
        }
        let sorry = marks.sorry_server.as_ref();
        assert!(sorry.is_none_or(|sorry| sorry.port.is_none()));
        assert_eq!(addresses.hooks, marks.hooks);
        let note = "~: virtual_server: its marks became a load balancer of their own";
        assert!(import.report().contains(note), "{}", import.report());
    }
}

#[test]
fn a_mark_of_keepalived_has_the_family_of_its_servers() {
    let mark = "virtual_server fwmark 7";
    let group = "virtual_server_group g {\n fwmark 7\n}\nvirtual_server group g";
    let of_v6 = "virtual_server_group g {\n fwmark 7 inet6\n}\nvirtual_server group g";
    for (service, settings, family) in [
        (mark, "real_server 10.0.0.1 80", Family::V4),
        (mark, "real_server fd00::1 80", Family::V6),
        (mark, "lvs_method TUN\n real_server fd00::1", Family::V6),
        (mark, "ip_family inet6\n real_server fd00::1 80", Family::V6),
        (group, "real_server 10.0.0.1 80", Family::V4),
        (of_v6, "real_server fd00::1 80", Family::V6),
    ] {
        let import = keepalived(&format!("{service} {{\n {settings}\n}}\n"));
        let Packets::Mark { families, .. } = only(&import).frontends[0].packets else {
            panic!("{}", import.to_yaml());
        };
        let expected: Families = [family].into_iter().collect();
        assert_eq!(families, expected, "{service} {settings}");
    }
}

#[test]
fn what_keepalived_corrects_is_corrected() {
    let import = keepalived(
        "virtual_server 192.0.2.1 0 {\n protocol TCP\n ops\n quorum 9\n hysteresis 9\n real_server 10.0.0.1 {\n \
         weight 3\n }\n real_server 10.0.0.1 {\n weight 9\n }\n}\nvirtual_server 192.0.2.2 80 {\n protocol TCP\n}\n",
    );
    let report = import.report();
    for note in [
        "1: ~: persistence_timeout: absent with port 0: 360, as keepalived has it",
        "1: ~: ops: not UDP: left out, as keepalived has it",
        "1: ~: quorum: 9 is above the weight of all servers: 3, as keepalived has it",
        "1: ~: hysteresis: 9 is not below the quorum: 2, as keepalived has it",
        "9: w: real_server: there already: left out, as keepalived has it",
        "13: w: virtual_server: no real servers: left out, as keepalived has it",
    ] {
        assert!(report.contains(note), "{note}: {report}");
    }
    assert_eq!(import.exit_code(), 2, "{report}");
    let balancer = only(&import);
    assert_eq!(balancer.backends.len(), 1);
    let timeout = balancer.persistence.map(|persistence| persistence.timeout);
    assert_eq!(timeout, Some(Duration::from_secs(360)));
    assert!(!balancer.one_packet);
    let health = &balancer.health;
    assert_eq!((health.quorum, health.hysteresis), (3, 2));
}

#[test]
fn quorum_and_hysteresis_of_keepalived_are_scaled_with_the_weights() {
    let with = |weight: u32, settings: &str| {
        keepalived(&format!(
            "virtual_server 192.0.2.1 80 {{\n protocol TCP\n {settings}\n weight {weight}\n real_server 10.0.0.1 80\n \
             real_server 10.0.0.2 80\n}}\n"
        ))
    };
    // One server alone has the quorum, or both together, here as in keepalived.
    for (settings, expected) in [
        ("quorum 131070\n hysteresis 20", (65_535, 10)),
        ("quorum 131071", (65_536, 0)),
        ("quorum 262140", (131_070, 0)),
        // One of a smaller weight stays at least 1.
        ("quorum 1", (1, 0)),
        ("quorum 2\n hysteresis 1", (1, 0)),
    ] {
        let import = with(131_070, settings);
        let balancer = only(&import);
        let weights: Vec<u16> = balancer.backends.iter().map(|each| each.weight).collect();
        assert_eq!(weights, [65_535, 65_535]);
        let health = &balancer.health;
        assert_eq!((health.quorum, health.hysteresis), expected, "{settings}");
    }
    let report = with(131_070, "quorum 131071\n hysteresis 20").report();
    for note in [
        "1: ~: quorum: 131071 is scaled as the weights are: 65536",
        "1: ~: hysteresis: 20 is scaled as the weights are: 10",
    ] {
        assert!(report.contains(note), "{note}: {report}");
    }
    // Weights that fit leave both as they are.
    let import = with(65_535, "quorum 65536\n hysteresis 20");
    let health = &only(&import).health;
    assert_eq!((health.quorum, health.hysteresis), (65_536, 20));
    assert_eq!(import.exit_code(), 0, "{}", import.report());
}

#[test]
fn one_packet_stays_for_a_mark() {
    let import = keepalived("virtual_server fwmark 7 {\n ops\n real_server 10.0.0.1 53\n}\n");
    assert!(only(&import).one_packet);
    assert_eq!(import.exit_code(), 0, "{}", import.report());
}
