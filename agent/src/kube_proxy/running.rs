// SPDX-License-Identifier: Apache-2.0

//! Detection of a running kube-proxy. It would undo the agent's changes within its sync period, so a
//! takeover from a running one is refused.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Default address at which a kube-proxy serves its mode.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// Deadline of an answer from the same machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Refuses to run next to a kube-proxy. It is recognised by the name of its process, if the node's
/// processes are visible, and by its metrics port, which also finds one embedded in another program.
///
/// # Errors
/// If one runs.
pub async fn ensure_stopped() -> anyhow::Result<()> {
    const ADVICE: &str = "it would undo what an agent does: stop it first, and keep it from being \
                          started again, then start the agent with --takeover";
    if let Some(process) = process(Path::new("/proc")) {
        anyhow::bail!("--takeover: kube-proxy runs on this node (process {process}); {ADVICE}");
    }
    if let Some(mode) = mode_at(METRICS).await {
        anyhow::bail!(
            "--takeover: a kube-proxy in mode {mode}, or another agent, answers at \
             http://{METRICS}/proxyMode; {ADVICE}"
        );
    }
    Ok(())
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
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = b"GET /proxyMode HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.ok()?;
        let mut answer = Vec::new();
        // A longer answer is not a kube-proxy's.
        stream.take(4096).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let known = ["ipvs", "iptables", "nftables", "userspace", "kernelspace"];
        let mode = body.trim();
        (head.contains(" 200 ") && known.contains(&mode)).then(|| mode.to_owned())
    };
    timeout(PATIENCE, ask).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::TcpListener;

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
    async fn kube_proxy_is_recognised_by_its_mode() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\nipvs", Some("ipvs")),
            ("HTTP/1.1 404 Not Found\r\n\r\nipvs", None),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", None),
            ("", None),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (found, ()) = tokio::join!(mode_at(address), serve);
            assert_eq!(found.as_deref(), expected, "{answer:?}");
        }
    }
}
