// SPDX-License-Identifier: Apache-2.0

//! The kernels' state of a connection that went wrong, for the reader of a failed test.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use super::namespace::Namespace;

/// Lines of the connection tables of this process's namespaces that name a source port, or the port that a node
/// replaced it with. Each begins with the name of its namespace.
#[must_use]
pub fn of_port(port: u16) -> Vec<String> {
    let namespaces = match Namespace::all() {
        Ok(all) => all,
        Err(error) => return vec![format!("{error:#}")],
    };
    let mut ports = answered_ports(&namespaces, port);
    ports.insert(port);
    let read = || ports.iter().flat_map(|port| naming(*port)).collect();
    read_all(&namespaces, read)
}

/// Returns `true` if a node replaced the source port of a connection, and IPVS has another connection from the client's
/// new port to the same endpoint. IPVS finds a connection by client and endpoint alone, so it translates the answers to
/// both as those of the one that it has.
pub fn has_port_of_another(port: u16) -> Result<bool> {
    let namespaces = Namespace::all()?;
    let wanted = format!("sport={port} ");
    let tracked = read_all(&namespaces, || lines("nf_conntrack", &wanted));
    let answered: BTreeSet<Ends> = tracked.iter().filter_map(|line| answered(line)).collect();
    let connections = read_all(&namespaces, || lines("ip_vs_conn", ""));
    let mut others = connections.iter().filter_map(|line| balanced(line));
    Ok(others.any(|ends| ends.client.port() != port && answered.contains(&ends)))
}

/// The ends of a connection by its answers.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends {
    client: SocketAddr,
    endpoint: SocketAddr,
}

/// The ends between which answers go, from a line of `nf_conntrack`: the second one of each of its fields.
fn answered(line: &str) -> Option<Ends> {
    let last = |name: &str| {
        let fields = line.split(' ').rev();
        fields.filter_map(|field| field.strip_prefix(name)).next()
    };
    let socket = |ip: &str, port: &str| {
        Some(SocketAddr::new(
            last(ip)?.parse().ok()?,
            last(port)?.parse().ok()?,
        ))
    };
    Some(Ends {
        client: socket("dst=", "dport=")?,
        endpoint: socket("src=", "sport=")?,
    })
}

/// The ends of a connection in IPVS, from a line of `ip_vs_conn` as [`read_all`] has it: protocol, client, virtual
/// server and endpoint, in hexadecimal digits but for addresses of IPv6.
fn balanced(line: &str) -> Option<Ends> {
    let (_, connection) = line.split_once("ip_vs_conn: ")?;
    let fields: Vec<&str> = connection.split_whitespace().collect();
    let [_, client, client_port, _, _, endpoint, endpoint_port, ..] = fields[..] else {
        return None;
    };
    let socket = |ip: &str, port| {
        let v4 = || {
            u32::from_str_radix(ip, 16)
                .ok()
                .map(|bits| Ipv4Addr::from(bits).into())
        };
        let ip = ip.parse().ok().or_else(v4)?;
        Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
    };
    Some(Ends {
        client: socket(client, client_port)?,
        endpoint: socket(endpoint, endpoint_port)?,
    })
}

/// The ports that answers of connections with a source port go to.
fn answered_ports(namespaces: &[Namespace], port: u16) -> BTreeSet<u16> {
    let wanted = format!("sport={port} ");
    let found = read_all(namespaces, || lines("nf_conntrack", &wanted));
    found
        .iter()
        .filter_map(|line| answered_port(line))
        .collect()
}

/// The port that answers of a connection go to, from its line in `nf_conntrack`: the last `dport`.
fn answered_port(line: &str) -> Option<u16> {
    let (_, answer) = line.rsplit_once("dport=")?;
    answer.split(' ').next()?.parse().ok()
}

/// The lines of this thread's namespace that name a port.
fn naming(port: u16) -> Vec<String> {
    // IPVS and lists of sockets print ports in hexadecimal digits.
    let (ipvs, conntrack) = (format!(" {port:04X} "), format!("port={port} "));
    let socket = format!(":{port:04X} ");
    [
        lines("ip_vs_conn", &ipvs),
        lines("nf_conntrack", &conntrack),
        lines("tcp", &socket),
        lines("tcp6", &socket),
    ]
    .concat()
}

/// The lines that are read in each namespace.
fn read_all(namespaces: &[Namespace], read: impl Fn() -> Vec<String> + Sync) -> Vec<String> {
    let of_one = |namespace: &Namespace| {
        let lines = namespace.run(&read);
        let lines = lines.unwrap_or_else(|error| vec![format!("{error:#}")]);
        let name = namespace.name().to_owned();
        lines.into_iter().map(move |line| format!("{name}: {line}"))
    };
    namespaces.iter().flat_map(of_one).collect()
}

/// The lines of a file of this thread's namespace that contain a text, or the reason why it cannot be read: no line of
/// a table that is there means that it has no such connection.
fn lines(file: &str, wanted: &str) -> Vec<String> {
    let text = match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
        Ok(text) => text,
        Err(error) => return vec![format!("{file}: {error}")],
    };
    let lines = text.lines().filter(|line| line.contains(wanted));
    lines.map(|line| format!("{file}: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_go_to_the_last_port_of_a_line() {
        let line = "ipv6 10 udp 17 29 src=fd::1 dst=fd::2 sport=4000 dport=80 src=fd::3 dst=fd::4 \
                    sport=8080 dport=51234 mark=0 use=2";
        assert_eq!(answered_port(line), Some(51234));
        assert_eq!(answered_port("no connection"), None);
    }

    /// Lines of requests that got no answer.
    #[test]
    fn both_tables_tell_the_ends_of_a_connection() {
        let v4 = "node0: ip_vs_conn: TCP C0A84D0C 3807 C0A84D0B 75A5 0AF40102 1F90 CLOSE   6";
        let tracked = "node1: nf_conntrack: ipv4     2 tcp      6 56 SYN_RECV src=192.168.77.12 dst=10.96.0.9 \
                       sport=12001 dport=80 src=10.244.1.2 dst=192.168.77.12 sport=8080 dport=14343 mark=0 use=2";
        let ends = balanced(v4).unwrap();
        assert_eq!(ends.client, "192.168.77.12:14343".parse().unwrap());
        assert_eq!(answered(tracked), Some(ends));

        let v6 = "node0: ip_vs_conn: TCP fd00:0077:0000:0000:0000:0000:0000:0012 39D5 \
                  fd00:0077:0000:0000:0000:0000:0000:0011 75A6 \
                  fd00:0244:0001:0000:0000:0000:0000:0002 1F90 CLOSE   7";
        let tracked = "node1: nf_conntrack: ipv6     10 tcp      6 57 SYN_RECV src=fd00:77::12 dst=fd00:10:96::9 \
                       sport=12002 dport=80 src=fd00:0244:0001:0000:0000:0000:0000:0002 \
                       dst=fd00:0077:0000:0000:0000:0000:0000:0012 sport=8080 dport=14805 mark=0 use=2";
        assert_eq!(answered(tracked), Some(balanced(v6).unwrap()));
        let other = tracked.replace("dport=14805", "dport=14806");
        assert_ne!(answered(&other), balanced(v6));

        let head =
            "node0: ip_vs_conn: Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires";
        assert_eq!(balanced(head), None);
        assert_eq!(
            balanced("node0: ip_vs_conn: No such file or directory (os error 2)"),
            None
        );
    }
}
