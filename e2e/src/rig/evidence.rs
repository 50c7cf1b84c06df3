// SPDX-License-Identifier: Apache-2.0

//! The kernels' state of a connection that went wrong, for the reader of a failed test.

use std::collections::BTreeSet;
use std::fs;

use super::namespace::Namespace;

/// Lines of the connection tables of this process's namespaces that name a source port, or the port that a node
/// replaced it with. Each begins with the name of its namespace.
#[must_use]
pub fn of_port(port: u16) -> Vec<String> {
    let namespaces = match Namespace::all() {
        Ok(all) => all,
        Err(error) => return vec![format!("{error:#}")],
    };
    let wanted = format!("sport={port} ");
    let replaced = read_all(&namespaces, || lines("nf_conntrack", &wanted));
    let replaced = replaced.iter().filter_map(|line| answered_port(line));
    let ports: BTreeSet<u16> = replaced.chain([port]).collect();
    let read = || ports.iter().flat_map(|port| naming(*port)).collect();
    read_all(&namespaces, read)
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
}
