// SPDX-License-Identifier: Apache-2.0

//! The agent never changes kernel objects of other programs: virtual servers, also at a VIP of the
//! agent, sets, rules, devices, addresses and routes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use portolan_e2e::ask::address;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::listing::listing;
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const MORE: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];

/// Foreign objects that exist before the agent starts, one command a line.
const BEFORE: &str = "
ipvsadm -A -t 10.96.0.10:9999 -s wrr -p 120
ipvsadm -a -t 10.96.0.10:9999 -r 192.168.77.200:80 -g -w 3
ipvsadm -A -t [fd00:10:96::10]:9999 -s rr
ipvsadm -a -t [fd00:10:96::10]:9999 -r [fd00:77::200]:80 -m -w 1
ipvsadm -A -u 198.51.100.77:53 -s rr
ipvsadm -A -f 77 -s sh
ipvsadm -a -f 77 -r 192.168.77.200:0 -g -w 2
ipset create OTHERS hash:ip,port
ipset add OTHERS 10.96.0.10,tcp:80
ipset create KUBE-OF-OTHERS hash:net
ipset add KUBE-OF-OTHERS 198.51.100.0/24
iptables -t nat -N OTHERS
iptables -t nat -A OTHERS -d 198.51.100.77/32 -j RETURN
iptables -t nat -A PREROUTING -j OTHERS
iptables -t filter -N KUBE-FIREWALL
iptables -t filter -A KUBE-FIREWALL -m set --match-set KUBE-OF-OTHERS src -j DROP
iptables -t filter -A OUTPUT -j KUBE-FIREWALL
iptables -t mangle -A PREROUTING -d 198.51.100.78/32 -j MARK --set-mark 0x4d
iptables -t mangle -N KUBE-KUBELET-CANARY
ip6tables -t filter -A FORWARD -p tcp --dport 9999 -j ACCEPT
ip link add others0 type dummy
ip addr add 198.51.100.77/32 dev others0
ip addr add 2001:db8:100::77/128 dev others0 nodad
ip route add local 198.51.100.79/32 dev lo table local proto 42
ip -6 route add local 2001:db8:100::79/128 dev lo table local proto 42
";

/// Foreign objects that are created while it runs.
const DURING: &str = "
ipvsadm -A -t 10.96.0.11:9998 -s lc
ipvsadm -a -t 10.96.0.11:9998 -r 192.168.77.200:81 -m -w 5
ipset add OTHERS 10.96.0.11,udp:9
ipset create LATER-OTHERS hash:ip
ipset add LATER-OTHERS 10.96.0.10
iptables -t nat -I POSTROUTING 1 -d 198.51.100.80/32 -j ACCEPT
iptables -t filter -N OTHERS-LATER
iptables -t filter -I FORWARD 1 -m set --match-set LATER-OTHERS dst -j OTHERS-LATER
ip addr add 198.51.100.81/32 dev others0
ip route add 198.51.100.82/32 dev lo proto 42
";

/// Foreign routes of the agent's VIPs, equal to the agent's in effect.
const ROUTES: &str = "
ip route add local 10.96.0.10/32 dev lo table local proto 42
ip -6 route add local fd00:10:96::10/128 dev lo table local proto 42
";

/// Foreign sets.
const SETS: [&str; 3] = ["OTHERS", "KUBE-OF-OTHERS", "LATER-OTHERS"];

/// Prefixes of words in foreign rules.
const RULE_WORDS: [&str; 6] = [
    "198.51.100.",
    "OTHERS",
    "LATER-OTHERS",
    "KUBE-FIREWALL",
    "KUBE-KUBELET-CANARY",
    "0x4d/",
];

fn run(node: &Host, commands: &str) {
    for command in commands.lines().filter(|line| !line.is_empty()) {
        let words: Vec<_> = command.split(' ').collect();
        node.exec(&words)
            .unwrap_or_else(|error| panic!("{command}: {error:#}"));
    }
}

/// Returns `true` if a line of a command's output describes a foreign object. Words are compared,
/// since lines contain random numbers too: a set's `initval`, a device's link address.
fn is_theirs(command: &str, line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    let any = |test: &dyn Fn(&str) -> bool| words.iter().any(|word| test(word));
    let begins = |start: &str| any(&|word| word.trim_start_matches(':').starts_with(start));
    let has = |pair: [&str; 2]| words.windows(2).any(|found| found == pair);
    let second = words.get(1).map(|word| word.trim_end_matches(':'));
    match command {
        "ipvsadm -Sn" => {
            let port = any(&|word| word.ends_with(":9999") || word.ends_with(":9998"));
            port || begins("198.51.100.77:") || has(["-f", "77"])
        }
        "ipset -s save" => second.is_some_and(|name| SETS.contains(&name)),
        "iptables-save" | "ip6tables-save" => {
            RULE_WORDS.into_iter().any(begins) || has(["--dport", "9999"])
        }
        "ip -o link" | "ip -o addr" => second == Some("others0"),
        _ => {
            let address = begins("198.51.100.") || begins("2001:db8:100:");
            address || has(["proto", "42"]) || has(["dev", "others0"])
        }
    }
}

/// All foreign objects, as the tools print them.
fn theirs(node: &Host) -> String {
    let commands = [
        "ipvsadm -Sn",
        "ipset -s save",
        "iptables-save",
        "ip6tables-save",
        "ip -o link",
        "ip -o addr",
        "ip -4 route show table all",
        "ip -6 route show table all",
    ];
    listing(node, &commands, is_theirs).unwrap()
}

/// Foreign routes of a VIP stay untouched and are reported; when they are gone, the agent adds its own. Returns
/// the foreign objects of that time.
fn routes_beside_ours(cluster: &Cluster) -> String {
    let node = cluster.rig.node(0);
    let wait_for_errors = |count: usize| {
        let line = format!("portolan_agent_errors_current {count}");
        wait_for(&line, PATIENT, || {
            let metrics = cluster.agent_metrics(0).ok()?;
            metrics.lines().any(|found| found == line).then_some(())
        })
        .unwrap();
    };
    run(node, ROUTES);
    let routed = theirs(node);
    // Two ports at two addresses.
    wait_for_errors(4);
    assert_eq!(theirs(node), routed, "told of");
    let client = cluster.rig.client();
    let ask = || {
        for family in Family::ALL {
            let answer = client.request(Protocol::Tcp, node.socket(family, 30080), PATIENT);
            answer.unwrap();
            let answer = node.request(Protocol::Tcp, address(WEB, family, 80), PATIENT);
            answer.unwrap();
        }
    };
    ask();
    run(node, &ROUTES.replace(" add ", " del "));
    ask();
    wait_for_errors(0);
    routed
}

fn publish(
    cluster: &Cluster,
    name: &str,
    ips: [&str; 2],
    node_port: u16,
    pods: &[(&EchoPod, usize)],
) {
    let spec = json!({ "type": "NodePort", "ports": ports(Some(node_port)) });
    let objects = [vec![service(name, ips, spec)], slices(name, pods)].concat();
    cluster.put(&format!("{name}.json"), &objects).unwrap();
}

#[test]
fn random_numbers_are_not_mistaken_for_foreign_objects() {
    let ours = "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 initval 0x4d0a9999";
    assert!(!is_theirs("ipset -s save", ours));
    assert!(is_theirs(
        "ipset -s save",
        &ours.replace("CLUSTER-IP", "OF-OTHERS")
    ));
    let ours = "3: veth0    inet6 fe80::a8bb:ccff:fedd:9999/64 scope link";
    assert!(!is_theirs("ip -o addr", ours));
    assert!(is_theirs("ip -o addr", &ours.replace("veth0", "others0")));
    let rule = "-A PREROUTING -d 1.2.3.4/32 -j MARK --set-xmark 0x4d/0xffffffff";
    assert!(is_theirs("iptables-save", rule));
    assert!(!is_theirs(
        "iptables-save",
        &rule.replace("0x4d/", "0x4d00/")
    ));
}

#[test]
fn foreign_objects_stay_untouched() {
    if !lane::provides("foreign_objects_stay_untouched", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let pods = [(&a, 0), (&b, 1)];
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.clean_up(0).unwrap();
    run(cluster.rig.node(0), BEFORE);
    let before = theirs(cluster.rig.node(0));
    println!("{before}");

    let check = |cluster: &Cluster, expected: &str, when: &str| {
        assert_eq!(theirs(cluster.rig.node(0)), expected, "{when}");
    };
    // Foreign addresses would otherwise get node ports.
    let ports = "--node-port-addresses=192.168.77.0/24,fd00:77::/64";
    let restart = |cluster: &mut Cluster, flag: &str| {
        cluster.start_agent_with(0, &[ports, flag]).unwrap();
        cluster.wait_until_ready(0).unwrap();
    };
    restart(&mut cluster, "--sync-period=1");
    check(&cluster, &before, "start");
    publish(&cluster, "web", WEB, 30080, &pods);
    check(&cluster, &before, "a Service came");

    run(cluster.rig.node(0), DURING);
    let during = theirs(cluster.rig.node(0));
    assert_ne!(during, before);
    for round in 0..3 {
        publish(&cluster, "more", MORE, 30081, &pods[..1]);
        publish(&cluster, "web", WEB, 30080, &pods[1..]);
        cluster.put("more.json", &[]).unwrap();
        publish(&cluster, "web", WEB, 30080, &pods);
        check(&cluster, &during, &format!("churn {round}"));
    }
    cluster.agent(0).unwrap().kill9().unwrap();
    // Without leftovers of a kube-proxy a takeover changes nothing.
    restart(&mut cluster, "--takeover=kube-proxy");
    check(&cluster, &during, "restart");
    publish(&cluster, "more", MORE, 30081, &pods);
    check(&cluster, &during, "a Service came after the restart");
    let routed = routes_beside_ours(&cluster);
    check(&cluster, &during, "a VIP's routes went");
    run(cluster.rig.node(0), ROUTES);
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.clean_up(0).unwrap();
    check(&cluster, &routed, "cleanup");
    let servers = cluster.rig.node(0).exec(&["ipvsadm", "-Sn"]).unwrap();
    assert!(!servers.contains("10.96.0.10:80 "), "{servers}");
}
