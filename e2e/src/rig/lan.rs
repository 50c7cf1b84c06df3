// SPDX-License-Identifier: Apache-2.0

//! The LAN of a rig: a bridge in its own namespace, and the machines on it.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

use super::RigConfig;
use super::host::Host;
use super::namespace::{Namespace, NamespaceSet};

/// The last part of the address of node 0.
const FIRST_NODE: u8 = 11;

/// The last part of the address of the first outside client.
const FIRST_CLIENT: u8 = 200;

/// Builds the bridge and the machines, nodes before clients, connected by `eth0`.
pub(super) fn build(set: &NamespaceSet, config: RigConfig) -> Result<(Namespace, Vec<Host>)> {
    let nodes = (0..config.nodes).map(|number| (format!("node{number}"), FIRST_NODE + number));
    let clients =
        (0..config.clients).map(|number| (format!("client{number}"), FIRST_CLIENT + number));
    let machines: Vec<(String, u8)> = nodes.chain(clients).collect();

    let mut names = vec!["lan".to_owned()];
    names.extend(machines.iter().map(|(name, _)| name.clone()));
    let mut namespaces = set.add(&names)?.into_iter();
    let lan = namespaces.next().context("no namespace for the LAN")?;
    let hosts: Vec<Host> = machines
        .into_iter()
        .zip(namespaces)
        .map(|((name, number), namespace)| Host::new(name, namespace, v4(number), v6(number)))
        .collect();

    lan.ip(&bridge_commands(&hosts))?;
    for host in &hosts {
        host.namespace().ip(&host_commands(host))?;
    }
    Ok((lan, hosts))
}

/// Isolates a machine, or ends its isolation. Isolated ports of the bridge reach all ports except
/// each other.
pub(super) fn isolate(lan: &Namespace, host: &Host, isolated: bool) -> Result<()> {
    let state = if isolated { "on" } else { "off" };
    let name = host.name();
    lan.ip(&[format!(
        "link set {name} type bridge_slave isolated {state}"
    )])
}

/// Takes the carrier from a machine's link, whose interface stays up, or gives it back.
pub(super) fn unplug(lan: &Namespace, host: &Host, unplugged: bool) -> Result<()> {
    let state = if unplugged { "down" } else { "up" };
    lan.ip(&[format!("link set {} {state}", host.name())])
}

/// Sets the largest packet of a machine's link, at both ends.
pub(super) fn set_mtu(lan: &Namespace, host: &Host, bytes: u16) -> Result<()> {
    lan.ip(&[format!("link set {} mtu {bytes}", host.name())])?;
    host.namespace().ip(&[format!("link set eth0 mtu {bytes}")])
}

/// The LAN address of node `number`.
pub(super) fn node_addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (v4(FIRST_NODE + number), v6(FIRST_NODE + number))
}

fn v4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 77, number)
}

/// The address with the same digits as written: fd00:77::200 for 192.168.77.200.
fn v6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, as_written(number))
}

/// The number whose hexadecimal digits are the decimal digits of `number`.
pub(super) fn as_written(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

fn bridge_commands(hosts: &[Host]) -> Vec<String> {
    let mut commands = vec![
        "link add lan type bridge".to_owned(),
        "link set lan up".to_owned(),
    ];
    for host in hosts {
        let (name, namespace) = (host.name(), host.namespace().name());
        commands.push(format!(
            "link add {name} type veth peer name eth0 netns {namespace}"
        ));
        commands.push(format!("link set {name} master lan up"));
    }
    commands
}

fn host_commands(host: &Host) -> Vec<String> {
    vec![
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("addr add {}/24 dev eth0", host.v4()),
        format!("addr add {}/64 dev eth0 nodad", host.v6()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_read_alike() {
        assert_eq!(v4(200).to_string(), "192.168.77.200");
        assert_eq!(v6(200).to_string(), "fd00:77::200");
        assert_eq!(v6(11).to_string(), "fd00:77::11");
    }
}
