// SPDX-License-Identifier: Apache-2.0

use portolan_health::Outcome;
use portolan_model::check::Probe;
use portolan_probe::{Context, Target, probe};

use crate::rig::{check, short};

/// Returns `true` if this process may open a socket for ICMP.
#[allow(clippy::print_stdout, reason = "CONTRIBUTING.md asks for the line")]
fn may_ping() -> bool {
    use socket2::{Domain, Protocol, Socket, Type};
    let open = |kind| Socket::new(Domain::IPV4, kind, Some(Protocol::ICMPV4)).is_ok();
    let may = open(Type::DGRAM) || open(Type::RAW);
    assert!(
        may || std::env::var_os("CI").is_none(),
        "no socket for ICMP"
    );
    if !may {
        println!("SKIP no socket for ICMP");
    }
    may
}

#[tokio::test]
async fn many_hosts_answer_over_one_socket() {
    if !may_ping() {
        return;
    }
    let (context, check) = (Context::default(), check(Probe::Icmp));
    let ping = |address: String| {
        let target = Target::at(address.parse().unwrap());
        let (context, check) = (context.clone(), check.clone());
        async move { probe(&check, &target, &context).await }
    };
    let hosts = (1..=100).map(|host| format!("127.0.0.{host}:0"));
    let outcomes = futures_util::future::join_all(hosts.map(ping)).await;
    assert_eq!(outcomes, vec![Outcome::pass(); 100]);
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        assert_eq!(ping("[::1]:0".to_owned()).await, Outcome::pass());
    }
}

#[tokio::test]
async fn a_silent_host_fails() {
    if !may_ping() {
        return;
    }
    // Nothing on the loopback interface has this address, and nothing leaves by it.
    let mut target = Target::at("192.0.2.1:0".parse().unwrap());
    target.source.interface = Some("lo".into());
    let outcome = probe(&short(Probe::Icmp), &target, &Context::default()).await;
    assert_eq!(outcome, Outcome::fail("not done within 500ms"));
}
