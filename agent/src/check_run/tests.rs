// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;

use super::*;

/// A load balancer with two frontends that share their backends.
fn write(directory: &Path, backends: &[SocketAddr], checks: &str) -> CheckRunArgs {
    let backend = |each: &SocketAddr| format!("{{address: {}, port: {}}}", each.ip(), each.port());
    let backends: Vec<_> = backends.iter().map(backend).collect();
    let text = format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [192.0.2.10], port: 80}}, {{addresses: [192.0.2.10], port: 443}}]\n  \
         backends: [{}]\n  checks: {checks}\n",
        backends.join(", ")
    );
    let path = directory.join("lb.yaml");
    std::fs::write(&path, text).unwrap();
    CheckRunArgs {
        path,
        name: None,
        node_name: Some("node1".to_owned()),
    }
}

/// A port that answers, and one that refuses. The latter is of an IP address at which no other test takes it.
async fn ports() -> (TcpListener, SocketAddr, SocketAddr) {
    let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let (of_open, of_closed) = (open.local_addr().unwrap(), closed.local_addr().unwrap());
    (open, of_open, of_closed)
}

async fn results(args: &CheckRunArgs) -> Vec<(Verdict, [String; 5])> {
    let (table, programs) = table(args).unwrap();
    let jobs = jobs(&table, args.name.as_ref()).unwrap();
    let context = Context::new(programs);
    let results = jobs.into_iter().map(|job| run_one(job, context.clone()));
    futures_util::future::join_all(results).await
}

fn code(result: anyhow::Result<ExitCode>) -> String {
    match result {
        Ok(code) => format!("{code:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn each_backend_is_checked_once_with_each_check() {
    let directory = tempfile::tempdir().unwrap();
    let (_open, open, closed) = ports().await;
    let checks = "[{timeout: 2s, tcp: {}}, {timeout: 2s, udp: {payloadHex: \"00\"}}]";
    let mut args = write(directory.path(), &[open, closed], checks);
    let found = results(&args).await;
    let mut short: Vec<_> = found
        .iter()
        .map(|(verdict, [backend, check, ..])| (backend.clone(), check.clone(), *verdict))
        .collect();
    short.sort();
    let name = |address: SocketAddr| format!("default/web/{address}");
    let mut of_tcp: Vec<_> = short
        .iter()
        .filter(|each| each.1 == "tcp")
        .cloned()
        .collect();
    of_tcp.sort_by_key(|each| each.2);
    assert_eq!(
        of_tcp,
        [
            (name(open), "tcp".to_owned(), Verdict::Passes),
            (name(closed), "tcp".to_owned(), Verdict::Fails)
        ]
    );
    // Two backends and two checks; the second frontend has the same.
    assert_eq!(short.len(), 4, "{short:?}");
    let refused = found
        .iter()
        .find(|(_, cells)| cells[0] == name(closed) && cells[1] == "tcp");
    let [_, _, result, time, reason] = &refused.unwrap().1;
    assert_eq!(result, "fails");
    assert!(
        time.ends_with(" ms") && reason.contains("refused"),
        "{reason}"
    );
    assert_eq!(
        code(run(&args).await),
        format!("{:?}", ExitCode::from(FAILS))
    );

    // One backend alone, which passes its tcp check.
    write(
        directory.path(),
        &[open, closed],
        "[{timeout: 2s, tcp: {}}]",
    );
    args.name = Some(format!("web/{open}").parse().unwrap());
    assert_eq!(results(&args).await.len(), 1);
    assert_eq!(code(run(&args).await), format!("{:?}", ExitCode::SUCCESS));
    args.name = Some("web".parse().unwrap());
    assert_eq!(
        code(run(&args).await),
        format!("{:?}", ExitCode::from(FAILS))
    );
}

#[tokio::test]
async fn a_check_by_way_of_the_service_says_why_it_has_no_result() {
    let directory = tempfile::tempdir().unwrap();
    let (_open, open, _) = ports().await;
    let args = write(directory.path(), &[open], "[{via: Service, tcp: {}}]");
    let [(verdict, [_, check, result, _, reason])] = &results(&args).await[..] else {
        panic!("one check");
    };
    assert_eq!((*verdict, check.as_str()), (Verdict::Unknown, "tcp"));
    assert_eq!((result.as_str(), reason.as_str()), ("unknown", BY_SERVICE));
    let error = "some checks gave no verdict: see their reasons";
    assert_eq!(code(run(&args).await), error);
}

#[tokio::test]
async fn what_cannot_be_checked_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (_open, open, _) = ports().await;
    let mut args = write(directory.path(), &[open], "[]");
    assert_eq!(code(run(&args).await), "no backend has checks");
    args.name = Some("wbe".parse().unwrap());
    let error = "the files have no default/wbe: they have default/web";
    assert_eq!(code(run(&args).await), error);
    args.name = Some("web/192.0.2.1".parse().unwrap());
    assert!(code(run(&args).await).contains("default/web/192.0.2.1"));
    args = write(directory.path(), &[open], "[{nosuch: {}}]");
    assert!(code(run(&args).await).contains("nothing is checked"));
    args.path = directory.path().join("none.yaml");
    assert!(code(run(&args).await).contains("nothing is checked"));
}

#[test]
fn verdicts_follow_outcomes() {
    let word = |up| {
        Outcome::Word(Word {
            up,
            weight: Some(DynamicWeight::Percent(50)),
            administrative: Some(Administrative::Drain),
            reason: None,
        })
    };
    let said = |text: &str| Some(format!("says {text}drain, weight 50 %"));
    assert_eq!(judge(&word(Some(false))), (Verdict::Fails, said("down, ")));
    assert_eq!(judge(&word(None)), (Verdict::Passes, said("")));
    let silent = judge(&Outcome::Word(Word::default()));
    assert_eq!(silent, (Verdict::Passes, Some("says nothing".to_owned())));
    let unknown = judge(&Outcome::no_verdict("too many open files"));
    assert_eq!(unknown.0, Verdict::Unknown);
    assert!(Verdict::Fails > Verdict::Unknown && Verdict::Unknown > Verdict::Passes);
}
