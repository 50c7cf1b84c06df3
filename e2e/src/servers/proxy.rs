// SPDX-License-Identifier: Apache-2.0

//! Writes to the API server without a process for each.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Servers;
use crate::rig::{Host, Process};

/// The deadline of a request, sufficient for an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// kubectl as a proxy without TLS, so that a write needs no process of its own.
#[derive(Debug)]
pub struct ApiProxy {
    host: Host,
    port: u16,
    _process: Process,
}

/// The path of an EndpointSlice in the namespace `default`.
#[must_use]
pub fn slice_path(name: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/{name}")
}

impl ApiProxy {
    /// Starts it on the machine of the servers; its log goes to `logs`.
    pub fn start(host: &Host, kubeconfig: &Path, logs: &Path) -> Result<Self> {
        let kubectl = Servers::binaries()?.program("kubectl");
        let mut command = Command::new(kubectl);
        command
            .args(["proxy", "--port=0", "--kubeconfig"])
            .arg(kubeconfig)
            .env("KUBECTL_KUBERC", "false");
        let mut process = Process::spawn(host.namespace(), "proxy", &mut command, logs)?;
        let line = process.wait_for_log("Starting to serve on", PATIENCE)?;
        let port = line.rsplit(':').next().context("no port")?.trim().parse();
        Ok(Self {
            host: host.clone(),
            port: port.context("no port")?,
            _process: process,
        })
    }

    /// Patches an object, as JSON merge; returns when the server has written it.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.host.namespace().run(|| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let body = patch.to_string();
            let head = format!(
                "PATCH {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Content-Type: application/merge-patch+json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).context("no answer")?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            Ok(())
        })?
    }
}
