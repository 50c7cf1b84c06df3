// SPDX-License-Identifier: Apache-2.0

//! The kernels' state of a connection that went wrong, for the reader of a failed test.

use std::collections::BTreeSet;
use std::fs;

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

/// Returns `true` if a node replaced the source port of a connection, and IPVS has another connection of a client with
/// the port in its place. IPVS finds a connection by client and endpoint alone, so it translates the answers to both as
/// those of the one that it has.
pub fn has_port_of_another(port: u16) -> Result<bool> {
    let namespaces = Namespace::all()?;
    let mut ports = answered_ports(&namespaces, port);
    ports.remove(&port);
    let read = || lines("ip_vs_conn", "");
    let connections = read_all(&namespaces, read);
    let clients = connections.iter().filter_map(|line| client_port(line));
    Ok(clients.into_iter().any(|client| ports.contains(&client)))
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

/// The client's port of a connection, from a line of `ip_vs_conn` as [`read_all`] has it: protocol, address, port.
fn client_port(line: &str) -> Option<u16> {
    let (_, connection) = line.split_once("ip_vs_conn: ")?;
    let port = connection.split_whitespace().nth(2)?;
    u16::from_str_radix(port, 16).ok()
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

    #[test]
    fn the_port_of_a_client_is_the_first_one_of_a_line() {
        let line =
            "node0: ip_vs_conn: TCP C0A84D0C 3807 C0A84D0B 75A5 0AF40102 1F90 CLOSE             6";
        assert_eq!(client_port(line), Some(0x3807));
        let head =
            "node0: ip_vs_conn: Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires";
        assert_eq!(client_port(head), None);
    }
}
