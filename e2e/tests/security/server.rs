// SPDX-License-Identifier: Apache-2.0

//! A controller's process with TLS, on files, on this machine's loopback.

use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use portolan_e2e::cluster::{http_get_from, program};
use portolan_e2e::objects::{service, slice_of};
use portolan_e2e::rig::Family;
use portolan_e2e::wait::wait_for;
use portolan_tls::NodeName;
use portolan_tls::issue::{Authority, Issued};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::PATIENCE;

const HOUR: Duration = Duration::from_secs(3600);

/// The program and its files.
pub(crate) struct Server {
    child: Child,
    pub(crate) agents: SocketAddr,
    admin: u16,
    dir: TempDir,
}

pub(crate) fn valid() -> Range<SystemTime> {
    let now = SystemTime::now();
    now - HOUR..now + HOUR
}

/// Raises the limit of descriptors to its maximum, for this process and its children.
pub(crate) fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, all).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

impl Server {
    /// Starts a controller with certificates of `portolan-controller certs` for the nodes `a` and
    /// `b`.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with more arguments, and without the deletion guard: most tests delete most
    /// objects.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::of(None, &[&["--deletion-guard-percent=100"], args].concat())
    }

    /// Starts it with the deletion guard.
    pub(crate) fn guarded() -> Self {
        Self::of(None, &[])
    }

    /// Starts it with a limit of descriptors.
    pub(crate) fn limited(descriptors: u32) -> Self {
        Self::of(Some(descriptors), &[])
    }

    fn of(descriptors: Option<u32>, args: &[&str]) -> Self {
        raise_descriptors();
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("objects")).unwrap();
        make_certificates(dir.path());
        write_services(dir.path(), 1);
        let (certs, objects) = (dir.path().join("certs"), dir.path().join("objects"));
        let file = format!("--file={}", objects.display());
        let source = ["--source=file", "--file-poll=20ms", &file];
        let server = Self::spawn(dir, &certs, descriptors, &[&source, args].concat());
        server.until_ready();
        server
    }

    /// Starts a relay of this name behind a controller. The relay may not be ready yet.
    pub(crate) fn relay(certs: &Path, upstream: SocketAddr, name: &str) -> Self {
        let own = certs.join("relays").join(name);
        let args = [
            "--source=controller".to_owned(),
            format!("--upstream={upstream}"),
            format!("--relay-name={name}"),
            format!("--upstream-tls-dir={}", own.display()),
        ];
        let args = args.each_ref().map(String::as_str);
        Self::spawn(TempDir::new().unwrap(), certs, None, &args)
    }

    /// Starts the program with its own directory, and waits until it has bound its ports.
    fn spawn(dir: TempDir, certs: &Path, descriptors: Option<u32>, args: &[&str]) -> Self {
        let ports = dir.path().join("ports");
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let limit = descriptors.map(|number| format!("ulimit -n {number} && "));
        let limit = limit.unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limit}exec \"$0\" \"$@\"")])
            .arg(program("portolan-controller").unwrap())
            .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .arg(format!("--debug-listen={}", socket_in(dir.path())))
            .arg("--tls-dir")
            .arg(certs.join("controller"))
            .arg("--port-file")
            .arg(&ports)
            .args(args)
            // The allocator returns freed pages at once, so that resident memory is what the server
            // holds. By default it keeps them for 10 s, which counts every short peak of a busy machine.
            .env("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = command.spawn().unwrap();
        let (agents, admin) = wait_for("the controller's ports", PATIENCE, || read_ports(&ports))
            .unwrap_or_else(|error| panic!("{error}: {}", log_of(dir.path())));
        Self {
            child,
            agents: ([127, 0, 0, 1], agents).into(),
            admin,
            dir,
        }
    }

    pub(crate) fn until_ready(&self) {
        wait_for("readiness", PATIENCE, || self.get("/readyz")).unwrap();
    }

    /// The address of `portolanctl`'s queries.
    pub(crate) fn admin(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.admin).into()
    }

    /// The socket of `portolanctl`'s confirmations.
    pub(crate) fn socket(&self) -> String {
        socket_in(self.dir.path())
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it to stop.
    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the controller to end", PATIENCE, || {
            self.child.try_wait().unwrap()
        })
        .unwrap()
    }

    pub(crate) fn certs(&self) -> PathBuf {
        self.dir.path().join("certs")
    }

    /// Runs `certs` again: all certificates but the authority's are new.
    pub(crate) fn renew_certificates(&self) {
        make_certificates(self.dir.path());
    }

    /// Signs certificates that `certs` does not make.
    pub(crate) fn issue(&self, node: &str, valid: Range<SystemTime>) -> Issued {
        let read = |file: &str| fs::read_to_string(self.certs().join("ca").join(file)).unwrap();
        let authority = Authority::load(&read("tls.crt"), &read("tls.key")).unwrap();
        let name = NodeName::new("", node).unwrap();
        authority.node(&name, valid).unwrap()
    }

    /// Replaces the Services by this many. Clients learn of it later.
    pub(crate) fn publish(&self, services: usize) {
        write_services(self.dir.path(), services);
    }

    /// Publishes the nodes `a` and `b`, in different zones.
    pub(crate) fn publish_nodes(&self) {
        let nodes = [("a", "east"), ("b", "west")].map(|(name, zone)| {
            let labels = json!({ "topology.kubernetes.io/zone": zone });
            let metadata = json!({ "name": name, "labels": labels });
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
        });
        let list = json!({ "kind": "List", "items": nodes }).to_string();
        replace(self.dir.path(), "nodes.json", &list);
    }

    pub(crate) fn get(&self, path: &str) -> Option<String> {
        http_get_from(([127, 0, 0, 1], self.admin).into(), path).ok()
    }

    /// The value of a metric, by its name and labels as written.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.get("/metrics").expect("metrics");
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned());
        metrics.lines().find_map(value)?.parse().ok()
    }

    pub(crate) fn refused(&self, reason: &str) -> f64 {
        let name = "portolan_controller_sessions_refused_total";
        let value = self.metric(&format!("{name}{{reason=\"{reason}\"}}"));
        value.unwrap_or(0.0)
    }

    pub(crate) fn nodes(&self) -> Value {
        let nodes = self.get("/debug/nodes").expect("nodes");
        serde_json::from_str(&nodes).unwrap()
    }

    /// Its resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.unwrap().trim().trim_end_matches(" kB");
        number.trim().parse().unwrap()
    }

    /// The processor time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<_> = fields.split(' ').collect();
        // utime and stime of proc_pid_stat(5), in ticks: 100 a second on all machines (USER_HZ).
        let ticks = (fields[11..=12].iter()).map(|ticks| ticks.parse::<u64>().unwrap());
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// Lowers its limit of open files and sockets.
    pub(crate) fn limit_descriptors(&self, count: u64) {
        use rustix::process::{Resource, Rlimit, prlimit};
        let limit = Rlimit {
            current: Some(count),
            maximum: Some(count),
        };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).unwrap();
    }

    /// The number of open files and sockets.
    pub(crate) fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(path).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = log_of(self.dir.path());
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(40)..];
            println!("--- controller:\n{}", tail.join("\n"));
        }
    }
}

fn socket_in(dir: &Path) -> String {
    format!("unix://{}", dir.join("run/controller.sock").display())
}

fn log_of(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn read_ports(path: &Path) -> Option<(u16, u16)> {
    let text = fs::read_to_string(path).ok()?;
    let (agents, admin) = text.trim().split_once(' ')?;
    let number = |text: &str, name: &str| text.strip_prefix(name)?.parse().ok();
    Some((number(agents, "agents=")?, number(admin, "admin=")?))
}

fn make_certificates(dir: &Path) {
    let made = Command::new(program("portolan-controller").unwrap())
        .args(["certs", "--node=a,b", "--relay=r1,r2"])
        .arg("--server-name=localhost,127.0.0.1")
        .arg("--dir")
        .arg(dir.join("certs"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
}

/// Writes Services with a hundred endpoints each, so that a thousand of them are a large table.
fn write_services(dir: &Path, count: usize) {
    let objects: Vec<Value> = (0..count).flat_map(one_service).collect();
    let list = json!({ "kind": "List", "items": objects }).to_string();
    replace(dir, "all.json", &list);
}

/// Renames a file of objects into place.
fn replace(dir: &Path, name: &str, content: &str) {
    let hidden = dir.join("objects").join(format!(".{name}"));
    fs::write(&hidden, content).unwrap();
    fs::rename(hidden, dir.join("objects").join(name)).unwrap();
}

fn one_service(number: usize) -> [Value; 2] {
    let name = format!("s{number}");
    let (high, low) = (number / 250, number % 250 + 1);
    let ips = [
        format!("10.96.{high}.{low}"),
        format!("fd00:10:96::{high:x}:{low:x}"),
    ];
    // Some endpoints of the first Service are on a node, so that the node has an overlay.
    let node = |host: u8| (number == 0 && host <= 10).then_some("a");
    let endpoint = |host: u8| {
        let address = format!("10.244.{}.{host}", number % 250);
        json!({ "addresses": [address], "nodeName": node(host) })
    };
    let endpoints: Vec<_> = (1..=100).map(endpoint).collect();
    [
        service(&name, [&ips[0], &ips[1]], json!({})),
        slice_of(&name, Family::V4, &endpoints),
    ]
}
