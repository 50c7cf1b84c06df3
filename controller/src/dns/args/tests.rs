// SPDX-License-Identifier: Apache-2.0

use clap::Parser as _;

use super::*;

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    dns: DnsArgs,
}

fn parse(args: &str) -> Result<DnsArgs, String> {
    let args = ["x"].into_iter().chain(args.split_whitespace());
    let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
    cli.dns
        .validate(Source::Kubernetes)
        .map_err(|error| format!("{error:#}"))?;
    Ok(cli.dns)
}

#[test]
fn flags_become_a_zone() {
    assert!(!parse("").unwrap().is_on());
    let ttl = |args: &str| parse(args).unwrap().zone_config().unwrap().ttl;
    assert_eq!(ttl("--dns-zone a"), portolan_dns::DEFAULT_TTL);
    assert_eq!(ttl("--dns-zone a --dns-ttl 2m"), 120);
    let args = "--dns-zone Cluster.Local --dns-zone b.test --dns-ttl 30 --dns-pods verified \
            --dns-network 10.0.0.0/8 --dns-name-server kube-system/kube-dns --dns-zonal";
    let args = parse(args).unwrap();
    assert!(args.is_on() && args.needs_pods());
    let config = args.zone_config().unwrap();
    let text =
        |names: &[portolan_dns::Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(text(&config.zones), ["cluster.local.", "b.test."]);
    assert_eq!(text(&config.reverse), ["10.in-addr.arpa."]);
    assert_eq!((config.ttl, config.pods), (30, PodMode::Verified));
    assert_eq!(config.name_server.unwrap().name, "kube-dns");
}

#[test]
fn a_zone_of_imports_is_for_several_clusters() {
    let of = |args: &str, source| {
        let args = ["x"].into_iter().chain(args.split_whitespace());
        let dns = Cli::try_parse_from(args).unwrap().dns;
        dns.validate(source).map_err(|error| format!("{error:#}"))?;
        dns.clusterset_config().map_err(|error| error.to_string())
    };
    let zone = "--dns-clusterset-zone ClusterSet.local";
    let config = of(&format!("{zone} --dns-ttl 30s"), Source::Clusters).unwrap();
    assert_eq!(config.zones[0].to_string(), "clusterset.local.");
    assert_eq!((config.ttl, config.reverse.len()), (30, 0));
    for (more, source, field) in [
        ("", Source::Kubernetes, "--source clusters"),
        (
            "--dns-bind-address 127.0.0.1:1",
            Source::Clusters,
            "--dns-clusterset-listen",
        ),
        ("--dns-pods verified", Source::Clusters, "pods"),
        ("--dns-network 10.0.0.0/8", Source::Clusters, "reverse"),
    ] {
        let error = of(&format!("{zone} {more}"), source).unwrap_err();
        assert!(error.contains(field), "{more}: {error}");
    }
    let (cluster, address) = listener("eu-1=127.0.0.1:53").unwrap();
    assert_eq!((&*cluster, &*address.to_string()), ("eu-1", "127.0.0.1:53"));
    for bad in ["127.0.0.1:53", "=127.0.0.1:53", "eu-1=53"] {
        assert!(listener(bad).is_err(), "{bad}");
    }
}

#[test]
fn invalid_combinations_are_refused_by_name() {
    for (args, field) in [
        ("--dns-bind-address 127.0.0.1:1", "--dns-zone"),
        ("--dns-etcd-endpoint http://127.0.0.1:1", "--dns-zone"),
        ("--dns-zone a..b", "--dns-zone"),
        ("--dns-zone a --dns-ttl 3601", "--dns-ttl"),
        ("--dns-zone a --dns-no-endpoints --dns-zonal", "--dns-zonal"),
        ("--dns-zone a --dns-bind-address 53", "--dns-bind-address"),
        ("--dns-zone a --dns-name-server x", "--dns-name-server"),
        (
            "--dns-zone a --dns-etcd-endpoint 127.0.0.1",
            "--dns-etcd-endpoint",
        ),
        (
            "--dns-zone a --dns-etcd-endpoint http://a:1 --dns-etcd-prefix a/b",
            "--dns-etcd-prefix",
        ),
        (
            "--dns-zone a --dns-etcd-endpoint http://a:1 --dns-etcd-ca x",
            "--dns-etcd-ca",
        ),
    ] {
        let error = parse(args).unwrap_err();
        assert!(error.contains(field), "{args}: {error}");
    }
}
