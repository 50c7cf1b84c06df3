// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use clap::CommandFactory as _;
use portolan_model::Family;
use portolan_plan::DetectLocal;

use super::*;

fn parse(args: &[&str]) -> Cli {
    Cli::try_parse_from([&["portolan-agent"], args].concat()).unwrap()
}

#[test]
fn kube_proxys_flags_are_aliases() {
    let cli = parse(&[
        "--hostname-override=Node-1",
        "--ipvs-scheduler=mh",
        "--ipvs-sync-period=10",
        "--masquerade-all",
        "--iptables-masquerade-bit=15",
    ]);
    assert_eq!(cli.run.node_name().unwrap(), "node-1");
    assert_eq!(cli.run.sync_period(), Duration::from_secs(10));
    let config = cli.run.kernel.plan_config().unwrap();
    assert_eq!(config.scheduler, Some("mh"));
    assert_eq!(
        (config.masquerade_all, config.masquerade_mark),
        (true, 0x8000)
    );
}

#[test]
fn unknown_schedulers_are_refused() {
    for name in ["", "nosuch", "RR", "ftp", "0123456789abcdef"] {
        let flag = format!("--scheduler={name}");
        let error = Cli::try_parse_from(["portolan-agent", &flag]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("expected one of rr, wrr, lc"), "{error}");
    }
}

#[test]
fn boolean_flags_accept_a_value_as_in_kube_proxys_manifests() {
    let masquerades = |flag: &str| {
        let cli = parse(&[flag, "--ipvs-sync-period=1m0s"]);
        assert_eq!(cli.run.sync_period(), Duration::from_secs(60));
        cli.run.kernel.plan_config().unwrap().masquerade_all
    };
    assert!(masquerades("--masquerade-all=true"));
    assert!(!masquerades("--masquerade-all=false"));
    assert!(!masquerades("--ipvs-strict-arp=true"));
    for bad in ["0", "0s", "25h", "x"] {
        let flag = format!("--sync-period={bad}");
        assert!(
            Cli::try_parse_from(["portolan-agent", &flag]).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn kube_proxys_addresses_and_timeouts_are_aliases() {
    let healthz = |flag: &str| {
        let listen = parse(&[flag]).run.healthz_listen();
        listen.map(|address| address.map(|address| address.to_string()))
    };
    for (flag, expected) in [
        ("--healthz-listen=[::1]:1", Some("[::1]:1")),
        ("--healthz-bind-address=0.0.0.0", Some("0.0.0.0:10256")),
        ("--healthz-bind-address=::", Some("[::]:10256")),
        ("--healthz-listen=", None),
    ] {
        assert_eq!(healthz(flag).unwrap().as_deref(), expected, "{flag}");
    }
    let metrics = |flags: &[&str]| parse(flags).run.admin_listen().unwrap().to_string();
    for (flags, expected) in [
        (&[][..], "127.0.0.1:10249"),
        (&["--metrics-bind-address=0.0.0.0"], "0.0.0.0:10249"),
        (&["--admin-listen=[::]:1"], "[::]:1"),
    ] {
        assert_eq!(metrics(flags), expected, "{flags:?}");
    }
    assert!(
        healthz("--healthz-listen=x")
            .unwrap_err()
            .to_string()
            .contains("healthz-listen")
    );

    let cli = parse(&[
        "--nodeport-addresses=10.0.0.0/8,fd00::/8",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=15m0s",
        "--conntrack-tcp-timeout-established=0",
    ]);
    let config = cli.run.kernel_config().unwrap();
    assert!(!config.node_port_addresses.accepts_all(Family::V6));
    assert!(config.tuning.strict_arp);
    assert_eq!(config.tuning.timeouts.tcp, 900);
    assert_eq!(config.tuning.conntrack.tcp_established, 0);
    assert_eq!(config.tuning.conntrack.tcp_close_wait, 3600);
    let bad = parse(&["--node-port-addresses=eth0"]).run.kernel_config();
    assert!(
        bad.unwrap_err()
            .to_string()
            .contains("--node-port-addresses")
    );
}

#[test]
fn detect_local_modes_require_their_flags() {
    let config = |args: &[&str]| parse(args).run.kernel.plan_config();
    let found = |args: &[&str]| config(args).unwrap().detect_local;
    let refused = |args: &[&str]| config(args).unwrap_err().to_string();
    assert_eq!(found(&[]), DetectLocal::default());
    let node = "--detect-local-mode=NodeCIDR";
    assert_eq!(found(&[node]), DetectLocal::NodeCidr);
    let bridge = "--detect-local-mode=BridgeInterface";
    let name = "--pod-bridge-interface=cni0";
    assert_eq!(found(&[bridge, name]), DetectLocal::Bridge("cni0".into()));
    assert!(refused(&[bridge]).contains("--pod-bridge-interface"));
    let prefix = "--detect-local-mode=InterfaceNamePrefix";
    let name = "--pod-interface-name-prefix=veth";
    assert_eq!(
        found(&[prefix, name]),
        DetectLocal::InterfacePrefix("veth".into())
    );
    for bad in ["a b", "a/b", "", "-x", "sixteen-letters-", "veth+"] {
        let name = format!("--pod-interface-name-prefix={bad}");
        assert!(
            refused(&[prefix, &name]).contains("not an interface name"),
            "{bad:?}"
        );
    }
}

#[test]
fn overlapping_marks_are_refused() {
    let config = |mask: &str| {
        let flag = format!("--short-circuit-mask={mask}");
        parse(&[&flag]).run.kernel.plan_config()
    };
    assert_eq!(
        config("0xff0000").unwrap().short_circuit_mask.bits(),
        0xff0000
    );
    let refused = format!("{:#}", config("0xff00").unwrap_err());
    assert_eq!(
        refused,
        "--short-circuit-mask 0xff00: it has the bit 0x4000, which has another meaning"
    );
    let cli = ["portolan-agent", "--short-circuit-mask=0xzz"];
    assert!(Cli::try_parse_from(cli).is_err());
}

#[test]
fn sources_require_their_flags() {
    let refused = |args: &[&str]| parse(args).run.validate().unwrap_err().to_string();
    assert!(refused(&[]).contains("--controller"));
    assert!(refused(&["--controller=a:1"]).contains("--plaintext"));
    assert!(refused(&["--source=file"]).contains("--file"));
    assert!(
        parse(&["--controller=a:1", "--plaintext"])
            .run
            .validate()
            .is_ok()
    );
    assert!(
        parse(&["--source=file", "--file=/etc/x"])
            .run
            .validate()
            .is_ok()
    );
}

#[test]
fn a_takeover_requires_kube_proxys_names() {
    let files = ["--source=file", "--file=/etc/x", "--takeover=kube-proxy"];
    let run = parse(&files).run;
    assert!(run.takeover().asked && run.validate().is_ok());
    let named = parse(&[&files[..], &["--name-prefix=OWN"]].concat());
    let refused = named.run.validate().unwrap_err().to_string();
    assert!(refused.contains("--name-prefix"), "{refused}");
    for (dataplane, is_good) in [("nftables", true), ("auto", false), ("userspace", false)] {
        let dataplane = format!("--dataplane={dataplane}");
        let run = parse(&[&files[..], &[&dataplane]].concat()).run;
        assert_eq!(run.validate().is_ok(), is_good, "{dataplane}");
    }
    let back = parse(&["cleanup", "--hand-over=kube-proxy"]);
    assert!(matches!(
        back.command,
        Some(Command::Cleanup(args)) if args.hand_over == Some(OtherProxy::KubeProxy)
    ));
}

#[test]
fn prepare_accepts_the_flags_of_a_run() {
    let cli = parse(&[
        "prepare",
        "--check",
        "--controller=x:1",
        "--ipvs-strict-arp",
    ]);
    let Some(Command::Prepare(args)) = cli.command else {
        panic!("{cli:?}");
    };
    assert!(args.check);
    assert_eq!(args.run.controller, ["x:1"]);
    assert!(args.run.kernel_config().unwrap().tuning.strict_arp);
}

#[test]
fn verbosity_counts_in_each_command_with_the_flags_of_a_run() {
    for command in [
        &[][..],
        &["run"],
        &["prepare"],
        &["plan"],
        &["apply", "--once"],
        &["export", "env"],
    ] {
        let is_verbose = |flag: &str| parse(&[command, &[flag]].concat()).is_verbose();
        assert!(is_verbose("--v=4"), "{command:?}");
        assert!(!is_verbose("--v=2"), "{command:?}");
    }
    assert!(parse(&["-v", "5"]).is_verbose());
    assert!(!parse(&["reload"]).is_verbose());
}

#[test]
fn one_node_address_per_family() {
    let config = |ips: &str| {
        parse(&[&format!("--node-ip={ips}")])
            .run
            .kernel
            .kernel_config()
    };
    assert!(config("192.168.0.1,fd00::1").is_ok());
    assert!(config("192.168.0.1,192.168.0.2").is_err());
}

#[test]
fn durations_have_units_and_former_flags_keep_theirs() {
    let run = |args: &[&str]| parse(args).run;
    let defaults = run(&[]);
    assert_eq!(defaults.file_poll(), Duration::from_secs(1));
    assert_eq!(defaults.check_period(), Duration::from_secs(5));
    assert_eq!(defaults.drain_timeout(), Duration::from_secs(900));
    let found = run(&[
        "--file-poll=20ms",
        "--check-period=1m",
        "--drain-timeout=2h",
    ]);
    assert_eq!(found.file_poll(), Duration::from_millis(20));
    assert_eq!(found.check_period(), Duration::from_secs(60));
    assert_eq!(found.drain_timeout(), Duration::from_secs(7_200));
    let former = run(&["--file-poll-ms=20", "--check-period=7", "--drain-timeout=0"]);
    assert_eq!(former.file_poll(), Duration::from_millis(20));
    assert_eq!(former.check_period(), Duration::from_secs(7));
    assert_eq!(former.drain_timeout(), Duration::ZERO);
    for bad in [
        &["--file-poll=1ms"][..],
        &["--file-poll-ms=20ms"],
        &["--file-poll-ms=20", "--file-poll=20ms"],
        &["--check-period=0"],
    ] {
        let args = [&["portolan-agent"], bad].concat();
        assert!(Cli::try_parse_from(args).is_err(), "{bad:?}");
    }
}

#[test]
fn kube_proxys_bind_address_is_the_nodes_own() {
    let node_ips = |args: &[&str]| parse(args).run.kernel_config().unwrap().node_ips;
    let bound = "--bind-address=192.0.2.1";
    assert_eq!(node_ips(&[bound]).len(), 1);
    assert_eq!(node_ips(&[bound, "--node-ip=fd00::1"]).len(), 2);
    let named = node_ips(&[bound, "--node-ip=192.0.2.2"]);
    assert_eq!(named, ["192.0.2.2".parse::<std::net::IpAddr>().unwrap()]);
    assert!(node_ips(&["--bind-address=::"]).is_empty());
}

#[test]
fn help_is_grouped_by_topic() {
    let help = Cli::command().render_long_help().to_string();
    for heading in [
        "Table source:",
        "Kernel programming:",
        "Kernel settings:",
        "Health and administration:",
        "TLS and identity:",
        "DNS:",
        "Logging:",
        "kube-proxy compatibility:",
    ] {
        assert!(help.contains(&format!("\n{heading}\n")), "{heading}");
    }
    for former in ["file-poll-ms", "hostname-override", "logging-format"] {
        assert!(!help.contains(&format!("      --{former} ")), "{former}");
    }
}
