// SPDX-License-Identifier: Apache-2.0

use clap::CommandFactory as _;

use super::*;

fn parse(args: &[&str]) -> Result<Args, clap::Error> {
    let args = [&["portolan-controller"], args].concat();
    Cli::try_parse_from(args).map(|cli| cli.run)
}

#[test]
fn plaintext_is_explicit() {
    let refused = |args: &[&str]| {
        let args = parse(args).unwrap();
        args.validate_identity().is_err()
    };
    assert!(refused(&[]));
    assert!(!refused(&["--plaintext"]));
    assert!(!refused(&["--tls-dir", "/nowhere"]));
    assert!(refused(&["--tls-dir", "/nowhere", "--plaintext"]));
}

#[test]
fn the_file_source_requires_a_file() {
    assert!(parse(&["--source", "file"]).is_err());
    assert!(parse(&["--source", "file", "--file", "a.yaml"]).is_ok());
}

#[test]
fn a_relay_requires_an_upstream() {
    assert!(parse(&["--source", "controller"]).is_err());
    let args = ["--source=controller", "--upstream=a:1,b:2"];
    let parsed = parse(&args).unwrap();
    assert_eq!(parsed.upstream.upstreams().unwrap().len(), 2);
    assert!(parsed.upstream.validate().is_err(), "without TLS");
    assert!(parse(&[]).is_ok());
}

#[test]
fn stream_flags_default_to_those_of_the_library() {
    let shown = |args: &[&str]| format!("{:?}", parse(args).unwrap().streams.config());
    let default = format!("{:?}", portolan_serve::ServeConfig::default());
    assert_eq!(shown(&[]), default);
    for flag in [
        "--snapshots=3",
        "--stall-timeout=3",
        "--buckets-timeout=3",
        "--catch-up-timeout=3",
    ] {
        assert_ne!(shown(&[flag]), default, "{flag}");
    }
}

#[test]
fn unknown_nodes_are_refused_where_there_are_nodes() {
    let refuses = |args: &[&str]| parse(args).unwrap().refuses_unknown_nodes();
    let file = ["--source=file", "--file=a"];
    assert!(refuses(&[]));
    assert!(!refuses(&["--allow-unknown-nodes"]));
    assert!(!refuses(&file));
    assert!(refuses(
        &[&file[..], &["--allow-unknown-nodes=false"]].concat()
    ));
    for bad in ["", "a b", "ä"] {
        assert!(parse(&["--cluster-id", bad]).is_err(), "{bad:?}");
    }
}

#[test]
fn certificates_need_no_flags_of_a_run() {
    let args = ["portolan-controller", "certs", "--dir", "d", "--node", "a"];
    let cli = Cli::try_parse_from(args).unwrap();
    assert!(matches!(cli.command, Some(Command::Certs(_))));
}

#[test]
fn source_ranges_apply_to_load_balancer_ips_by_default() {
    let parsed = parse(&["--plaintext"]).unwrap();
    assert_eq!(parsed.select(), SelectConfig::default());
    let ranges = parsed.select().source_ranges;
    assert_eq!(ranges, SourceRanges::LoadBalancer);
    assert!(!parsed.pod_weights);
    let more = ["--plaintext", "--source-ranges=all", "--pod-weights"];
    let parsed = parse(&more).unwrap();
    assert_eq!(parsed.select().source_ranges, SourceRanges::All);
    assert!(parsed.pod_weights);
}

#[test]
fn durations_have_units_and_former_flags_keep_theirs() {
    let parse = |args: &[&str]| parse(args).unwrap();
    assert_eq!(parse(&[]).file_poll(), Duration::from_secs(1));
    assert_eq!(parse(&[]).audit_period(), Some(Duration::from_secs(60)));
    let args = parse(&["--file-poll=20ms", "--audit-period=5m"]);
    assert_eq!(args.file_poll(), Duration::from_millis(20));
    assert_eq!(args.audit_period(), Some(Duration::from_secs(300)));
    let args = parse(&["--file-poll-ms=20", "--oracle-period=30"]);
    assert_eq!(args.file_poll(), Duration::from_millis(20));
    assert_eq!(args.audit_period(), Some(Duration::from_secs(30)));
    for none in ["--audit-period=0", "--oracle-period=0", "--audit-period=0s"] {
        assert_eq!(parse(&[none]).audit_period(), None, "{none}");
    }
}

#[test]
fn the_name_of_the_proxy_is_the_value_of_a_label() {
    let named = parse(&["--service-proxy-name=portolan"]).unwrap();
    let name = named.service_proxy_name.unwrap();
    assert_eq!(name.as_str(), "portolan");
    assert_eq!(parse(&[]).unwrap().service_proxy_name, None);
    let error = parse(&["--service-proxy-name=a b"]).unwrap_err();
    assert!(error.to_string().contains("value of a label"), "{error}");
}

#[test]
fn a_self_managed_identity_needs_names_and_an_api_server() {
    const SECRET: &str = "--tls-self-managed=kube-system/portolan";
    let token = [
        "--token-issuer=auto",
        "--token-service-account=kube-system/agent",
    ];
    let check = |args: &[&str]| {
        let parsed = parse(&[args, &token].concat()).map_err(|error| error.to_string())?;
        parsed
            .validate_identity()
            .map_err(|error| format!("{error:#}"))
    };
    let service = "--publish-service=kube-system/controllers";
    assert_eq!(check(&[SECRET, service]), Ok(()));
    assert_eq!(
        check(&[SECRET, "--tls-server-names=a.example,192.0.2.1"]),
        Ok(())
    );
    let full = ["--publish=kube-system/portolan", service, SECRET];
    assert_eq!(check(&full), Ok(()));
    for (args, expected) in [
        (
            &[SECRET][..],
            "needs --publish-service or --tls-server-names",
        ),
        (&[SECRET, "--tls-server-names=a b"], "\"a b\""),
        (&[SECRET, service, "--tls-dir=d"], "--tls-dir"),
        (&[SECRET, service, "--plaintext"], "--plaintext"),
        (
            &[SECRET, service, "--source=file", "--file=f"],
            "needs --source kubernetes",
        ),
        (&["--tls-dir=d", "--publish=a/b"], "--publish-service"),
        (&["--tls-dir=d", "--tls-self-managed=a"], "NAMESPACE/NAME"),
    ] {
        let error = check(args).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let names = parse(&[SECRET, service, "--tls-server-names=b.example"]).unwrap();
    let names = names
        .self_managed
        .names(names.publish.publish_service.as_ref());
    assert_eq!(names.unwrap(), ["controllers.kube-system.svc", "b.example"]);
}

#[test]
fn the_admin_port_is_on_loopback_unless_asked_for() {
    let listen = |args: &[&str]| parse(args).unwrap().admin_listen.to_string();
    assert_eq!(listen(&[]), "127.0.0.1:9444");
    assert_eq!(listen(&["--metrics-bind-address=[::]:9444"]), "[::]:9444");
}

#[test]
fn help_is_grouped_by_topic() {
    let help = Cli::command().render_long_help().to_string();
    for heading in [
        "Source:",
        "Tables:",
        "Agents:",
        "Administration:",
        "Streams:",
        "TLS and identity:",
        "Publication:",
        "Deletion guard:",
        "DNS:",
        "Relay:",
        "Logging:",
    ] {
        assert!(help.contains(&format!("\n{heading}\n")), "{heading}");
    }
    for former in ["file-poll-ms", "oracle-period"] {
        assert!(!help.contains(&format!("      --{former} ")), "{former}");
    }
}
