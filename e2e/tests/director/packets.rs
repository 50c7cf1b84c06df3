// SPDX-License-Identifier: Apache-2.0

//! Masquerading of both families and three protocols, all ports of an address, persistence of networks and of SIP
//! calls, and limits of connections.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use portolan_e2e::ask::{PROMPT, answers, sources};
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{
    Answer, Connection, Family, Host, Process, Protocol, RequestError, has_sctp,
};
use portolan_e2e::wait::wait_for;

use super::world::{PORT, VIP, World, serve, vip};

const VIP_V6: &str = "2001:db8::10";
/// Virtual addresses of the load balancer without source NAT.
const PLAIN: [&str; 2] = ["192.0.2.11", "2001:db8::11"];
/// Port of frontends; the backends have another one.
const FRONT: u16 = 80;
/// Ports of servers behind all ports of an address.
const PORTS: [u16; 3] = [21, 2000, 50_000];
const SIP: u16 = 5060;
/// Virtual address of a load balancer whose only server is full.
const FULL: &str = "192.0.2.11";

fn document(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {name}}}\nspec:\n{spec}"
    )
}

/// Both addresses of each real server.
fn backends(reals: &[&Host], rest: &str) -> String {
    let both = |real: &&Host| {
        let (v4, v6) = (real.v4(), real.v6());
        format!("  - {{address: {v4}{rest}}}\n  - {{address: \"{v6}\"{rest}}}\n")
    };
    let all: String = reals.iter().map(both).collect();
    format!("  backends:\n{all}")
}

/// Starts an agent with a file. The client has routes to virtual addresses of both families.
fn start(world: &World, file: &str) -> Process {
    let director = world.director().v6().into();
    world.client().add_route("2001:db8::/64", director).unwrap();
    world.write(file);
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    agent
}

/// Sends a real server's answers to the client through the director.
fn through_director(world: &World, real: &Host) {
    let quiet = [
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/eth0/accept_redirects", "0"),
        ("ipv6/conf/all/accept_redirects", "0"),
        ("ipv6/conf/eth0/accept_redirects", "0"),
    ];
    real.namespace().sysctl(&quiet).unwrap();
    let (client, director) = (world.client(), world.director());
    let (v4, v6) = (client.v4(), client.v6());
    for (to, via) in [
        (format!("{v4}/32"), director.v4().into()),
        (format!("{v6}/128"), director.v6().into()),
    ] {
        real.add_route(&to, via).unwrap();
    }
}

fn socket(addresses: [&str; 2], family: Family, port: u16) -> SocketAddr {
    portolan_e2e::ask::address(addresses, family, port)
}

#[test]
fn masquerading_translates_both_families_and_three_protocols() {
    const NAME: &str = "masquerading_translates_both_families_and_three_protocols";
    if !lane::provides(NAME, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut protocols = vec![Protocol::Tcp, Protocol::Udp];
    if has_sctp() {
        protocols.push(Protocol::Sctp);
    } else {
        lane::missing(NAME, "SCTP is left out, which this kernel lacks");
    }
    let world = World::new(2);
    let reals = [world.real(0), world.real(1)];
    for real in reals {
        through_director(&world, real);
    }
    let serving = reals.into_iter().flat_map(|real| {
        let protocols = protocols.iter();
        protocols.map(move |protocol| real.serve(*protocol, PORT).unwrap())
    });
    let _serving: Vec<_> = serving.collect();
    let object = |name: &str, [v4, v6]: [&str; 2], rest: &str| {
        let frontend = |protocol: &Protocol| {
            let protocol = format!("{protocol:?}").to_uppercase();
            format!("  - {{addresses: [{v4}, \"{v6}\"], protocol: {protocol}, port: {FRONT}}}\n")
        };
        let frontends: String = protocols.iter().map(frontend).collect();
        let backends = backends(&reals, &format!(", port: {PORT}"));
        document(
            name,
            &format!("  frontends:\n{frontends}  scheduler: rr\n{rest}{backends}"),
        )
    };
    let file = object("nat", [VIP, VIP_V6], "  sourceNat: true\n") + &object("plain", PLAIN, "");
    let _agent = start(&world, &file);
    let names = reals.map(Host::name);
    let (client, director) = (world.client(), world.director());
    for protocol in protocols {
        for family in Family::ALL {
            let cases = [([VIP, VIP_V6], director), (PLAIN, client)];
            for (addresses, seen_by_servers) in cases {
                println!("{protocol:?} {family:?} {addresses:?}");
                let to = socket(addresses, family, FRONT);
                let seen = answers(client, protocol, to, &names);
                for name in names {
                    let source = [seen_by_servers.address(family)].into();
                    assert_eq!(sources(&seen, name), source, "{protocol:?} {family:?}");
                }
            }
        }
    }
}

#[test]
fn all_ports_of_an_address_go_to_one_server_of_a_client() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let reals = [world.real(0), world.real(1)];
    let mut servers = Vec::new();
    for real in reals {
        through_director(&world, real);
        servers.extend(PORTS.map(|port| real.serve(Protocol::Tcp, port).unwrap()));
    }
    let spec = format!(
        "  frontends: [{{addresses: [{VIP}, \"{VIP_V6}\"], port: 0}}]\n  scheduler: rr\n  \
         persistence: {{timeout: 10m}}\n{}",
        backends(&reals, "")
    );
    let _agent = start(&world, &document("all", &spec));
    for family in Family::ALL {
        let ask = |port| {
            let to = socket([VIP, VIP_V6], family, port);
            let answer = world.client().request(Protocol::Tcp, to, PROMPT).unwrap();
            assert_eq!(answer.source, world.client().address(family));
            answer.name
        };
        // The port that the client chose is that of the server.
        let names: BTreeSet<_> = PORTS.into_iter().map(ask).collect();
        assert_eq!(names.len(), 1, "{names:?}: {}", world.ipvsadm());
        // No server has it, so that the refusal is the server's.
        let to = socket([VIP, VIP_V6], family, 2001);
        let other = world.client().request(Protocol::Tcp, to, PROMPT);
        assert_eq!(other, Err(RequestError::Refused));
    }
}

/// Asks from an address of the client; the name of the server that answers.
pub(super) fn ask_from(
    client: &Host,
    source: IpAddr,
    to: SocketAddr,
) -> Result<String, RequestError> {
    let source = SocketAddr::new(source, 0);
    let ask = || -> Result<Answer, RequestError> {
        Connection::open_at(source, Protocol::Tcp, to, PROMPT)?.ask()
    };
    let answer = client.namespace().run(ask).unwrap()?;
    Ok(answer.name)
}

#[test]
fn clients_of_one_network_have_one_server() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (client, reals) = (world.client(), [world.real(0), world.real(1)]);
    let _serving = reals.map(serve);
    // Three clients in each of four networks of 28 and of 112 bits.
    let network = |number: u8| -> [Vec<IpAddr>; 2] {
        let v4 = (1..=3).map(|last| Ipv4Addr::new(192, 168, 77, 96 + 16 * number + last).into());
        let v6 = (1..=3).map(|last| format!("fd00:77::{}:{last}", number + 1).parse().unwrap());
        [v4.collect(), v6.collect()]
    };
    let networks: Vec<_> = (0..4).map(network).collect();
    let added = networks.iter().flatten().flatten().map(|address| {
        let (length, flag) = if address.is_ipv4() {
            (24, "")
        } else {
            (64, " nodad")
        };
        format!("address add {address}/{length} dev eth0{flag}")
    });
    client.namespace().ip(&added.collect::<Vec<_>>()).unwrap();
    let spec = format!(
        "  frontends: [{{addresses: [{VIP}, \"{VIP_V6}\"], port: {PORT}}}]\n  scheduler: rr\n  sourceNat: true\n  \
         persistence: {{timeout: 10m, ipv4PrefixLength: 28, ipv6PrefixLength: 112}}\n{}",
        backends(&reals, "")
    );
    let _agent = start(&world, &document("networks", &spec));
    for (family, to) in [vip(VIP), vip(VIP_V6)].into_iter().enumerate() {
        let mut all = BTreeSet::new();
        for network in &networks {
            let names = network[family]
                .iter()
                .map(|from| ask_from(client, *from, to).unwrap());
            let names: BTreeSet<_> = names.collect();
            assert_eq!(names.len(), 1, "{network:?}: {names:?}");
            all.extend(names);
        }
        // Networks are clients of their own, which take turns.
        assert_eq!(all.len(), 2, "{to}: {}", world.ipvsadm());
    }
}

/// Sends a request of a SIP call from a port of the client; the name of the server that answers.
fn call(client: &Host, port: u16, to: SocketAddr, id: usize) -> String {
    let ask = || -> std::io::Result<String> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.set_read_timeout(Some(PROMPT))?;
        socket.connect(to)?;
        let request = format!(
            "OPTIONS sip:web@example.org SIP/2.0\r\nVia: SIP/2.0/UDP client.example.org\r\n\
             Call-ID: call-{id}@example.org\r\nCSeq: 1 OPTIONS\r\n\r\n"
        );
        socket.send(request.as_bytes())?;
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let answer = client.namespace().run(ask).unwrap().unwrap();
    answer.split(' ').next().unwrap().to_owned()
}

#[test]
fn messages_of_a_sip_call_go_to_one_server() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (client, reals) = (world.client(), [world.real(0), world.real(1)]);
    let _serving = reals.map(|real| real.serve(Protocol::Udp, SIP).unwrap());
    let spec = format!(
        "  frontends: [{{addresses: [{VIP}], protocol: UDP, port: {SIP}}}]\n  scheduler: rr\n  sourceNat: true\n  \
         persistence: {{engine: Sip}}\n  backends: [{{address: {}}}, {{address: {}}}]\n",
        reals[0].v4(),
        reals[1].v4()
    );
    let _agent = start(&world, &document("calls", &spec));
    let to = SocketAddr::new(VIP.parse().unwrap(), SIP);
    // A new port for each message: IPVS knows the datagrams of an earlier one.
    let mut ports = 20_000..;
    let mut all = BTreeSet::new();
    for id in 0..6 {
        let ports = ports.by_ref().take(3);
        let names: BTreeSet<_> = ports.map(|port| call(client, port, to, id)).collect();
        assert_eq!(names.len(), 1, "call {id}: {names:?}: {}", world.ipvsadm());
        all.extend(names);
    }
    // The client's address, which all calls share, decides nothing.
    assert_eq!(all.len(), 2, "{}", world.ipvsadm());
}

#[test]
fn a_server_at_its_limit_gets_no_connections_until_some_have_ended() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (client, a, b) = (world.client(), world.real(0), world.real(1));
    let _serving = [serve(a), serve(b)];
    let spec = |address: &str, backends: &str| {
        format!(
            "  frontends: [{{addresses: [{address}], port: {PORT}}}]\n  scheduler: rr\n  sourceNat: true\n  \
             backends: [{backends}]\n"
        )
    };
    let limited = format!(
        "{{address: {}, maxConnections: 2, resumeConnections: 1}}, {{address: {}}}",
        a.v4(),
        b.v4()
    );
    let full = format!("{{address: {}, maxConnections: 1}}", b.v4());
    let file = document("limited", &spec(VIP, &limited)) + &document("full", &spec(FULL, &full));
    let _agent = start(&world, &file);

    // Connections that are open and those that IPVS remembers count, so the first ones stay open.
    let (mut of_a, mut others) = (Vec::new(), Vec::new());
    while of_a.len() < 2 {
        let mut connection = client.connect(Protocol::Tcp, vip(VIP), PROMPT).unwrap();
        match connection.ask().unwrap().name == a.name() {
            true => of_a.push(connection),
            false => others.push(connection),
        }
    }
    assert!(!others.is_empty(), "{}", world.ipvsadm());
    assert_eq!(world.count(6), [(b.name().to_owned(), 6)].into());
    // IPVS forgets connections that were reset after 10 s.
    for connection in of_a {
        connection.reset().unwrap();
    }
    let is_back = || world.count(1).contains_key(a.name()).then_some(());
    wait_for("the limited server", PATIENT, is_back).unwrap();

    // Nobody else is there.
    let mut held = client.connect(Protocol::Tcp, vip(FULL), PROMPT).unwrap();
    assert_eq!(held.ask().unwrap().name, b.name());
    let refused = client.request(Protocol::Tcp, vip(FULL), PROMPT);
    assert!(refused.is_err(), "{refused:?}: {}", world.ipvsadm());
}
