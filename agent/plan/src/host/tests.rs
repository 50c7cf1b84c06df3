// SPDX-License-Identifier: Apache-2.0

use portolan_model::ipvs::{SyncDaemon, SyncRole};
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vips(bound: &[&str], served: &[&str]) -> Vips {
    Vips {
        bound: bound.iter().map(|text| ip(text)).collect(),
        served: served.iter().map(|text| ip(text)).collect(),
        ..Vips::default()
    }
}

/// A host with all that there is, on a kernel with other values.
fn all() -> (Host, HostState) {
    let host = Host {
        timeouts: Timeouts {
            tcp: 600,
            tcp_fin: 0,
            udp: 30,
        },
        sysctls: [("net.ipv4.vs.sloppy_tcp".to_owned(), "1".to_owned())].into(),
        sync: Some(SyncDaemon::new("eth1")),
        interface: Some("eth0.7".to_owned()),
        announce_table: 199,
        ..Host::default()
    };
    let value = |name: &str| (name.to_owned(), Ok("0".to_owned()));
    let observed = HostState {
        timeouts: Timeouts {
            tcp: 900,
            tcp_fin: 120,
            udp: 300,
        },
        sysctls: ["net.ipv4.vs.sloppy_tcp", "net.ipv6.conf.eth0/7.proxy_ndp"]
            .map(value)
            .into(),
        ..HostState::default()
    };
    (host, observed)
}

const V4: &str = "192.0.2.10";
const V6: &str = "2001:db8::10";

fn planned(desired: &HostDesired, observed: &HostState, owned: &Owned) -> Vec<String> {
    let (steps, problems) = plan_host(desired, observed, owned);
    assert_eq!(problems, [""; 0]);
    let lines = steps.iter().map(|step| step.line(observed).to_string());
    lines.collect()
}

#[test]
fn a_plan_has_all_that_differs_and_the_next_one_is_empty() {
    let (host, mut observed) = all();
    let desired = HostDesired::new(&host, &vips(&[V4, V6], &[V4]));
    let lines = planned(&desired, &observed, &Owned::default());
    let daemon = "--mcast-interface eth1 --syncid 0 --sync-maxlen 1472 --mcast-group 224.0.0.81 \
                  --mcast-port 8848 --mcast-ttl 1";
    let expected = [
        "~ ipvsadm --set 600 120 30  # was ipvsadm --set 900 120 300".to_owned(),
        "~ sysctl -w net.ipv4.vs.sloppy_tcp=1  # was 0".to_owned(),
        "~ sysctl -w net.ipv6.conf.eth0/7.proxy_ndp=1  # was 0".to_owned(),
        format!("+ ipvsadm --start-daemon master {daemon}"),
        format!("+ ipvsadm --start-daemon backup {daemon}"),
        format!("+ ip neighbour add proxy {V6} dev eth0.7 proto 99"),
        format!("+ ip route add {V4}/32 dev lo table 199 proto 99"),
    ];
    assert_eq!(lines, expected);
    let (steps, _) = plan_host(&desired, &observed, &Owned::default());
    steps.iter().for_each(|step| observed.advance(step));
    assert_eq!(planned(&desired, &observed, &Owned::default()), [""; 0]);
}

#[test]
fn a_director_on_standby_answers_for_nothing_and_is_synchronised() {
    let (host, observed) = all();
    let host = Host {
        is_active: false,
        ..host
    };
    let desired = HostDesired::new(&host, &vips(&[V4, V6], &[V4, V6]));
    assert!(desired.neighbours.is_empty() && desired.announced.is_empty());
    assert_eq!(desired.daemons.len(), 2);
    let there = HostState {
        neighbours: [Neighbour {
            interface: "eth0.7".to_owned(),
            address: ip(V6),
        }]
        .into(),
        announced: [(199, ip(V4))].into(),
        ..observed
    };
    let (steps, _) = plan_host(&desired, &there, &Owned::default());
    let (first, rest) = steps.split_at(2);
    assert!(first.iter().all(HostStep::is_removal), "{first:?}");
    assert!(!rest.iter().any(HostStep::is_removal), "{rest:?}");
}

#[test]
fn addresses_of_somebody_else_get_no_proxy_and_are_announced() {
    let (host, _) = all();
    let host = Host {
        binding: None,
        ..host
    };
    let desired = HostDesired::new(&host, &vips(&[V6], &[V6]));
    assert!(desired.neighbours.is_empty());
    assert_eq!(desired.announced, [(199, ip(V6))].into());
}

#[test]
fn a_daemon_that_differs_is_stopped_before_it_is_started() {
    let (host, mut observed) = all();
    let desired = HostDesired::new(&host, &Vips::default());
    let other = SyncDaemon {
        id: 9,
        ..SyncDaemon::new("eth1")
    };
    observed.daemons.insert(SyncRole::Backup, other);
    observed
        .daemons
        .insert(SyncRole::Master, SyncDaemon::new("eth1"));
    let daemons = |observed: &HostState| {
        let (steps, _) = plan_host(&desired, observed, &Owned::default());
        let steps = steps.into_iter().filter_map(|step| match step {
            HostStep::AddDaemon { role, .. } => Some((role, true)),
            HostStep::DelDaemon { role } => Some((role, false)),
            _ => None,
        });
        steps.collect::<Vec<_>>()
    };
    let (master, backup) = (SyncRole::Master, SyncRole::Backup);
    assert_eq!(daemons(&observed), [(backup, false), (backup, true)]);
    // The number of threads counts when a daemon starts.
    let mut host = host.clone();
    let ports = "net.ipv4.vs.sync_ports".to_owned();
    host.sysctls.insert(ports.clone(), "4".to_owned());
    observed.sysctls.insert(ports.clone(), Ok("1".to_owned()));
    let desired = HostDesired::new(&host, &Vips::default());
    let (steps, _) = plan_host(&desired, &observed, &Owned::default());
    let at = |wanted: &HostStep| steps.iter().position(|step| step == wanted).unwrap();
    let set = HostStep::SetSysctl {
        name: ports,
        value: "4".to_owned(),
    };
    let start = HostStep::AddDaemon {
        role: master,
        daemon: SyncDaemon::new("eth1"),
    };
    assert!(at(&HostStep::DelDaemon { role: master }) < at(&set) && at(&set) < at(&start));
}

#[test]
fn only_our_own_daemons_are_stopped() {
    let desired = HostDesired::default();
    let ours = SyncDaemon::new("eth1");
    let owned = Owned {
        daemons: [(SyncRole::Master, ours.clone())].into(),
        ..Owned::default()
    };
    let with = |daemon: SyncDaemon| HostState {
        daemons: SyncRole::ALL.map(|role| (role, daemon.clone())).into(),
        ..HostState::default()
    };
    let lines = planned(&desired, &with(ours), &owned);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("- ipvsadm --stop-daemon master"));
    let theirs = SyncDaemon {
        id: 3,
        ..SyncDaemon::new("eth1")
    };
    assert_eq!(planned(&desired, &with(theirs), &owned), [""; 0]);
}

#[test]
fn a_setting_is_written_reported_or_left() {
    let name = "net.ipv4.vs.sync_threshold";
    let host = |mode| Host {
        sysctl_mode: mode,
        sysctls: [(name.to_owned(), "2 \t 40".to_owned())].into(),
        ..Host::default()
    };
    let with = |value: Result<&str, &str>| HostState {
        sysctls: [(
            name.to_owned(),
            value.map(str::to_owned).map_err(str::to_owned),
        )]
        .into(),
        ..HostState::default()
    };
    let plan = |mode, state: &HostState| {
        let desired = HostDesired::new(&host(mode), &Vips::default());
        let (steps, problems) = plan_host(&desired, state, &Owned::default());
        (steps.len(), problems)
    };
    let wrong = with(Ok("3 50"));
    assert_eq!(plan(SysctlMode::Set, &wrong), (1, vec![]));
    let problem = format!("{name} is 3 50: expected 2 \t 40");
    assert_eq!(plan(SysctlMode::Check, &wrong), (0, vec![problem]));
    assert_eq!(plan(SysctlMode::Ignore, &wrong), (0, vec![]));
    assert_eq!(plan(SysctlMode::Set, &with(Ok("2 40"))), (0, vec![]));
    // What cannot be read cannot be written either.
    let (steps, problems) = plan(SysctlMode::Set, &with(Err("no such file")));
    assert_eq!((steps, problems.len()), (0, 1));
    assert!(problems[0].contains("no such file"), "{problems:?}");
}

#[test]
fn an_interface_that_is_to_answer_and_does_not_forward_is_a_warning_and_no_problem() {
    let (host, observed) = all();
    let (name, of_all) = (
        "net.ipv6.conf.eth0/7.forwarding",
        "net.ipv6.conf.all.forwarding",
    );
    let told_of = |host: &Host, vip: &str, value: &str| {
        let mut observed = observed.clone();
        for name in [name, of_all] {
            let value = Ok(value.to_owned());
            observed.sysctls.insert(name.to_owned(), value);
        }
        let desired = HostDesired::new(host, &vips(&[vip], &[]));
        let (steps, problems) = plan_host(&desired, &observed, &Owned::default());
        assert_eq!(problems, [""; 0]);
        warnings(&desired, &observed, &steps)
    };
    let told = told_of(&host, V6, "0");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with(&format!("{name} is 0: ")), "{told:?}");
    assert_eq!(told_of(&host, V6, "1"), [""; 0]);
    // Answers to ARP need no forwarding.
    assert_eq!(told_of(&host, V4, "0"), [""; 0]);
    let standby = Host {
        is_active: false,
        ..host.clone()
    };
    assert_eq!(told_of(&standby, V6, "0"), [""; 0]);
    let ignoring = Host {
        sysctl_mode: SysctlMode::Ignore,
        ..host.clone()
    };
    assert_eq!(told_of(&ignoring, V6, "0"), [""; 0]);
    let with = |name: &str, value: &str| {
        let mut host = host.clone();
        host.sysctls.insert(name.to_owned(), value.to_owned());
        host
    };
    // The file lets it be written, for the interface or for all.
    assert_eq!(told_of(&with(name, "1"), V6, "0"), [""; 0]);
    assert_eq!(told_of(&with(of_all, "1"), V6, "0"), [""; 0]);
    // A file that asks for silence is told so.
    assert_eq!(told_of(&with(name, "0"), V6, "0"), told);
}

#[test]
fn a_host_that_is_to_forward_answers_by_ipv6_and_does_not_is_a_warning_and_no_problem() {
    let name = "net.ipv6.conf.all.forwarding";
    let told_of = |host: &Host, forwards, value: &str| {
        let observed = HostState {
            sysctls: [(name.to_owned(), Ok(value.to_owned()))].into(),
            ..HostState::default()
        };
        let vips = Vips {
            forwards,
            ..Vips::default()
        };
        let desired = HostDesired::new(host, &vips);
        let (steps, problems) = plan_host(&desired, &observed, &Owned::default());
        let written = steps.iter().map(ToString::to_string).collect::<Vec<_>>();
        let told = [problems, warnings(&desired, &observed, &steps)].concat();
        (written, told)
    };
    let nothing = (vec![], vec![]);
    let unanswered = "IPv6 clients get no answers from servers behind Masquerade";
    let warning = format!("{name} is 0: expected 1, or {unanswered}");
    let warned = (vec![], vec![warning]);
    let host = Host::default();
    assert_eq!(told_of(&host, true, "0"), warned);
    assert_eq!(told_of(&host, true, "1"), nothing);
    assert_eq!(told_of(&host, false, "0"), nothing);
    // The address is another program's, or this director's after a failover: clients come all the same.
    for (binding, is_active) in [(None, true), (Some(VipBinding::Route), false)] {
        let other = Host {
            binding,
            is_active,
            ..Host::default()
        };
        assert_eq!(told_of(&other, true, "0"), warned);
    }
    let ignoring = Host {
        sysctl_mode: SysctlMode::Ignore,
        ..Host::default()
    };
    assert_eq!(told_of(&ignoring, true, "0"), nothing);
    // The file lets it be written.
    let asking = Host {
        sysctls: [(name.to_owned(), "1".to_owned())].into(),
        ..Host::default()
    };
    let written = (vec![format!("set {name} = 1")], vec![]);
    assert_eq!(told_of(&asking, true, "0"), written);
}

#[test]
fn answers_from_virtual_addresses_are_let_in() {
    let (local, filter) = (
        "net.ipv4.conf.all.accept_local",
        "net.ipv4.conf.all.rp_filter",
    );
    let of_interface = "net.ipv4.conf.eth0/7.rp_filter";
    let answered = Vips {
        answer: true,
        ..Vips::default()
    };
    let host = Host {
        interface: Some("eth0.7".to_owned()),
        ..Host::default()
    };
    let steps = |host: &Host, values: [&str; 3]| -> Vec<String> {
        let names = [local, filter, of_interface];
        let observed = HostState {
            sysctls: names
                .into_iter()
                .zip(values)
                .map(|(name, value)| (name.to_owned(), Ok(value.to_owned())))
                .collect(),
            ..HostState::default()
        };
        let desired = HostDesired::new(host, &answered);
        let (steps, problems) = plan_host(&desired, &observed, &Owned::default());
        let steps = steps.iter().map(ToString::to_string);
        steps.chain(problems).collect()
    };
    assert_eq!(steps(&host, ["1", "0", "2"]), [""; 0]);
    let expected = [
        format!("set {local} = 1"),
        format!("set {filter} = 2"),
        format!("set {of_interface} = 2"),
    ];
    assert_eq!(steps(&host, ["0", "1", "1"]), expected);
    // Without such answers nothing changes.
    let quiet = HostDesired::new(&host, &Vips::default());
    assert!(quiet.sysctls.is_empty() && quiet.not_strict.is_empty());
    // The file's value wins.
    let strict = Host {
        sysctls: [local, filter, of_interface]
            .map(|name| (name.to_owned(), "1".to_owned()))
            .into(),
        ..host.clone()
    };
    assert_eq!(steps(&strict, ["1", "1", "1"]), [""; 0]);
    let check = Host {
        sysctl_mode: SysctlMode::Check,
        ..host
    };
    let expected = [format!("{filter} is 1: expected 2")];
    assert_eq!(steps(&check, ["1", "1", "0"]), expected);
}

#[test]
fn what_is_asked_for_is_known_to_be_ours_before_it_is_there() {
    let (host, _) = all();
    let desired = HostDesired::new(&host, &vips(&[V4], &[V4]));
    let owned = Owned::default().with(&desired);
    assert_eq!((owned.daemons.len(), owned.tables.len()), (2, 1));
    let later = HostDesired::default();
    assert_eq!(owned.with(&later), owned);
    assert_eq!(Owned::only(&later), Owned::default());
}

fn host_of(seed: (u32, bool, bool, u32)) -> HostDesired {
    let (udp, sync, active, table) = seed;
    let host = Host {
        timeouts: Timeouts {
            udp,
            ..Timeouts::default()
        },
        sync: sync.then(|| SyncDaemon::new("eth1")),
        interface: active.then(|| "eth0".to_owned()),
        is_active: active,
        announce_table: table,
        ..Host::default()
    };
    HostDesired::new(&host, &vips(&[V4, V6], &[V6]))
}

proptest! {
    #[test]
    fn the_steps_lead_from_any_host_to_any_other(
        from in (0..3u32, any::<bool>(), any::<bool>(), 0..3u32),
        to in (0..3u32, any::<bool>(), any::<bool>(), 0..3u32),
    ) {
        let proxy = "net.ipv6.conf.eth0.proxy_ndp".to_owned();
        let mut state = HostState {
            sysctls: [(proxy, Ok("0".to_owned()))].into(),
            ..HostState::default()
        };
        let mut owned = Owned::default();
        for desired in [host_of(from), host_of(to)] {
            owned = owned.with(&desired);
            let (steps, problems) = plan_host(&desired, &state, &owned);
            prop_assert_eq!(problems, Vec::<String>::new());
            steps.iter().for_each(|step| state.advance(step));
            prop_assert_eq!(plan_host(&desired, &state, &owned).0, vec![]);
            prop_assert_eq!(&state.daemons, &desired.daemons);
            owned = Owned::only(&desired);
        }
    }
}
