// SPDX-License-Identifier: Apache-2.0

//! Detection of a running kube-proxy. It would undo the agent's changes within its sync period, so a
//! takeover waits until it has ended.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// kube-proxy's default of `--metrics-bind-address`.
pub const METRICS: SocketAddr = local(10249);
/// kube-proxy's default port of `--healthz-bind-address`.
pub const HEALTHZ: SocketAddr = local(10256);
/// Deadline of an answer from the same machine.
const PATIENCE: Duration = Duration::from_secs(2);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Places where a running kube-proxy is looked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Search {
    /// Whether processes are looked at.
    pub processes: bool,
    /// The address of `/proxyMode`, unless this program serves it.
    pub metrics: Option<SocketAddr>,
    /// The address of `/healthz`, unless this program serves it.
    pub healthz: Option<SocketAddr>,
}

/// A sign of a running kube-proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Running {
    /// A process, by its number.
    Process(u32),
    /// An answer at `/proxyMode`.
    Mode(SocketAddr, String),
    /// An answer at `/healthz`.
    Healthz(SocketAddr),
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(number) => {
                write!(f, "kube-proxy runs on this node (process {number})")
            }
            Self::Mode(address, mode) => write!(
                f,
                "a kube-proxy in mode {mode}, or another agent, answers at \
                 http://{address}/proxyMode"
            ),
            Self::Healthz(address) => write!(
                f,
                "a kube-proxy, or another agent, answers at http://{address}/healthz"
            ),
        }
    }
}

impl Search {
    /// Looks for a running kube-proxy: by the name of its process, if the node's processes are visible,
    /// and by its ports, which also find one that is embedded in another program.
    pub async fn find(&self) -> Option<Running> {
        if let Some(process) = self
            .processes
            .then(|| process(Path::new("/proc")))
            .flatten()
        {
            return Some(Running::Process(process));
        }
        if let Some(address) = self.metrics
            && let Some(mode) = mode_at(address).await
        {
            return Some(Running::Mode(address, mode));
        }
        let address = self.healthz?;
        is_healthz(address)
            .await
            .then_some(Running::Healthz(address))
    }
}

/// A process named kube-proxy in our network namespace.
fn process(proc: &Path) -> Option<u32> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let ours = namespace(&proc.join("self"))?;
    let entries = fs::read_dir(proc).ok()?.flatten();
    let mut processes = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    let is_one = |path: &Path| {
        // A zombie has no namespace.
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == "kube-proxy")
            && namespace(path).as_ref() == Some(&ours)
    };
    let found = processes.find(|(_, path)| is_one(path));
    found.map(|(number, _)| number)
}

/// The mode served at an address, if the answer is a kube-proxy's.
async fn mode_at(address: SocketAddr) -> Option<String> {
    let (head, body) = ask(address, "/proxyMode").await?;
    let known = ["ipvs", "iptables", "nftables", "userspace", "kernelspace"];
    let mode = body.trim();
    (head.contains(" 200 ") && known.contains(&mode)).then(|| mode.to_owned())
}

/// Returns `true` if the answer at an address is that of a kube-proxy, healthy or not.
async fn is_healthz(address: SocketAddr) -> bool {
    let answer = ask(address, "/healthz").await;
    answer.is_some_and(|(_, body)| body.contains("\"lastUpdated\""))
}

/// Head and body of an answer.
async fn ask(address: SocketAddr, path: &str) -> Option<(String, String)> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        // A longer answer is not a kube-proxy's.
        stream.take(4096).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    };
    timeout(PATIENCE, ask).await.ok().flatten()
}

#[cfg(test)]
pub(crate) mod testing {
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// Answers all requests in one way until the task is aborted.
    pub(crate) async fn serve(answer: &'static str) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, server)
    }

    /// The metrics port of a kube-proxy.
    pub(crate) async fn fake_kube_proxy() -> (SocketAddr, JoinHandle<()>) {
        serve("HTTP/1.1 200 OK\r\n\r\nipvs").await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::testing::serve;
    use super::*;

    fn add(proc: &Path, name: &str, comm: &str, namespace: &str) {
        let process = proc.join(name);
        fs::create_dir_all(process.join("ns")).unwrap();
        fs::write(process.join("comm"), format!("{comm}\n")).unwrap();
        symlink(namespace, process.join("ns/net")).unwrap();
    }

    #[test]
    fn process_is_recognised_by_name_and_network() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        add(proc, "self", "portolan-agent", "net:[1]");
        add(proc, "7", "kube-proxy", "net:[2]");
        add(proc, "8", "kube-proxyish", "net:[1]");
        fs::create_dir_all(proc.join("9")).unwrap();
        fs::write(proc.join("9/comm"), "kube-proxy\n").unwrap();
        assert_eq!(process(proc), None);
        add(proc, "10", "kube-proxy", "net:[1]");
        assert_eq!(process(proc), Some(10));
    }

    #[tokio::test]
    async fn kube_proxy_is_recognised_by_its_answers() {
        for (answer, mode, healthz) in [
            ("HTTP/1.1 200 OK\r\n\r\nipvs", Some("ipvs"), false),
            ("HTTP/1.1 404 Not Found\r\n\r\nipvs", None, false),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", None, false),
            (
                "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"lastUpdated\": \"\"}",
                None,
                true,
            ),
            ("", None, false),
        ] {
            let (address, _) = serve(answer).await;
            assert_eq!(mode_at(address).await.as_deref(), mode, "{answer:?}");
            assert_eq!(is_healthz(address).await, healthz, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn each_place_is_searched_if_asked_for() {
        assert_eq!(Search::default().find().await, None);
        let (mode, _) = serve("HTTP/1.1 200 OK\r\n\r\niptables").await;
        let (healthz, _) = serve("HTTP/1.1 200 OK\r\n\r\n{\"lastUpdated\": \"x\"}").await;
        let mut search = Search {
            metrics: Some(healthz),
            healthz: Some(mode),
            ..Search::default()
        };
        assert_eq!(search.find().await, None);
        search.healthz = Some(healthz);
        assert_eq!(search.find().await, Some(Running::Healthz(healthz)));
        search.metrics = Some(mode);
        let found = search.find().await.unwrap();
        assert_eq!(found, Running::Mode(mode, "iptables".to_owned()));
        assert!(found.to_string().contains("mode iptables"), "{found}");
    }
}
