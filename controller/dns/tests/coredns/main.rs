//! A real CoreDNS that gets the records in each of the three ways answers what we answer.
//!
//! Takes `coredns` from `KUBEBUILDER_ASSETS` or from the path; says SKIP where there is none. The
//! way through etcd needs `etcd` in the path besides.

mod api;
mod asked;

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::RData;
use portolan_dns::grpc::{serve_tcp, serve_unix};
use portolan_dns::skydns::{self, Layout};
use portolan_dns::zone_file::{render, write};
use portolan_dns::{Name, RecordType, Server, SharedZone};
use portolan_e2e::lane::missing;
use tokio::net::{TcpListener, UnixListener};

use api::api_server;
use asked::{more_questions, questions, zone};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn coredns() -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let candidates = assets.map(|assets| assets.join("coredns")).into_iter();
    let mut candidates = candidates.chain([PathBuf::from("coredns")]);
    candidates.find(|program| Command::new(program).arg("-version").output().is_ok())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

type Seen = (ResponseCode, BTreeSet<String>);

/// How exactly records are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    All,
    /// Without TTLs, and weights and priorities of SRV records, which etcd has in its own way.
    Data,
}

fn seen(code: ResponseCode, records: &[hickory_proto::rr::Record], compare: Compare) -> Seen {
    let lines = records.iter().map(|record| match &record.data {
        _ if compare == Compare::All => record.to_string(),
        RData::SRV(srv) => format!("{} SRV {} {}", record.name, srv.port, srv.target),
        data => format!("{} {} {data}", record.name, record.record_type()),
    });
    (code, lines.collect())
}

fn ask(
    server: SocketAddr,
    name: &Name,
    kind: RecordType,
    patience: Duration,
    compare: Compare,
) -> Result<Seen> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(patience))?;
    let mut query = Message::new(3, MessageType::Query, OpCode::Query);
    query.add_query(Query::query(name.clone(), kind));
    socket.send_to(&query.to_vec()?, server)?;
    let mut packet = vec![0; 65_535];
    let length = socket.recv(&mut packet)?;
    let reply = Message::from_vec(&packet[..length])?;
    Ok(seen(reply.response_code, &reply.answers, compare))
}

/// Compares a CoreDNS with our own answers. Returns what is different.
fn differences(
    server: SocketAddr,
    zone: &SharedZone,
    questions: &[(Name, RecordType)],
    compare: Compare,
) -> Result<Vec<String>> {
    let mut differences = Vec::new();
    for (name, kind) in questions {
        let answer = zone.read().answer(name, *kind);
        let ours = seen(answer.code, &answer.answers, compare);
        let theirs = ask(server, name, *kind, Duration::from_secs(10), compare)?;
        // CoreDNS leaves out an alias at the end of which is nothing.
        let alias_only = ours.1.len() == 1 && ours.1.iter().all(|line| line.contains(" CNAME "));
        if ours != theirs && !(alias_only && *kind != RecordType::CNAME && theirs.1.is_empty()) {
            differences.push(format!(
                "{name} {kind}: we say {ours:?}, CoreDNS {theirs:?}"
            ));
        }
    }
    Ok(differences)
}

/// Starts CoreDNS, and waits until it has a name.
fn start(program: &Path, directory: &Path, blocks: &str, port: u16) -> Result<Process> {
    let corefile = directory.join("Corefile");
    std::fs::write(&corefile, blocks)?;
    let child = Command::new(program)
        .args(["-conf".as_ref(), corefile.as_os_str()])
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    let process = Process(child);
    let web = Name::from_ascii("web.default.svc.cluster.local.")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let server = SocketAddr::from(([127, 0, 0, 1], port));
    let patience = Duration::from_millis(200);
    let found = |(_, answers): Seen| !answers.is_empty();
    while !ask(server, &web, RecordType::A, patience, Compare::Data).is_ok_and(found) {
        if Instant::now() > deadline {
            return Err("CoreDNS does not answer".into());
        }
    }
    Ok(process)
}

/// Asks a CoreDNS whose grpc plugin asks `upstream`.
async fn compare_grpc(program: PathBuf, zone: Arc<SharedZone>, upstream: String) -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let blocks = format!(".:{port} {{\n bind 127.0.0.1\n errors\n grpc . {upstream}\n}}\n");
    let compared = tokio::task::spawn_blocking(move || -> std::result::Result<_, String> {
        let run = || -> Result<Vec<String>> {
            let _process = start(&program, directory.path(), &blocks, port)?;
            let questions = [questions()?, more_questions()?].concat();
            differences(
                ([127, 0, 0, 1], port).into(),
                &zone,
                &questions,
                Compare::All,
            )
        };
        run().map_err(|error| error.to_string())
    });
    assert_eq!(compared.await??, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_grpc() -> Result<()> {
    let Some(program) = coredns() else {
        missing("over_grpc", "needs the program coredns");
        return Ok(());
    };
    let zone = Arc::new(SharedZone::new(zone()?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let upstream = listener.local_addr()?.to_string();
    let server = Server::new(Arc::clone(&zone));
    let task = tokio::spawn(serve_tcp(server, listener, std::future::pending()));
    compare_grpc(program, zone, upstream).await?;
    task.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_grpc_on_a_unix_socket() -> Result<()> {
    let Some(program) = coredns() else {
        missing("over_grpc_on_a_unix_socket", "needs the program coredns");
        return Ok(());
    };
    let zone = Arc::new(SharedZone::new(zone()?));
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("dns.sock");
    let listener = UnixListener::bind(&path)?;
    let server = Server::new(Arc::clone(&zone));
    let task = tokio::spawn(serve_unix(server, listener, std::future::pending()));
    compare_grpc(program, zone, format!("unix://{}", path.display())).await?;
    task.abort();
    Ok(())
}

#[test]
fn from_zone_files() -> Result<()> {
    let Some(program) = coredns() else {
        missing("from_zone_files", "needs the program coredns");
        return Ok(());
    };
    let zone = SharedZone::new(zone()?);
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let mut blocks = String::new();
    for origin in ["cluster.local", "in-addr.arpa", "ip6.arpa"] {
        let path = directory.path().join(format!("db.{origin}"));
        let name = Name::from_ascii(format!("{origin}."))?;
        write(&path, 1, |serial| render(&zone.read(), &name, serial))?;
        let file = path.display();
        blocks += &format!("{origin}:{port} {{\n bind 127.0.0.1\n errors\n file {file}\n}}\n");
    }
    let _process = start(&program, directory.path(), &blocks, port)?;
    let questions = [questions()?, more_questions()?].concat();
    let differences = differences(
        ([127, 0, 0, 1], port).into(),
        &zone,
        &questions,
        Compare::All,
    )?;
    assert_eq!(differences, [""; 0]);
    Ok(())
}

fn etcd(directory: &Path) -> Result<Option<(Process, String)>> {
    let client = format!("http://127.0.0.1:{}", free_port()?);
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(directory)
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args([
            "--initial-cluster",
            &format!("default={peer}"),
            "--unsafe-no-fsync",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Ok(child.ok().map(|child| (Process(child), client)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_etcd() -> Result<()> {
    let Some(program) = coredns() else {
        missing("through_etcd", "needs the program coredns");
        return Ok(());
    };
    let data = tempfile::tempdir()?;
    let Some((_etcd, url)) = etcd(data.path())? else {
        missing("through_etcd", "needs the program etcd");
        return Ok(());
    };
    let zone = Arc::new(SharedZone::new(zone()?));
    let config = skydns::ExportConfig {
        layout: Layout::new("/skydns")?,
        interval: Duration::from_millis(10),
        retry: Duration::from_millis(100),
        resync: Duration::from_secs(3600),
        timeout: Duration::from_secs(5),
        user: None,
    };
    let channel = tonic::transport::Endpoint::from_shared(url.clone())?.connect_lazy();
    let exporting = skydns::export(Arc::clone(&zone), channel, config, std::future::pending());
    let task = tokio::spawn(exporting);
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let blocks = format!(
        ".:{port} {{\n bind 127.0.0.1\n errors\n etcd cluster.local in-addr.arpa ip6.arpa {{\n  \
         path /skydns\n  endpoint {url}\n }}\n}}\n"
    );
    let compared = tokio::task::spawn_blocking(move || -> std::result::Result<_, String> {
        let run = || -> Result<Vec<String>> {
            let _process = start(&program, directory.path(), &blocks, port)?;
            // The first name can be there before the last one.
            let deadline = Instant::now() + Duration::from_secs(10);
            loop {
                let server = ([127, 0, 0, 1], port).into();
                let differences = differences(server, &zone, &questions()?, Compare::Data)?;
                if differences.is_empty() || Instant::now() > deadline {
                    return Ok(differences);
                }
            }
        };
        run().map_err(|error| error.to_string())
    });
    assert_eq!(compared.await??, [""; 0]);
    task.abort();
    Ok(())
}

/// What we say is what CoreDNS says of the same objects when it reads them from the API server
/// itself, but for what the crate's documentation names.
#[test]
fn as_the_kubernetes_plugin() -> Result<()> {
    let Some(program) = coredns() else {
        missing("as_the_kubernetes_plugin", "needs the program coredns");
        return Ok(());
    };
    let zone = SharedZone::new(zone()?);
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let api = api_server()?;
    let blocks = format!(
        ".:{port} {{\n bind 127.0.0.1\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  \
         endpoint http://{api}\n }}\n}}\n"
    );
    let _process = start(&program, directory.path(), &blocks, port)?;
    let mut questions = [questions()?, more_questions()?].concat();
    questions.retain(|(name, kind)| {
        let name = name.to_string();
        let upper = ["svc.", "pod.", "default.svc.", "empty.svc."];
        let upper = upper.map(|upper| format!("{upper}cluster.local."));
        let upper = *kind == RecordType::TXT && upper.contains(&name);
        let between = upper || name.starts_with("_tcp.") || name.starts_with("1.10.");
        let version = name.starts_with("dns-version.") && *kind != RecordType::TXT;
        let port = name.starts_with("_http._tcp.") && *kind == RecordType::A;
        let followed = [RecordType::A, RecordType::AAAA, RecordType::CNAME].contains(kind);
        let alias = name.starts_with("alias.") && !followed;
        let name_server = *kind == RecordType::NS;
        !between && !version && !port && !alias && !name_server
    });
    assert!(questions.len() > 100, "{}", questions.len());
    let differences = differences(
        ([127, 0, 0, 1], port).into(),
        &zone,
        &questions,
        Compare::All,
    )?;
    assert_eq!(differences, [""; 0]);
    Ok(())
}
