// SPDX-License-Identifier: Apache-2.0

//! The driver: starts the server and agent processes, sends them orders and prints the figures.

mod child;
mod delta;
mod figures;
mod kubernetes;
mod overload;
mod reconnect;
mod relay;
mod snapshot;
mod verify;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use portolan_tls::issue::Authority;
use tempfile::TempDir;

use crate::client::VALID;
use crate::server::Kind;
use crate::usage::pin;
use crate::words::{Connect, Connected, Speak, Told};
use crate::world::{Size, World};
use child::{Child, Client, Server};
use figures::remark;
pub(crate) use relay::{RelayArgs, run as run_relay};

/// Options of a run. A run with the defaults takes some minutes on two processors.
#[derive(Debug, Args)]
pub(crate) struct DriverArgs {
    #[command(flatten)]
    size: Size,
    /// The processor of the server; agents and driver run on the next one
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Phases to measure; all by default
    #[arg(long, value_enum)]
    only: Vec<Phase>,
    /// Number of agents in the measurements with few
    #[arg(long, default_value_t = 1_000)]
    few: u32,
    /// Number of agents in the measurements with many; fewer than nodes
    #[arg(long, default_value_t = 5_000)]
    many: u32,
    /// Number of agents of the naive server, whose cost per agent is high
    #[arg(long, default_value_t = 100)]
    naive: u32,
    /// Single changes measured with few agents
    #[arg(long, default_value_t = 300)]
    changes_few: u32,
    /// Single changes measured with many agents
    #[arg(long, default_value_t = 150)]
    changes_many: u32,
    /// Changes per second under load
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Duration of the load, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Duration of the load of the server with a queue per agent, in seconds; its delay grows
    /// throughout
    #[arg(long, default_value_t = 10)]
    queue_seconds: u32,
    /// Numbers of changed Services at which reconnection is measured
    #[arg(long, value_delimiter = ',', default_values_t = [0, 100, 1_000, 5_000, 10_000])]
    sweep: Vec<u32>,
    /// The program that prints the size of the Kubernetes objects
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/kubernetes-bytes"))]
    kubernetes_bytes: PathBuf,
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Phase {
    /// The cost of a whole table.
    Snapshot,
    /// The cost of one change.
    Delta,
    /// A rate of changes too high for each to be delivered on its own.
    Overload,
    /// Reconnection of all agents at once.
    Reconnect,
    /// The cost with mutual TLS.
    Tls,
}

impl Phase {
    const ALL: [Self; 5] = [
        Self::Snapshot,
        Self::Delta,
        Self::Overload,
        Self::Reconnect,
        Self::Tls,
    ];
}

/// Measures, and prints the figures.
pub(crate) fn run(args: &DriverArgs) -> Result<()> {
    ensure!(
        args.many < args.size.nodes,
        "--many: one node is the whole agent's"
    );
    ensure!(args.few <= args.many, "--few: more than --many");
    let dir = tempfile::tempdir()?;
    make_certificates(dir.path())?;
    pin(args.cpu + 1)?;
    let bench = Bench {
        args,
        world: World::new(args.size)?,
        dir,
    };
    let Size {
        services,
        endpoints,
        nodes,
    } = args.size;
    remark(&format!(
        "{services} Services of {endpoints} endpoints, {nodes} nodes; server on processor {}, \
         agents and driver on {}",
        args.cpu,
        args.cpu + 1
    ));
    for phase in Phase::ALL {
        if !args.only.is_empty() && !args.only.contains(&phase) {
            continue;
        }
        let begun = std::time::Instant::now();
        match phase {
            Phase::Snapshot => snapshot::run(&bench)?,
            Phase::Delta => delta::run(&bench)?,
            Phase::Overload => overload::run(&bench)?,
            Phase::Reconnect => reconnect::run(&bench)?,
            Phase::Tls => snapshot::run_tls(&bench)?,
        }
        remark(&format!(
            "{phase:?}: {:.0} s",
            begun.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

/// Shared state of all phases.
struct Bench<'a> {
    args: &'a DriverArgs,
    /// The initial cluster of every server.
    world: World,
    /// The directory of the certificates.
    dir: TempDir,
}

/// A server process and its address.
struct Running {
    server: Server,
    port: u16,
    speak: Speak,
}

/// The cost to the server of accepting agents.
#[derive(Debug, Clone, Copy)]
struct Intake {
    /// Processor time per agent, in microseconds.
    cpu_us: f64,
    /// Bytes per agent, from and to the server.
    down: f64,
    up: f64,
    /// Growth of the server's resident memory per agent, in KiB.
    kib: f64,
    /// The totals of all agents, as the client reports them.
    connected: Connected,
}

impl<'a> Bench<'a> {
    fn new(args: &'a DriverArgs) -> Result<Self> {
        Ok(Self {
            args,
            world: World::new(args.size)?,
            dir: tempfile::tempdir()?,
        })
    }
}

impl Bench<'_> {
    fn serve(&self, kind: Kind, more: &[String]) -> Result<Running> {
        self.serve_on(0, kind, more)
    }

    /// A server whose cluster is as small as can be.
    fn serve_small(&self) -> Result<Running> {
        let small = Size {
            services: 1,
            endpoints: 1,
            nodes: 2,
        };
        self.serve_sized(0, Kind::Ours, small, &[])
    }

    /// A server on one of two processors: that of the flags for an even number, the next one for an odd one.
    fn serve_on(&self, number: u32, kind: Kind, more: &[String]) -> Result<Running> {
        self.serve_sized(number, kind, self.args.size, more)
    }

    fn serve_sized(&self, number: u32, kind: Kind, size: Size, more: &[String]) -> Result<Running> {
        let mut arguments = vec![
            "serve".to_owned(),
            format!("--cpu={}", self.cpu(number)),
            format!("--kind={}", kind.name()),
        ];
        arguments.extend(size_arguments(size));
        arguments.extend_from_slice(more);
        let mut server: Server = Child::start(&arguments)?;
        let Told::Ready { port } = server.answer()? else {
            anyhow::bail!("the server is not ready");
        };
        Ok(Running {
            server,
            port,
            speak: Speak::Plain,
        })
    }

    fn serve_tls(&self) -> Result<Running> {
        let running = self.serve(Kind::Ours, &[self.tls_dir()])?;
        Ok(Running {
            speak: Speak::Tls,
            ..running
        })
    }

    fn serve_bare(&self, bytes: u32) -> Result<Running> {
        let running = self.serve(Kind::Bare, &[format!("--bare-bytes={bytes}")])?;
        Ok(Running {
            speak: Speak::Bare(bytes),
            ..running
        })
    }

    fn cpu(&self, number: u32) -> usize {
        self.args.cpu + (number % 2) as usize
    }

    fn agents(&self) -> Result<Client> {
        self.agents_on(1)
    }

    /// Agents on one of two processors, as servers.
    fn agents_on(&self, number: u32) -> Result<Client> {
        let mut arguments = vec![
            "agents".to_owned(),
            format!("--cpu={}", self.cpu(number)),
            self.tls_dir(),
        ];
        arguments.extend(size_arguments(self.args.size));
        Child::start(&arguments)
    }

    fn tls_dir(&self) -> String {
        format!("--tls-dir={}", self.dir.path().display())
    }
}

impl Running {
    /// Connects `agents` agents without a table.
    fn fresh(&self, agents: u32) -> Connect {
        Connect {
            port: self.port,
            agents,
            speak: self.speak,
            resume: false,
            acks: false,
        }
    }

    /// Connects agents, and returns the cost to the server.
    fn take_in(&mut self, client: &mut Client, how: Connect) -> Result<Intake> {
        let agents = f64::from(how.agents);
        let before = self.server.usage()?;
        let connected = client.connect(how, &mut self.server)?;
        let after = self.server.usage()?;
        Ok(Intake {
            cpu_us: (after.cpu_ns - before.cpu_ns) as f64 / 1e3 / agents,
            down: connected.received as f64 / agents,
            up: connected.sent as f64 / agents,
            kib: (after.resident as f64 - before.resident as f64) / 1024.0 / agents,
            connected,
        })
    }
}

fn size_arguments(size: Size) -> [String; 3] {
    let Size {
        services,
        endpoints,
        nodes,
    } = size;
    [
        format!("--services={services}"),
        format!("--endpoints={endpoints}"),
        format!("--nodes={nodes}"),
    ]
}

/// Writes an authority, which also signs agents' certificates, and a server's certificate.
fn make_certificates(dir: &Path) -> Result<()> {
    let now = SystemTime::now();
    let valid = now - VALID..now + VALID;
    let (authority, own) = Authority::create("bench", valid.clone())?;
    let server = authority.server(&["localhost"], valid)?;
    for (name, content) in [
        ("ca.crt", own.cert),
        ("ca.key", own.key),
        ("tls.crt", server.cert),
        ("tls.key", server.key),
    ] {
        std::fs::write(dir.join(name), content)?;
    }
    Ok(())
}
