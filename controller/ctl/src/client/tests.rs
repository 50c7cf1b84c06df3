// SPDX-License-Identifier: Apache-2.0

use clap::Parser as _;
use tokio::net::TcpListener;

use super::*;
use crate::args::Cli;

#[test]
fn addresses_are_urls() {
    let shown = |text: &str| {
        let address = address(text).unwrap();
        let (token_file, timeout) = (None, Duration::from_secs(1));
        Client {
            address,
            cluster: None,
            token_file,
            timeout,
        }
        .name()
    };
    assert_eq!(shown("http://127.0.0.1:1/"), "http://127.0.0.1:1");
    assert_eq!(shown("http://[::1]"), "http://[::1]:80");
    assert_eq!(shown("unix:///run/a.sock"), "unix:///run/a.sock");
    for bad in ["", "127.0.0.1:1", "https://a:1", "ftp://a"] {
        let args = ConnectArgs {
            controller: vec![bad.to_owned()],
            ..ConnectArgs::default()
        };
        let error = format!("{:#}", args.client("--controller", bad).unwrap_err());
        assert!(error.starts_with("--controller: "), "{bad}: {error}");
        let error = address(bad).unwrap_err().to_string();
        assert!(
            error.contains("expected http://HOST:PORT"),
            "{bad}: {error}"
        );
    }
}

#[tokio::test]
async fn a_silent_controller_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let (token_file, timeout) = (None, Duration::from_millis(50));
    let client = Client {
        address,
        cluster: None,
        token_file,
        timeout,
    };
    let error = client.get("/debug/nodes").await.unwrap_err().to_string();
    assert!(error.contains("no answer in 50ms"), "{error}");
}

#[test]
fn an_empty_variable_names_no_cluster() {
    let cli = Cli::parse_from(["portolanctl", "--cluster=", "nodes"]);
    let client = cli.connect.client("--controller", ADMIN).unwrap();
    assert_eq!(client.in_cluster("/debug/nodes"), "/debug/nodes");
}

#[test]
fn dumps_and_actions_name_the_cluster() {
    let mut client = of_agent("http://127.0.0.1:1", Duration::ZERO).unwrap();
    assert_eq!(client.in_cluster("/debug/nodes"), "/debug/nodes");
    client.cluster = Some("eu 1".to_owned());
    for (path, expected) in [
        ("/debug/nodes", "/debug/nodes?cluster=eu+1"),
        (
            "/debug/explain?node=a",
            "/debug/explain?node=a&cluster=eu+1",
        ),
        ("/readyz", "/readyz"),
    ] {
        assert_eq!(client.in_cluster(path), expected);
    }
}
