// SPDX-License-Identifier: Apache-2.0

//! Forwarding continues while a machine is in trouble, and the programs recover by themselves: a
//! full or read-only disk, no free descriptors, stopped processes, a clock that jumps.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::rig::{Load, LoadConfig, Namespace, Process, Protocol};
use portolan_e2e::saved_table::saved_table;
use portolan_e2e::wait::wait_for;
use rustix::process::Signal;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// Longer than the agent's periods of checking the kernel and draining real servers.
const LOOKS: Duration = Duration::from_secs(7);

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

/// Runs a program that must succeed.
fn run(command: &[&str]) {
    let (program, args) = command.split_first().unwrap();
    let status = std::process::Command::new(program).args(args).status();
    assert!(status.unwrap().success(), "{command:?}");
}

/// A Service of two pods on the first node, under load.
struct Loaded {
    cluster: Cluster,
    pods: [EchoPod; 2],
    /// The number of pods with which the Service was last published.
    published: Cell<usize>,
    load: Option<Load>,
    visitor: EchoPod,
}

impl Loaded {
    fn start(cluster: Cluster) -> Self {
        let pods = ["a", "b"].map(|name| cluster.add_pod(0, name).unwrap());
        let visitor = cluster.add_pod(0, "v").unwrap();
        let mut this = Self {
            cluster,
            pods,
            published: Cell::new(0),
            load: None,
            visitor,
        };
        this.publish(2);
        let config = LoadConfig {
            timeout: Duration::from_secs(10),
            pause: Duration::from_millis(20),
            ..LoadConfig::default()
        };
        let vips = WEB.map(|ip| SocketAddr::new(ip.parse().unwrap(), 80));
        this.load = Some(Load::start(&this.visitor.pod, &vips, config).unwrap());
        this.goes_on();
        this
    }

    /// The Service with its last `count` pods.
    fn objects(&self, count: usize) -> Vec<serde_json::Value> {
        let pods = self.pods[2 - count..].iter().map(|pod| (pod, 0));
        let pods: Vec<_> = pods.collect();
        [vec![service("web", WEB, json!({}))], slices("web", &pods)].concat()
    }

    /// Publishes the Service with its last `count` pods, and waits until all nodes have it.
    fn publish(&self, count: usize) {
        if self.published.replace(count) != count {
            self.cluster.put("web.json", &self.objects(count)).unwrap();
        }
        self.is_spread_over(count);
    }

    /// As [`Self::publish`], without waiting.
    fn write(&self, count: usize) {
        self.published.set(count);
        let list = json!({ "kind": "List", "items": self.objects(count) });
        self.cluster.write("web.json", &list.to_string()).unwrap();
    }

    /// Asserts that new connections reach the last `count` pods, and no other.
    fn is_spread_over(&self, count: usize) {
        let vip = SocketAddr::new(WEB[0].parse().unwrap(), 80);
        let names = || {
            let ask = |_| {
                let connection = self.visitor.pod.connect(Protocol::Tcp, vip, PATIENT);
                connection.unwrap().ask().unwrap().name
            };
            (0..12).map(ask).collect::<BTreeSet<String>>()
        };
        let wanted: BTreeSet<_> = ["a", "b"][2 - count..]
            .iter()
            .map(ToString::to_string)
            .collect();
        wait_for("the endpoints", PATIENT, || {
            (names() == wanted).then_some(())
        })
        .unwrap();
    }

    fn load(&self) -> &Load {
        self.load.as_ref().unwrap()
    }

    /// Waits for twenty more answers to the load.
    fn goes_on(&self) {
        let before = self.load().answered();
        wait_for("more answers", PATIENT, || {
            (self.load().answered() > before + 20).then_some(())
        })
        .unwrap();
        assert_eq!(self.load().failed(), 0);
    }

    fn restart_agent(&mut self) {
        self.cluster.agent(0).unwrap().kill9().unwrap();
        self.cluster.start_agent(0).unwrap();
        self.cluster.wait_until_ready(0).unwrap();
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.cluster.agent_metrics(0).unwrap();
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }

    /// Ends the load, and asserts that no request failed.
    fn end(mut self, what: &str) {
        self.goes_on();
        let report = self.load.take().unwrap().stop();
        println!(
            "{what}: {} requests, {} failed, slowest {}",
            report.requests,
            report.failures.len(),
            report.slowest
        );
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
}

/// A mount, undone on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(directory: &Path, options: &[&str]) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        run(&[&["mount"], options, &[directory.to_str().unwrap()]].concat());
        Self(directory.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["-l".as_ref(), self.0.as_os_str()])
            .status();
    }
}

/// Fills the free space of a file system.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
    path
}

/// Returns `true` if an address is among a table's destinations.
fn holds(table: &[u8], address: Ipv6Addr) -> bool {
    table.windows(16).any(|bytes| bytes == address.octets())
}

#[test]
fn a_full_disk_only_prevents_writes_of_state() {
    if skip("a_full_disk_only_prevents_writes_of_state") {
        return;
    }
    let mut loaded = Loaded::start(Cluster::new().unwrap());
    loaded.cluster.agent(0).unwrap().kill9().unwrap();
    let directory = loaded.cluster.directory().join("node1");
    let _mounted = Mounted::new(&directory, &["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
    loaded.cluster.start_agent(0).unwrap();
    loaded.cluster.wait_until_ready(0).unwrap();
    let has_saved = |loaded: &Loaded, count: usize| {
        loaded.publish(count);
        let first = loaded.pods[0].pod.v6();
        wait_for("the table on disk", PATIENT, || {
            let table = saved_table(&directory)?;
            (holds(&table, first) == (count == 2)).then_some(())
        })
        .unwrap();
    };
    has_saved(&loaded, 2);
    has_saved(&loaded, 1);
    let good = std::fs::read(directory.join("table")).unwrap();

    let filler = fill(&directory);
    loaded.publish(2);
    let failures = || loaded.metric("portolan_agent_table_write_failures_total");
    wait_for("a write that fails", PATIENT, || {
        (failures() > 0).then_some(())
    })
    .unwrap();
    assert_eq!(std::fs::read(directory.join("table")).unwrap(), good);
    loaded.restart_agent();
    loaded.publish(1);
    loaded.goes_on();

    std::fs::remove_file(filler).unwrap();
    has_saved(&loaded, 2);
    // The table on the disk is complete.
    loaded.cluster.controller().unwrap().kill9().unwrap();
    loaded.restart_agent();
    loaded.is_spread_over(2);
    loaded.end("full disk");
}

#[test]
fn a_read_only_state_directory_only_prevents_writes_of_state() {
    if skip("a_read_only_state_directory_only_prevents_writes_of_state") {
        return;
    }
    let mut loaded = Loaded::start(Cluster::new().unwrap());
    let directory = loaded.cluster.directory().join("node1");
    let path = directory.to_str().unwrap().to_owned();
    {
        let _mounted = Mounted::new(&directory, &["--bind", &path]);
        run(&["mount", "-o", "remount,ro,bind", &path]);
        assert!(std::fs::write(directory.join("x"), "").is_err());
        loaded.publish(1);
        for count in [2, 1] {
            loaded.restart_agent();
            loaded.publish(count);
            loaded.goes_on();
        }
    }
    // A directory that was always empty.
    let _mounted = Mounted::new(&directory, &["-t", "tmpfs", "-o", "ro", "tmpfs"]);
    loaded.restart_agent();
    loaded.publish(2);
    loaded.end("read-only state directory");
}

/// Lets a process open this many descriptors.
fn limit(process: &Process, soft: u32) {
    let (pid, soft) = (process.id().to_string(), format!("--nofile={soft}:"));
    run(&["prlimit", "--pid", &pid, &soft]);
}

/// Limits a process to its open descriptors, until it no longer answers at a port.
fn exhaust(process: &Process, namespace: &Namespace, port: u16) {
    let descriptors = format!("/proc/{}/fd", process.id());
    wait_for("descriptors to run out", PATIENT, || {
        let open = std::fs::read_dir(&descriptors).unwrap();
        let open = open.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // The lowest free descriptor is the limit: there may be gaps.
        let open: BTreeSet<u32> = open.map(|fd| fd.parse().unwrap()).collect();
        limit(process, (0..).find(|fd| !open.contains(fd)).unwrap());
        // Twice: a busy machine may answer later than in a second.
        let is_silent = (0..2).all(|_| !answers_at(namespace, port));
        is_silent.then_some(())
    })
    .unwrap();
}

/// Returns `true` if a port answers within a second.
fn answers_at(namespace: &Namespace, port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        stream.read(&mut [0; 64])
    };
    namespace.run(ask).unwrap().is_ok_and(|length| length > 0)
}

/// Processor time of a process so far.
fn cpu(process: &Process) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
    // User and system time in hundredths (`proc(5)`: fields 14 and 15).
    Duration::from_millis(10 * (ticks(12) + ticks(13)))
}

#[test]
fn an_agent_without_descriptors_keeps_programming_and_recovers() {
    if skip("an_agent_without_descriptors_keeps_programming_and_recovers") {
        return;
    }
    let mut loaded = Loaded::start(Cluster::new().unwrap());
    // The agent raises its soft limit to the hard one.
    loaded.cluster.agent(0).unwrap().kill9().unwrap();
    let node = loaded.cluster.rig.node(0).namespace().clone();
    let low = |command: &mut std::process::Command| {
        let agent = command.get_program().to_owned();
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut limited = std::process::Command::new("prlimit");
        limited.arg("--nofile=64:4096").arg(agent).args(args);
        *command = limited;
    };
    loaded.cluster.start_agent_by(0, low).unwrap();
    loaded.cluster.wait_until_ready(0).unwrap();
    let agent = loaded.cluster.agent(0).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = files.unwrap().split_whitespace().collect();
    assert_eq!(words[3..5], ["4096", "4096"], "{limits}");

    exhaust(agent, &node, 10249);
    let begun = (Instant::now(), cpu(agent));
    for count in [1, 2, 1] {
        loaded.write(count);
        loaded.is_spread_over(count);
        loaded.goes_on();
    }
    assert!(!answers_at(&node, 10249), "it has descriptors");
    let agent = loaded.cluster.agent(0).unwrap();
    let (took, used) = (begun.0.elapsed(), cpu(agent) - begun.1);
    println!("without descriptors for {took:?}: {used:?} of processor time");
    limit(agent, 1024);
    loaded.cluster.wait_until_ready(0).unwrap();
    loaded.publish(2);
    loaded.end("agent without descriptors");
}

#[test]
fn a_controller_without_descriptors_keeps_its_agents_and_tables() {
    if skip("a_controller_without_descriptors_keeps_its_agents_and_tables") {
        return;
    }
    let mut loaded = Loaded::start(Cluster::new().unwrap());
    let sessions = |loaded: &Loaded| {
        let metrics = loaded.cluster.controller_metrics().unwrap();
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("portolan_controller_sessions_total "));
        line.unwrap().to_owned()
    };
    let before = sessions(&loaded);
    let control = loaded.cluster.control().namespace().clone();
    let controller = loaded.cluster.controller().unwrap();
    exhaust(controller, &control, 9444);
    let begun = (Instant::now(), cpu(controller));
    // The new file cannot be read. The controller must not take it for deleted.
    loaded.write(1);
    for _ in 0..5 {
        loaded.goes_on();
        loaded.is_spread_over(2);
    }
    assert!(!answers_at(&control, 9444), "it has descriptors");
    let controller = loaded.cluster.controller().unwrap();
    let (took, used) = (begun.0.elapsed(), cpu(controller) - begun.1);
    println!("without descriptors for {took:?}: {used:?} of processor time");
    limit(controller, 1024);
    loaded.is_spread_over(1);
    loaded.publish(2);
    assert_eq!(sessions(&loaded), before);
    loaded.end("controller without descriptors");
}

/// The time for which programs are stopped. `PORTOLAN_STOPPED_SECONDS` can make it longer than any
/// of their timeouts.
fn stopped() -> Duration {
    let seconds = std::env::var("PORTOLAN_STOPPED_SECONDS");
    Duration::from_secs(seconds.map_or(5, |seconds| seconds.parse().unwrap()))
}

#[test]
fn stopped_programs_resume_without_failed_requests() {
    if skip("stopped_programs_resume_without_failed_requests") {
        return;
    }
    let mut loaded = Loaded::start(Cluster::new().unwrap());
    for (agent, controller) in [(true, false), (false, true), (true, true)] {
        let signal = |loaded: &mut Loaded, signal| {
            if agent {
                loaded.cluster.agent(0).unwrap().signal(signal).unwrap();
            }
            if controller {
                loaded.cluster.controller().unwrap().signal(signal).unwrap();
            }
        };
        loaded.publish(2);
        signal(&mut loaded, Signal::STOP);
        loaded.write(1);
        let begun = Instant::now();
        while begun.elapsed() < stopped() {
            loaded.goes_on();
            loaded.is_spread_over(2);
        }
        signal(&mut loaded, Signal::CONT);
        loaded.is_spread_over(1);
        loaded.cluster.wait_until_programmed(0).unwrap();
        loaded.goes_on();
    }
    loaded.end("stopped programs");
}

/// Sets the clock, and restores it on drop.
struct Clock {
    started: (SystemTime, Instant),
}

impl Clock {
    fn jump(&self, days: i64) {
        let now = self.started.0 + self.started.1.elapsed();
        let now = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let then = now.checked_add_signed(days * 86_400).unwrap();
        run(&["date", "-s", &format!("@{then}")]);
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.jump(0);
    }
}

#[test]
fn a_clock_that_jumps_by_a_day_changes_nothing() {
    let name = "a_clock_that_jumps_by_a_day_changes_nothing";
    // The clock of a real machine is not changed.
    if skip(name) || !["uml", "debian"].contains(&lane::lane().as_str()) {
        return;
    }
    let mut loaded = Loaded::start(Cluster::with_certificates().unwrap());
    let clock = Clock {
        started: (SystemTime::now(), Instant::now()),
    };
    let vip = SocketAddr::new(WEB[0].parse().unwrap(), 80);
    // A day into the future, two days back, and back to the right time.
    for days in [1, -1, 0] {
        loaded.publish(2);
        let connect = |_| loaded.visitor.pod.connect(Protocol::Tcp, vip, PATIENT);
        let mut kept: Vec<_> = (0..8).map(|n| connect(n).unwrap()).collect();
        clock.jump(days);
        let begun = Instant::now();
        while begun.elapsed() < LOOKS {
            loaded.goes_on();
            kept.iter_mut().for_each(|one| drop(one.ask().unwrap()));
        }
        loaded.publish(1);
        http_get(loaded.cluster.rig.node(0).namespace(), 10256, "/livez").unwrap();
    }
    loaded.restart_agent();
    loaded.end("jumping clock");
}
