// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use portolan_kube_proxy_config::FIELDS;

use super::*;
use crate::args::Command;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn start(text: &str, more: &[&str]) -> Result<(Cli, Vec<String>), StartError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{HEAD}{text}")).unwrap();
    let config = format!("--config={}", file.path().display());
    let args = [&["portolan-agent", &config], more].concat();
    Cli::start(args.into_iter().map(OsString::from))
}

#[test]
fn a_configuration_takes_the_place_of_flags_that_are_not_given() {
    let text = "mode: ipvs\nclusterCIDR: 10.0.0.0/8\nhostnameOverride: Node-1\n\
            ipvs: {scheduler: mh, syncPeriod: 1m30s, strictARP: true}\n\
            iptables: {masqueradeBit: 15}\nconntrack: {min: 0, tcpEstablishedTimeout: 0s}\n\
            nodePortAddresses: [10.0.0.0/8, 'fd00::/8']\nmetricsBindAddress: 0.0.0.0:10249\n\
            logging: {verbosity: 4, format: json}\n";
    let (cli, notes) = start(text, &["--scheduler=lc"]).unwrap();
    assert_eq!(cli.run.node_name().unwrap(), "node-1");
    assert_eq!(cli.run.sync_period(), Duration::from_secs(90));
    let plan = cli.run.kernel.plan_config().unwrap();
    assert_eq!((plan.scheduler, plan.masquerade_mark), (Some("lc"), 0x8000));
    let kernel = cli.run.kernel_config().unwrap();
    assert!(kernel.tuning.strict_arp);
    assert_eq!(kernel.tuning.conntrack.tcp_established, 0);
    let admin = cli.run.admin_listen().unwrap().to_string();
    assert_eq!(admin, "0.0.0.0:10249");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].starts_with("ipvs.scheduler has no effect: --scheduler"),
        "{notes:?}"
    );
}

#[test]
fn fields_without_effect_are_listed_with_the_reason() {
    let text = "mode: ipvs\nnew: 1\nnftables: {masqueradeBit: 3}\nwinkernel: {enableDSR: true}\n\
            portRange: 1-2\n";
    let (_, notes) = start(text, &[]).unwrap();
    let expected = [
        "line 4: new: unknown",
        "nftables.masqueradeBit has no effect: this mode",
        "winkernel.enableDSR has no effect: Windows",
        "portRange has no effect: it is kube-proxy's",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:?}");
    for (note, expected) in notes.iter().zip(expected) {
        assert!(note.starts_with(expected), "{note}");
    }
}

#[test]
fn commands_with_the_flags_of_a_run_read_the_file_too() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "mode: ipvs\nipvs: {strictARP: true, scheduler: mh}\nlogging: {format: json}\n\
            metricsBindAddress: 127.0.0.2:10249\nhealthzBindAddress: 127.0.0.2:10256\n";
    std::fs::write(file.path(), format!("{HEAD}{text}")).unwrap();
    let config = format!("--config={}", file.path().display());
    for (command, expected) in [
        (&["prepare", "--check"][..], 1),
        (&["plan"], 1),
        (&["apply", "--once"], 1),
        (&["export", "ipvsadm"], 1),
        // Mode and ports are none of a program that has sockets.
        (&["run"], 4),
    ] {
        let flags = [config.as_str(), "--scheduler=lc"];
        let args = [&["portolan-agent"], command, &flags].concat();
        let (cli, notes) = Cli::start(args.into_iter().map(OsString::from)).unwrap();
        let run = cli.run_args().unwrap();
        let is_strict = run.kernel_config().unwrap().tuning.strict_arp;
        assert!(is_strict, "{command:?}");
        let plan = run.kernel.plan_config().unwrap();
        let found = (plan.scheduler, notes.len());
        assert_eq!(found, (Some("lc"), expected), "{command:?}: {notes:?}");
        let logs = format!("{:?}", cli.logs);
        assert!(logs.contains("log_format: Json"), "{command:?}: {logs}");
        let admin = run.admin_listen().unwrap().to_string();
        let healthz = run.healthz_listen().unwrap().map(|at| at.to_string());
        let found = (admin.as_str(), healthz.as_deref());
        let expected = match command {
            ["run"] => ("127.0.0.1:0", None),
            _ => ("127.0.0.2:10249", Some("127.0.0.2:10256")),
        };
        assert_eq!(found, expected, "{command:?}");
    }
}

#[test]
fn flags_of_the_file_stay_before_the_command_of_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("{HEAD}mode: ipvs\nhostnameOverride: Node-1\n");
    std::fs::write(file.path(), text).unwrap();
    let config = format!("--config={}", file.path().display());
    let args = [
        "portolan-agent",
        "run",
        &config,
        "--file=/dev/null",
        "--",
        "echo",
        "--",
        "a",
    ];
    let (cli, _) = Cli::start(args.into_iter().map(OsString::from)).unwrap();
    let Some(Command::Run(args)) = cli.command else {
        unreachable!()
    };
    assert_eq!(args.command, ["echo", "--", "a"]);
    assert_eq!(args.run.node_name().unwrap(), "node-1");
    args.validate().unwrap();
}

#[test]
fn an_unusable_file_is_named() {
    for (text, expected) in [
        ("mode: iptables\n", "nftables behaves the same"),
        (
            "ipvs: {strictARP: 1}\n",
            "line 3: ipvs.strictARP: 1 is not true or false",
        ),
        (
            "mode: ipvs\nipvs: {scheduler: nosuch}\n",
            "expected one of rr",
        ),
    ] {
        let error = start(text, &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("--config /") && error.contains(expected),
            "{error}"
        );
    }
    let args = ["portolan-agent", "--config=/nonexistent/file"].map(OsString::from);
    let error = Cli::start(args).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/file: No such file"), "{error}");
}

/// Every field that means something to a node in ipvs mode has a flag of the agent.
#[test]
fn fields_with_a_value_of_the_chart_have_a_flag() {
    let flags = Cli::command();
    let nftables = |field: &&Field| !field.path.starts_with("nftables.");
    for field in FIELDS.iter().filter(nftables) {
        if !matches!(field.becomes, Becomes::Value(..)) {
            continue;
        }
        let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == field.flag);
        let name = renamed.map_or(field.flag, |(_, ours)| ours);
        let known = flags.get_arguments().any(|arg| is_named(arg, name));
        assert!(known, "{}: --{name}", field.path);
    }
}
