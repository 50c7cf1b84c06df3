// SPDX-License-Identifier: Apache-2.0

//! The commands that real servers need.

#![allow(clippy::unwrap_used, reason = "a test")]

use portolan_director::{Already, File, explain, parse};

fn explained(spec: &str) -> String {
    let text = format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n{spec}"
    );
    let file = File {
        name: "x.yaml",
        text: &text,
    };
    explain(&parse(&[file], &Already::default()).unwrap().load_balancers[0])
}

#[test]
fn servers_behind_nat_answer_through_the_director() {
    let spec =
        "  frontends: [{addresses: [192.0.2.10], port: 80}]\n  backends: [{address: 10.0.0.1}]\n";
    assert_eq!(
        explained(spec),
        "# default/web: 10.0.0.1\n\
         # its default route leads to the director, or the object has sourceNat\n\
         ip -4 route replace default via DIRECTOR\n"
    );
    let source_nat = format!("{spec}  sourceNat: true\n");
    assert_eq!(
        explained(&source_nat),
        "# default/web: 10.0.0.1\n# nothing: the director is its client\n"
    );
}

#[test]
fn servers_behind_direct_routing_have_the_address_and_keep_silent() {
    let spec = "  frontends: [{addresses: [192.0.2.10, \"2001:db8::10\"], port: 80}]\n  \
                forwarding: {method: Direct}\n  \
                backends: [{address: 10.0.0.1}, {address: 10.0.0.2}, {address: \"fd00::1\"}]\n";
    assert_eq!(
        explained(spec),
        "# default/web: 10.0.0.1, 10.0.0.2\n\
         sysctl -w net.ipv4.conf.all.arp_ignore=1\n\
         sysctl -w net.ipv4.conf.all.arp_announce=2\n\
         ip -4 address add 192.0.2.10/32 dev lo\n\
         # default/web: fd00::1\n\
         ip -6 address add 2001:db8::10/128 dev lo nodad\n"
    );
}

#[test]
fn servers_behind_tunnels_take_the_outer_packet_off() {
    let tunnel = |tunnel: &str, address: &str| {
        explained(&format!(
            "  frontends: [{{addresses: [192.0.2.10], port: 80}}]\n  \
             forwarding: {{method: Tunnel, tunnel: {tunnel}}}\n  backends: [{{address: \"{address}\"}}]\n"
        ))
    };
    let loopback = "sysctl -w net.ipv4.conf.all.arp_ignore=1\n\
                    sysctl -w net.ipv4.conf.all.arp_announce=2\n\
                    ip -4 address add 192.0.2.10/32 dev lo\n";
    let filter = |device: &str| {
        format!(
            "sysctl -w net.ipv4.conf.{device}.rp_filter=0\nsysctl -w net.ipv4.conf.all.rp_filter=0\n"
        )
    };
    let cases = [
        (
            "{type: IPIP}",
            "10.0.0.1",
            "modprobe ipip\nip link set tunl0 up\n",
            "tunl0",
        ),
        (
            "{type: GUE, port: 6080}",
            "10.0.0.1",
            "modprobe fou\nmodprobe ipip\nip -4 fou add port 6080 gue\nip link set tunl0 up\n",
            "tunl0",
        ),
        (
            "{type: GRE}",
            "10.0.0.1",
            "ip link add ptl0 type gre local 10.0.0.1 remote any\nip link set ptl0 up\n",
            "ptl0",
        ),
        (
            "{type: IPIP}",
            "fd00::1",
            "ip link add ptl0 type ip6tnl mode any local fd00::1 remote ::\nip link set ptl0 up\n",
            "ptl0",
        ),
    ];
    for (settings, address, commands, device) in cases {
        let expected = format!(
            "# default/web: {address}\n{commands}{}{loopback}",
            filter(device)
        );
        assert_eq!(tunnel(settings, address), expected);
    }
}

#[test]
fn tunnels_of_the_other_family_and_with_checksums_need_other_devices() {
    let commands = |vip: &str, tunnel: &str, address: &str| {
        let text = explained(&format!(
            "  frontends: [{{addresses: [\"{vip}\"], port: 80}}]\n  \
             forwarding: {{method: Tunnel, tunnel: {tunnel}}}\n  backends: [{{address: \"{address}\"}}]\n"
        ));
        let lines = text.lines().filter(|line| !line.contains("sysctl"));
        // The heading, and the virtual address on lo.
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        lines[1..lines.len() - 1].join("; ")
    };
    let any = "ip link add ptl0 type ip6tnl mode any local fd00::1 remote ::";
    let (v4, v6) = ("192.0.2.10", "2001:db8::10");
    let cases = [
        (
            v6,
            "{type: IPIP}",
            "10.0.0.1",
            "modprobe sit; ip link set sit0 up".to_owned(),
        ),
        (
            v6,
            "{type: GUE, port: 6080}",
            "10.0.0.1",
            "modprobe fou; modprobe sit; ip -4 fou add port 6080 gue; ip link set sit0 up"
                .to_owned(),
        ),
        (
            v4,
            "{type: IPIP}",
            "fd00::1",
            format!("{any}; ip link set ptl0 up"),
        ),
        (
            v4,
            "{type: GUE, port: 6080}",
            "fd00::1",
            format!("modprobe fou6; {any}; ip -6 fou add port 6080 gue; ip link set ptl0 up"),
        ),
        (
            v6,
            "{type: GUE, port: 6080}",
            "fd00::1",
            "modprobe fou6; modprobe ip6_tunnel; ip -6 fou add port 6080 gue; ip link set ip6tnl0 up"
                .to_owned(),
        ),
        (
            v4,
            "{type: GRE, checksum: Full}",
            "10.0.0.1",
            "ip link add ptl0 type gre local 10.0.0.1 remote any icsum; ip link set ptl0 up"
                .to_owned(),
        ),
    ];
    for (vip, tunnel, address, expected) in cases {
        assert_eq!(commands(vip, tunnel, address), expected);
    }
}
