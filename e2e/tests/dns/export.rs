// SPDX-License-Identifier: Apache-2.0

//! The export to an etcd with certificates and authentication, through restarts and rotations.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use data_encoding::BASE64;
use hickory_proto::rr::RecordType;
use portolan_e2e::cluster::program;
use portolan_e2e::lane;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use portolan_tls::issue::Authority;
use serde_json::{Value, json};

use crate::agent::write;
use crate::ask::{Question, ask};
use crate::programs::{HOST, PATIENT, Running, coredns_or_skip, local};

const WEB: &str = "/skydns/local/cluster/svc/prod/web/_tcp/_http/_x0";

/// Keys of other programs, in the prefix and beside it.
const FOREIGN: [&str; 4] = [
    "/other/key",
    "/skydns",
    "/skydns/local/clusterx/a",
    "/skydns/org/example/www",
];

/// An etcd with two listeners: one for clients with a certificate, and a plain one for the test.
struct Etcd<'a> {
    directory: &'a Path,
    secure: u16,
    plain: u16,
    peer: u16,
    running: Option<Running>,
    token: Option<String>,
}

impl<'a> Etcd<'a> {
    fn start(directory: &'a Path) -> Result<Self> {
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
        Ok(etcd)
    }

    fn run(&mut self) -> Result<()> {
        let file = |name: &str| self.directory.join(name);
        let secure = format!("https://{HOST}:{}", self.secure);
        let both = format!("{secure},http://{HOST}:{}", self.plain);
        let peer = format!("http://{HOST}:{}", self.peer);
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(file("secure-etcd"))
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
        self.running = Some(Running::start(self.directory, "secure-etcd", &mut command)?);
        wait_for("etcd", PATIENT, || {
            let status = self.post("maintenance/status", &json!({})).ok()?;
            // Writes fail without a leader.
            (status["leader"].as_str()? != "0").then_some(())
        })
    }

    fn kill(&mut self) -> Result<()> {
        self.token = None;
        self.running.take().context("etcd runs")?.kill()
    }

    /// Calls etcd's JSON gateway.
    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(local(self.plain))?;
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

    /// Enables authentication. The user `portolan` has all rights below the prefix.
    fn demand_passwords(&mut self) -> Result<()> {
        let permission = json!({"permType": "READWRITE", "key": BASE64.encode(b"/skydns/"),
            "range_end": BASE64.encode(b"/skydns0")});
        for (path, body) in [
            ("user/add", json!({"name": "root", "password": "r"})),
            (
                "user/add",
                json!({"name": "portolan", "password": "secret"}),
            ),
            ("role/add", json!({"name": "root"})),
            ("role/add", json!({"name": "names"})),
            ("role/grant", json!({"name": "names", "perm": permission})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("user/grant", json!({"user": "portolan", "role": "names"})),
            ("enable", json!({})),
        ] {
            self.post(&format!("auth/{path}"), &body)?;
        }
        self.log_in()
    }

    fn log_in(&mut self) -> Result<()> {
        let root = json!({"name": "root", "password": "r"});
        let reply = self.post("auth/authenticate", &root)?;
        self.token = Some(reply["token"].as_str().context("no token")?.to_owned());
        Ok(())
    }

    fn put(&self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (
            BASE64.encode(key.as_bytes()),
            BASE64.encode(value.as_bytes()),
        );
        self.post("kv/put", &json!({"key": key, "value": value}))?;
        Ok(())
    }

    /// Compacts the history up to the current revision.
    fn compact(&self) -> Result<()> {
        let now = self.post("kv/range", &json!({"key": BASE64.encode(b"/")}))?;
        let revision = &now["header"]["revision"];
        let compact = json!({"revision": revision, "physical": true});
        self.post("kv/compaction", &compact)?;
        Ok(())
    }

    fn keys(&self) -> Result<BTreeMap<String, String>> {
        let all = BASE64.encode(&[0]);
        let reply = self.post("kv/range", &json!({"key": all, "range_end": all}))?;
        let text = |value: &Value| -> Result<String> {
            let bytes = BASE64.decode(value.as_str().unwrap_or_default().as_bytes())?;
            Ok(String::from_utf8(bytes)?)
        };
        let pairs = reply["kvs"].as_array().into_iter().flatten();
        pairs
            .map(|pair| Ok((text(&pair["key"])?, text(&pair["value"])?)))
            .collect()
    }
}

fn certificates(directory: &Path) -> Result<()> {
    let now = SystemTime::now();
    let valid = now - Duration::from_secs(3600)..now + Duration::from_secs(3600);
    // A new authority each time, so that older credentials are invalid.
    let (authority, _) = Authority::create("test", valid.clone())?;
    std::fs::write(directory.join("ca.crt"), authority.cert())?;
    let server = authority.server(&[&HOST.to_string()], valid.clone())?;
    let client = authority.client("names", &[], valid)?;
    for (name, issued) in [("etcd", server), ("client", client)] {
        std::fs::write(directory.join(format!("{name}.crt")), issued.cert)?;
        std::fs::write(directory.join(format!("{name}.key")), issued.key)?;
    }
    Ok(())
}

/// Starts the controller. Of its three endpoints, only the second is the etcd's; nothing listens at
/// the others.
fn exporter(directory: &Path, etcd: u16, password: &str) -> Result<Running> {
    let file = directory.join("password");
    std::fs::write(&file, format!("{password}\n"))?;
    let [dead, gone] = ports::reserve()?;
    let endpoints = [dead, etcd, gone].map(|port| format!("https://{HOST}:{port}"));
    let mut command = Command::new(program("portolan-controller")?);
    command
        .args(["--source=file", "--file-poll=50ms", "--plaintext"])
        .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
        .arg("--debug-listen=")
        .arg("--dns-zone=cluster.local")
        .arg("--file")
        .arg(directory.join("objects"))
        .arg(format!("--dns-etcd-endpoint={}", endpoints.join(",")))
        .arg("--dns-etcd-ca")
        .arg(directory.join("ca.crt"))
        .arg("--dns-etcd-cert")
        .arg(directory.join("client.crt"))
        .arg("--dns-etcd-key")
        .arg(directory.join("client.key"))
        .args(["--dns-etcd-user", "portolan", "--dns-etcd-password-file"])
        .arg(file);
    Running::start(directory, "exporter", &mut command)
}

fn corefile(directory: &Path, dns: u16, etcd: u16) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    format!(
        ".:{dns} {{\n bind {HOST}\n errors\n etcd cluster.local {{\n  path /skydns\n  \
         endpoint https://{HOST}:{etcd}\n  tls {} {} {}\n  credentials portolan secret\n }}\n}}\n",
        file("client.crt"),
        file("client.key"),
        file("ca.crt")
    )
}

#[test]
fn an_etcd_with_certificates_and_passwords_is_kept_up_to_date() {
    let Some(coredns) = coredns_or_skip("dns etcd") else {
        return;
    };
    if Command::new("etcd").arg("--version").output().is_err() {
        lane::missing("dns etcd", "needs the program etcd");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path();
    certificates(directory).unwrap();
    let mut etcd = Etcd::start(directory).unwrap();
    etcd.demand_passwords().unwrap();
    for key in FOREIGN {
        etcd.put(key, "theirs").unwrap();
    }
    write(directory, "10.96.0.1");

    // A wrong password writes nothing.
    let wrong = exporter(directory, etcd.secure, "wrong").unwrap();
    let log = directory.join("exporter.log");
    let said = || {
        let log = std::fs::read_to_string(&log).ok()?;
        log.contains("authentication failed").then_some(())
    };
    wait_for("a refusal", PATIENT, said).unwrap();
    assert_eq!(etcd.keys().unwrap().len(), FOREIGN.len());
    drop(wrong);

    let has = |etcd: &Etcd<'_>, address: &str| {
        let keys = etcd.keys().ok()?;
        keys.get(WEB)?.contains(address).then_some(())
    };
    let _exporter = exporter(directory, etcd.secure, "secret").unwrap();
    wait_for("the keys", PATIENT, || has(&etcd, "10.96.0.1")).unwrap();

    let [dns] = ports::reserve().unwrap();
    std::fs::write(
        directory.join("Corefile"),
        corefile(directory, dns, etcd.secure),
    )
    .unwrap();
    let mut command = Command::new(coredns);
    command.arg("-conf").arg(directory.join("Corefile"));
    let coredns = Running::start(directory, "coredns", &mut command).unwrap();
    let web = Question {
        name: "web.prod.svc.cluster.local.".to_owned(),
        kind: RecordType::A,
    };
    let answers = |address: &str| {
        let seen = ask(local(dns), &web, Duration::from_secs(6)).ok()?;
        let mut lines = seen.answers.iter();
        lines
            .any(|line| line.ends_with(&format!(" A {address}")))
            .then_some(())
    };
    wait_for("CoreDNS", PATIENT, || answers("10.96.0.1")).unwrap();

    etcd.compact().unwrap();
    write(directory, "10.96.0.2");
    wait_for("a change after a compaction", PATIENT, || {
        has(&etcd, "10.96.0.2")
    })
    .unwrap();

    // A restarted etcd has forgotten the token of the last log-in.
    etcd.kill().unwrap();
    write(directory, "10.96.0.3");
    etcd.run().unwrap();
    etcd.log_in().unwrap();
    wait_for("a change that etcd missed", PATIENT, || {
        has(&etcd, "10.96.0.3")
    })
    .unwrap();
    // Started anew: etcd 3.4 may refuse a log-in with a token from before its restart, and CoreDNS
    // sends that token with each log-in.
    drop(coredns);
    let _coredns = Running::start(directory, "coredns", &mut command).unwrap();
    wait_for("CoreDNS again", PATIENT, || answers("10.96.0.3")).unwrap();

    // All certificates are replaced by those of another authority. The exporter is not restarted.
    etcd.kill().unwrap();
    certificates(directory).unwrap();
    write(directory, "10.96.0.4");
    etcd.run().unwrap();
    etcd.log_in().unwrap();
    wait_for("a change after a rotation", PATIENT, || {
        has(&etcd, "10.96.0.4")
    })
    .unwrap();

    assert_foreign_keys_untouched(&etcd);
}

fn assert_foreign_keys_untouched(etcd: &Etcd<'_>) {
    let keys = etcd.keys().unwrap();
    for key in FOREIGN {
        assert_eq!(keys.get(key).map(String::as_str), Some("theirs"), "{key}");
    }
    let others = keys.keys().filter(|key| !key.starts_with("/skydns/"));
    assert_eq!(others.count(), 2);
}
