// SPDX-License-Identifier: Apache-2.0

//! An etcd with certificates and authentication.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use data_encoding::BASE64;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use portolan_tls::issue::Authority;
use serde_json::{Value, json};

/// The address that everything listens at.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 54);
/// Long enough for a loaded machine; only a failure ever waits this long.
pub(crate) const PATIENT: Duration = Duration::from_secs(120);
/// The beginning of the fleet's keys.
const OBJECTS: &str = "/portolan/v1alpha1/";

/// A program that is killed on drop.
pub(crate) struct Running(Child);

impl Running {
    /// Starts a program; its output goes to `<directory>/<name>.log`.
    pub(crate) fn start(directory: &Path, name: &str, command: &mut Command) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self(child))
    }

    /// Stops it, or lets it go on.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let kill = Command::new("kill")
            .args(["-s", signal, &self.0.id().to_string()])
            .status()?;
        ensure!(kill.success(), "kill -s {signal}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An etcd with two listeners: one for clients with a certificate, and a plain one for the test.
pub(crate) struct Etcd<'a> {
    directory: &'a Path,
    pub(crate) secure: u16,
    plain: u16,
    peer: u16,
    running: Option<Running>,
    token: Option<String>,
}

impl<'a> Etcd<'a> {
    /// Starts one in which the user `fleet` with the password `secret` may read and write the fleet's keys.
    pub(crate) fn start(directory: &'a Path) -> Result<Self> {
        certificates(directory)?;
        let [secure, plain, peer] = ports::reserve()?;
        let mut etcd = Self {
            directory,
            secure,
            plain,
            peer,
            running: None,
            token: None,
        };
        etcd.run()?;
        etcd.demand_passwords()?;
        etcd.log_in()?;
        Ok(etcd)
    }

    /// Starts it again, with its data.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.stop();
        self.run()?;
        self.log_in()
    }

    pub(crate) fn stop(&mut self) {
        self.token = None;
        self.running = None;
    }

    fn run(&mut self) -> Result<()> {
        let file = |name: &str| self.directory.join(name);
        let secure = format!("https://{HOST}:{}", self.secure);
        let both = format!("{secure},http://{HOST}:{}", self.plain);
        let peer = format!("http://{HOST}:{}", self.peer);
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(file("etcd"))
            .args(["--listen-client-urls", &both])
            .args(["--advertise-client-urls", &secure])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--unsafe-no-fsync", "--client-cert-auth"])
            .arg("--trusted-ca-file")
            .arg(file("ca.crt"))
            .arg("--cert-file")
            .arg(file("etcd.crt"))
            .arg("--key-file")
            .arg(file("etcd.key"));
        self.running = Some(Running::start(self.directory, "etcd", &mut command)?);
        wait_for("etcd", PATIENT, || {
            let status = self.post("maintenance/status", &json!({})).ok()?;
            // Writes fail without a leader.
            (status["leader"].as_str()? != "0").then_some(())
        })
    }

    /// Calls etcd's JSON gateway.
    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect((HOST, self.plain))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let (body, length) = (body.to_string(), body.to_string().len());
        let token = self.token.as_ref();
        let token = token.map_or_else(String::new, |it| format!("Authorization: {it}\r\n"));
        write!(
            stream,
            "POST /v3/{path} HTTP/1.0\r\nHost: {HOST}\r\n{token}\
             Content-Length: {length}\r\n\r\n{body}"
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (head, body) = reply.split_once("\r\n\r\n").context("no HTTP reply")?;
        ensure!(head.contains(" 200 "), "{path}: {reply}");
        Ok(serde_json::from_str(body)?)
    }

    fn demand_passwords(&self) -> Result<()> {
        let permission = json!({"permType": "READWRITE", "key": encoded("/portolan/"),
            "range_end": encoded("/portolan0")});
        for (path, body) in [
            ("user/add", json!({"name": "root", "password": "r"})),
            ("user/add", json!({"name": "fleet", "password": "secret"})),
            ("role/add", json!({"name": "root"})),
            ("role/add", json!({"name": "fleet"})),
            ("role/grant", json!({"name": "fleet", "perm": permission})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("user/grant", json!({"user": "fleet", "role": "fleet"})),
            ("enable", json!({})),
        ] {
            self.post(&format!("auth/{path}"), &body)?;
        }
        Ok(())
    }

    fn log_in(&mut self) -> Result<()> {
        let root = json!({"name": "root", "password": "r"});
        let reply = self.post("auth/authenticate", &root)?;
        self.token = Some(reply["token"].as_str().context("no token")?.to_owned());
        Ok(())
    }

    /// Writes the value of an object without any check.
    pub(crate) fn put(&self, key: &str, value: &str) -> Result<()> {
        let key = encoded(&format!("{OBJECTS}{key}"));
        self.post("kv/put", &json!({"key": key, "value": encoded(value)}))?;
        Ok(())
    }

    /// Deletes all load balancers at once.
    pub(crate) fn delete_load_balancers(&self) -> Result<()> {
        let key = |end: &str| encoded(&format!("{OBJECTS}loadbalancers{end}"));
        let range = json!({"key": key("/"), "range_end": key("0")});
        self.post("kv/deleterange", &range)?;
        Ok(())
    }

    /// Compacts the history up to the current revision.
    pub(crate) fn compact(&self) -> Result<()> {
        let now = self.post("kv/range", &json!({"key": encoded("/")}))?;
        let revision = &now["header"]["revision"];
        let compact = json!({"revision": revision, "physical": true});
        self.post("kv/compaction", &compact)?;
        Ok(())
    }
}

fn encoded(text: &str) -> String {
    BASE64.encode(text.as_bytes())
}

fn certificates(directory: &Path) -> Result<()> {
    let now = SystemTime::now();
    let valid = now - Duration::from_secs(3600)..now + Duration::from_secs(3600);
    let (authority, _) = Authority::create("test", valid.clone())?;
    fs::write(directory.join("ca.crt"), authority.cert())?;
    let server = authority.server(&[&HOST.to_string()], valid.clone())?;
    let client = authority.client("fleet", &[], valid)?;
    for (name, issued) in [("etcd", server), ("client", client)] {
        fs::write(directory.join(format!("{name}.crt")), issued.cert)?;
        fs::write(directory.join(format!("{name}.key")), issued.key)?;
    }
    Ok(())
}
