// SPDX-License-Identifier: Apache-2.0

//! A machine that runs one of the programs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Host, Process};
use portolan_e2e::wait::wait_for;
use portolan_model::Family;
use portolan_netlink::ipvs::Ipvs;
use rustix::process::Signal;

use crate::setup::{self, Load};

/// Name of the machine.
pub(crate) const NODE: &str = "node1";
const ADMIN: &str = "127.0.0.1:10249";

/// A program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Portolan,
    Keepalived,
}

impl Program {
    /// In the order in which they run: of a pair of measurements ours is second.
    pub(crate) const ALL: [Self; 2] = [Self::Keepalived, Self::Portolan];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portolan => "director",
            Self::Keepalived => "keepalived",
        }
    }
}

/// A program on its machine, with files of its own.
#[derive(Debug)]
pub(crate) struct Director<'a> {
    program: Program,
    host: &'a Host,
    directory: tempfile::TempDir,
    ipvs: Ipvs,
    process: Option<Process>,
}

impl<'a> Director<'a> {
    pub(crate) fn new(program: Program, host: &'a Host) -> Result<Self> {
        Ok(Self {
            program,
            host,
            directory: tempfile::tempdir()?,
            ipvs: host.namespace().run(Ipvs::open)??,
            process: None,
        })
    }

    /// The file's content of this `keepalived.conf`, for the program.
    pub(crate) fn text(&self, keepalived: String) -> Result<String> {
        match self.program {
            Program::Keepalived => Ok(keepalived),
            Program::Portolan => setup::imported(&keepalived, self.directory.path()),
        }
    }

    /// Puts the file into place, whole.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let new = self.directory.path().join("new");
        std::fs::write(&new, text)?;
        Ok(std::fs::rename(new, self.file())?)
    }

    fn file(&self) -> std::path::PathBuf {
        let name = match self.program {
            Program::Portolan => "lb.yaml",
            Program::Keepalived => "keepalived.conf",
        };
        self.directory.path().join(name)
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let directory = self.directory.path();
        let mut command = match self.program {
            Program::Portolan => {
                let mut command = Command::new(program("portolan-agent")?);
                command
                    .args(["--source=file", "--name-prefix=LVS"])
                    .arg(format!("--node-name={NODE}"))
                    .arg("--file")
                    .arg(self.file())
                    .arg("--state-dir")
                    .arg(directory.join("state"))
                    .arg(format!("--admin-listen={ADMIN}"))
                    .arg("--healthz-listen=")
                    .arg(format!(
                        "--debug-listen=unix://{}",
                        directory.join("agent.sock").display()
                    ));
                command
            }
            Program::Keepalived => {
                let path = std::env::var_os("PORTOLAN_KEEPALIVED");
                let mut command = Command::new(path.context("PORTOLAN_KEEPALIVED is not set")?);
                // Checks alone; no log, which would cost it.
                command
                    .args(["--dont-fork", "--no-syslog", "--check"])
                    .arg("--use-file")
                    .arg(self.file())
                    .arg("--pid")
                    .arg(directory.join("pid"))
                    .arg("--checkers_pid")
                    .arg(self.checker());
                if let Some(libraries) = std::env::var_os("PORTOLAN_KEEPALIVED_LIBRARIES") {
                    command.env("LD_LIBRARY_PATH", libraries);
                }
                command
            }
        };
        let namespace = self.host.namespace();
        let process = Process::spawn(namespace, self.program.name(), &mut command, directory)?;
        self.process = Some(process);
        Ok(())
    }

    /// Has the running program read its file.
    pub(crate) fn reload(&self) -> Result<()> {
        self.running()?.signal(Signal::HUP)
    }

    fn running(&self) -> Result<&Process> {
        self.process.as_ref().context("not started")
    }

    fn checker(&self) -> std::path::PathBuf {
        self.directory.path().join("checkers_pid")
    }

    /// The processes of the program.
    fn processes(&self) -> Result<Vec<u32>> {
        let mut all = vec![self.running()?.id()];
        if self.program == Program::Keepalived {
            all.push(std::fs::read_to_string(self.checker())?.trim().parse()?);
        }
        Ok(all)
    }

    /// Resident memory of the program, in MiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        let mut kilobytes = 0.0;
        for process in self.processes()? {
            let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
            let found = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let number = found.and_then(|found| found.trim().strip_suffix(" kB"));
            kilobytes += number.context("no VmRSS")?.parse::<f64>()?;
        }
        Ok(kilobytes / 1024.0)
    }

    /// Waits until the kernel has all virtual and real servers, and returns the time since `start`.
    pub(crate) fn programmed(&mut self, load: Load, start: Instant) -> Result<Duration> {
        let expected = (u32::from(load.services), load.total());
        let ipvs = &self.ipvs;
        wait_for("all real servers", crate::PATIENCE, || {
            let mut found = (0, 0);
            let seen = ipvs.glance(|_, server| {
                found.0 += 1;
                found.1 += server.real_servers;
            });
            (seen.is_ok() && found == expected).then(|| start.elapsed())
        })
        .with_context(|| self.log())
    }

    /// The weight of a real server; none if it does not exist.
    pub(crate) fn weight(
        &mut self,
        service: &portolan_model::ipvs::VirtualServerKey,
        real: std::net::SocketAddr,
    ) -> Option<u32> {
        debug_assert_eq!(service.family(), Family::V4);
        let real_servers = self.ipvs.real_servers(service).ok()?;
        Some(real_servers.get(&real)?.weight)
    }

    /// The program's page of metrics.
    pub(crate) fn metrics(&self) -> Result<String> {
        let read = || -> Result<String> {
            let mut stream = TcpStream::connect(ADMIN)?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        self.host.namespace().run(read)?
    }

    /// Returns the last ten lines that the program has printed.
    pub(crate) fn log(&self) -> String {
        let log = self.process.as_ref().and_then(|process| process.log().ok());
        let log = log.unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Director<'_> {
    fn drop(&mut self) {
        // The checker of keepalived would go on without its parent.
        for process in self.processes().unwrap_or_default() {
            let pid = i32::try_from(process)
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}
