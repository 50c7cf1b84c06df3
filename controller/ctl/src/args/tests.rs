// SPDX-License-Identifier: Apache-2.0

use clap::CommandFactory as _;

use super::*;

fn parse(args: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(args.split_whitespace())
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn global_flags_may_follow_the_command() {
    let cli = parse("portolanctl nodes --behind -o json --timeout 5s --watch").unwrap();
    assert_eq!(cli.output, Output::Json);
    assert_eq!(cli.connect.timeout, Duration::from_secs(5));
    assert_eq!(cli.watch, Some(Duration::from_secs(2)));
    let cli = parse("portolanctl -o text --watch=500ms status").unwrap();
    assert_eq!(cli.output, Output::Table);
    assert_eq!(cli.watch, Some(Duration::from_millis(500)));
}

#[test]
fn only_dumps_can_be_watched() {
    for (args, expected) in [
        ("nodes", true),
        ("table a -o nft --node-address 192.0.2.1", true),
        ("diff a", true),
        ("confirm a", false),
        ("health", true),
        ("health default/web --node lb-1 --down", true),
        ("cluster list", true),
        ("cluster drain eu-1 --to 50 --over 1m", false),
        ("explain-import shop/web", true),
        ("confirm --deletions", false),
        ("agent status", true),
        ("agent confirm", false),
        ("wait default/web", false),
        ("get", true),
        ("diff -f a.yaml", true),
        ("apply -f a.yaml", false),
        ("delete lb web", false),
        ("env -o env --namespace shop", true),
        ("top --once --by bytes --limit 5", true),
        ("trace pod 10.96.0.1:80 --node a", true),
        ("trace node 10.96.0.1:53 --protocol udp --probe", true),
    ] {
        let cli = parse(&format!("portolanctl {args}")).unwrap();
        assert_eq!(cli.command.can_be_watched(), expected, "{args}");
    }
    for bad in [
        "confirm",
        "confirm a --deletions",
        "nodes --watch=1ms",
        "diff",
        "diff a -f b",
        "apply",
        "apply -f a --prune",
        "apply -f a -l b=c",
        "apply -f a --prune -l b",
        "delete",
        "delete lb",
        "delete lb a -f b",
        "get pods",
        "health a b",
        "top --limit 0",
        "top --interval 10ms",
        "trace pod",
        "trace pod 10.96.0.1",
        "trace pod 10.96.0.1:80 --protocol icmp",
        "cluster drain eu-1 --to 101",
    ] {
        assert!(parse(&format!("portolanctl {bad}")).is_err(), "{bad}");
    }
}
