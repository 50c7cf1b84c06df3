//! A real CoreDNS that gets the records in each of the three ways answers what we answer.
//!
//! Takes `coredns` from `KUBEBUILDER_ASSETS` or from the path; says SKIP where there is none. The
//! way through etcd needs `etcd` in the path besides.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead, Write};
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
use portolan_dns::{
    Change, Endpoint, Kind, Name, Port, RecordType, Server, Service, ServiceKey, SharedZone, Slice,
    SliceKey, Zone, ZoneConfig,
};
use portolan_e2e::lane::missing;
use tokio::net::{TcpListener, UnixListener};

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

fn zone() -> Result<Zone> {
    let http = Port {
        name: "http".to_owned(),
        protocol: "TCP".parse()?,
        number: Some(80),
    };
    let service = |name: &str, kind| {
        Change::Service(Service {
            key: ServiceKey::new("default", name),
            kind,
            ports: vec![http.clone()],
            publish_not_ready: false,
        })
    };
    let endpoint = |ip: &str, hostname: Option<&str>| -> Result<Endpoint> {
        Ok(Endpoint {
            addresses: vec![ip.parse()?],
            ready: true,
            hostname: hostname.map(str::to_owned),
            pod: None,
            zone: None,
        })
    };
    let slice = |service: &str, endpoints| {
        Change::Slice(Slice {
            key: SliceKey {
                namespace: "default".to_owned(),
                name: format!("{service}-1"),
            },
            service: service.to_owned(),
            endpoints,
            ports: vec![http.clone()],
        })
    };
    let inside = "web.default.svc.cluster.local".to_owned();
    let ips = vec!["10.0.0.1".parse()?, "fd00::1".parse()?];
    let web = vec![
        endpoint("10.1.0.1", None)?,
        endpoint("10.1.0.9", Some("both"))?,
    ];
    let db = vec![
        endpoint("10.1.0.2", Some("db-0"))?,
        endpoint("10.1.0.3", Some("db-1"))?,
        endpoint("10.1.0.4", None)?,
        endpoint("10.1.0.9", Some("both"))?,
        endpoint("fd00:1::4", None)?,
    ];
    let mut zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    for change in [
        Change::Namespace("default".to_owned()),
        Change::Namespace("empty".to_owned()),
        service("web", Kind::ClusterIp { ips }),
        slice("web", web),
        service("db", Kind::Headless),
        slice("db", db),
        service("none", Kind::Headless),
        service("alias", Kind::ExternalName { target: inside }),
        Change::Synced,
    ] {
        zone.apply(change);
    }
    Ok(zone)
}

const NAMES: &str = "web.default.svc db.default.svc none.default.svc alias.default.svc x.default.svc \
    10-1-0-1.web.default.svc x.web.default.svc db-0.db.default.svc 10-1-0-4.db.default.svc x.db.default.svc \
    fd00-1--4.db.default.svc _http._tcp.web.default.svc _http._tcp.db.default.svc _x._tcp.db.default.svc \
    _http._udp.db.default.svc default.svc empty.svc x.svc web.x.svc svc pod x dns-version";

const REVERSE: &str =
    "1.0.0.10.in-addr.arpa 2.0.1.10.in-addr.arpa 4.0.1.10.in-addr.arpa 99.0.0.10.in-addr.arpa";

/// Each name, with the types that are answered alike in all three ways.
fn questions() -> Result<Vec<(Name, RecordType)>> {
    let mut questions = Vec::new();
    for name in NAMES.split_whitespace() {
        let absolute = Name::from_ascii(format!("{name}.cluster.local."))?;
        let mut kinds = vec![RecordType::A, RecordType::AAAA];
        if name.starts_with("_http") {
            kinds = vec![RecordType::SRV];
        } else if name == "dns-version" {
            kinds = vec![RecordType::TXT];
        } else if name.starts_with("alias") {
            kinds.push(RecordType::CNAME);
        }
        questions.extend(kinds.into_iter().map(|kind| (absolute.clone(), kind)));
    }
    for name in REVERSE.split_whitespace() {
        questions.push((Name::from_ascii(format!("{name}."))?, RecordType::PTR));
    }
    Ok(questions)
}

/// What the etcd plugin does not do: see the module `skydns`, and it has names of ports for any
/// type.
fn more_questions() -> Result<Vec<(Name, RecordType)>> {
    let mut questions = vec![(Name::from_ascii("9.0.1.10.in-addr.arpa.")?, RecordType::PTR)];
    for name in NAMES.split_whitespace() {
        let name = Name::from_ascii(format!("{name}.cluster.local."))?;
        for kind in [
            RecordType::SRV,
            RecordType::TXT,
            RecordType::PTR,
            RecordType::MX,
            RecordType::A,
        ] {
            questions.push((name.clone(), kind));
        }
    }
    questions.push((
        Name::from_ascii("_tcp.db.default.svc.cluster.local.")?,
        RecordType::A,
    ));
    questions.push((Name::from_ascii("1.10.in-addr.arpa.")?, RecordType::PTR));
    questions.push((Name::from_ascii("cluster.local.")?, RecordType::NS));
    Ok(questions)
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

/// An API server with the objects of [`zone`] and nothing else: lists, and watches in which
/// nothing happens.
fn api_server() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || api_connection(stream));
        }
    });
    Ok(address)
}

fn api_connection(mut stream: std::net::TcpStream) -> Option<()> {
    let mut reader = std::io::BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut request = String::new();
        reader
            .read_line(&mut request)
            .ok()
            .filter(|length| *length > 0)?;
        let mut header = String::from(" ");
        while !header.trim_end().is_empty() || header == " " {
            header.clear();
            reader.read_line(&mut header).ok()?;
        }
        let head = "Content-Type: application/json\r\n";
        if request.contains("sendInitialEvents=true") {
            let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}"#;
            let length = body.len();
            let status = "HTTP/1.1 422 Unprocessable Entity";
            write!(
                stream,
                "{status}\r\n{head}Content-Length: {length}\r\n\r\n{body}"
            )
            .ok()?;
        } else if request.contains("watch=true") || request.contains("watch=1") {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
            )
            .ok()?;
            // Until the client goes.
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
            return None;
        } else {
            let body = listing(&request);
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{head}Content-Length: {length}\r\n\r\n{body}"
            )
            .ok()?;
        }
    }
}

/// The list that a request asks for.
fn listing(request: &str) -> String {
    let list = |kind: &str, version: &str, items: &[serde_json::Value]| {
        let metadata = serde_json::json!({"resourceVersion": "7"});
        serde_json::json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}).to_string()
    };
    let metadata = |name: &str| serde_json::json!({"name": name, "namespace": "default", "uid": name, "resourceVersion": "7"});
    let ports = serde_json::json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let service = |name: &str, spec: serde_json::Value| {
        let mut spec = spec;
        spec["ports"] = ports.clone();
        serde_json::json!({"metadata": metadata(name), "spec": spec})
    };
    let slice = |service: &str, family: &str, endpoints: serde_json::Value| {
        let mut metadata = metadata(&format!("{service}-{family}"));
        metadata["labels"] = serde_json::json!({"kubernetes.io/service-name": service});
        serde_json::json!({"metadata": metadata, "addressType": family, "endpoints": endpoints, "ports": ports})
    };
    if request.contains("/namespaces") {
        let items = ["default", "empty"]
            .map(|name| serde_json::json!({"metadata": {"name": name, "uid": name}}));
        list("NamespaceList", "v1", &items)
    } else if request.contains("/endpointslices") {
        let web = serde_json::json!([{"addresses": ["10.1.0.1"]}, {"addresses": ["10.1.0.9"], "hostname": "both"}]);
        let db = serde_json::json!([
            {"addresses": ["10.1.0.2"], "hostname": "db-0"}, {"addresses": ["10.1.0.3"], "hostname": "db-1"},
            {"addresses": ["10.1.0.4"]}, {"addresses": ["10.1.0.9"], "hostname": "both"},
        ]);
        let db6 = serde_json::json!([{"addresses": ["fd00:1::4"]}]);
        let items = [
            slice("web", "IPv4", web),
            slice("db", "IPv4", db),
            slice("db", "IPv6", db6),
        ];
        list("EndpointSliceList", "discovery.k8s.io/v1", &items)
    } else if request.contains("/services") {
        let headless =
            serde_json::json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]});
        let dual = serde_json::json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let alias = serde_json::json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"});
        let items = [
            service("web", dual),
            service("db", headless.clone()),
            service("none", headless),
            service("alias", alias),
        ];
        list("ServiceList", "v1", &items)
    } else {
        list("List", "v1", &[])
    }
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
