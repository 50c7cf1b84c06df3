//! What an answer costs inside our DnsService and in CoreDNS with its kubernetes plugin, which
//! serves the same gRPC service: the same objects, the same queries, the same client, in turns.

#![allow(clippy::print_stdout, reason = "figures are its product")]
#![forbid(unsafe_code)]

mod api;
mod load;
mod world;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use hickory_proto::op::{Message, ResponseCode};
use portolan_catalog::Kind;
use portolan_dns::grpc::serve_tcp;
use portolan_dns::{Server, SharedZone, Zone, ZoneConfig};
use portolan_e2e::figure::{Goal, figure};

use load::{Cost, Target};

/// Compares the cost of DNS answers with that of CoreDNS's kubernetes plugin.
#[derive(Debug, Parser)]
struct Args {
    /// How many Services there are.
    #[arg(long, default_value = "10000")]
    services: u32,

    /// How many queries a round has.
    #[arg(long, default_value = "50000")]
    queries: usize,

    /// How many rounds each server has; the middle one counts.
    #[arg(long, default_value = "3")]
    rounds: usize,

    /// The program CoreDNS.
    #[arg(long, env = "PORTOLAN_COREDNS")]
    coredns: PathBuf,

    /// Serve on this port instead: what `run` measures.
    #[arg(long, hide = true)]
    serve: Option<u16>,
}

/// A server that ends with us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match args.serve {
        Some(port) => serve(port, args.services).await,
        None => run(&args).await,
    }
}

fn zone(services: u32) -> Result<Zone> {
    let mut zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    for change in world::changes(services)? {
        zone.apply(change);
    }
    Ok(zone)
}

async fn serve(port: u16, services: u32) -> Result<()> {
    let zone = Arc::new(SharedZone::new(zone(services)?));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    serve_tcp(Server::new(zone), listener, std::future::pending()).await?;
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn run(args: &Args) -> Result<()> {
    changes_cost(args.services)?;
    let packets = Arc::new(world::queries(args.services)?);
    let (port, their_port) = (free_port()?, free_port()?);
    let ours = Command::new(std::env::current_exe()?)
        .args(["--serve", &port.to_string()])
        .args(["--services", &args.services.to_string()])
        .args(["--coredns", "-"])
        .stdin(Stdio::null())
        .spawn();
    let ours = Running(ours.context("start the server")?);
    let directory = tempfile::tempdir()?;
    let api = api::serve(args.services)?;
    let corefile = directory.path().join("Corefile");
    let block = format!(
        "grpc://.:{their_port} {{\n bind 127.0.0.1\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  \
         endpoint http://{api}\n }}\n}}\n"
    );
    std::fs::write(&corefile, block)?;
    let theirs = Command::new(&args.coredns)
        .arg("-conf")
        .arg(&corefile)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let theirs = Running(theirs.with_context(|| args.coredns.display().to_string())?);
    let mut ours = (Target::new(port, ours.0.id())?, ours);
    let mut theirs = (Target::new(their_port, theirs.0.id())?, theirs);
    for target in [&mut ours.0, &mut theirs.0] {
        ready(target, &packets[0]).await?;
    }
    compare(&mut ours.0, &mut theirs.0, &packets).await?;
    let (mut our_costs, mut their_costs) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        our_costs.push(ours.0.load(&packets, args.queries).await?);
        their_costs.push(theirs.0.load(&packets, args.queries).await?);
    }
    let (ours, theirs) = (middle(our_costs)?, middle(their_costs)?);
    report("ours", &ours);
    report("coredns", &theirs);
    let ratio = theirs.cpu.as_secs_f64() / ours.cpu.as_secs_f64();
    figure(
        "dns_cpu_ratio",
        ratio,
        "times less than CoreDNS",
        Some(Goal::AtLeast(1.0)),
    );
    Ok(())
}

/// Waits until a server has the first name.
async fn ready(target: &mut Target, packet: &[u8]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = target.ask(packet).await;
        let message = answer.ok().and_then(|bytes| Message::from_vec(&bytes).ok());
        if message.is_some_and(|message| !message.answers.is_empty()) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "a server does not answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Both must do the same work, or there is nothing to compare.
async fn compare(ours: &mut Target, theirs: &mut Target, packets: &[Vec<u8>]) -> Result<()> {
    let (mut answers, mut missing) = (0, 0);
    for packet in packets.iter().take(2000) {
        let one = Message::from_vec(&ours.ask(packet).await?)?;
        let other = Message::from_vec(&theirs.ask(packet).await?)?;
        let same = one.metadata.response_code == other.metadata.response_code
            && one.answers.len() == other.answers.len();
        ensure!(same, "ours: {one}\ntheirs: {other}");
        answers += usize::from(!one.answers.is_empty());
        missing += usize::from(one.metadata.response_code == ResponseCode::NXDomain);
    }
    println!("2000 queries are answered alike: {answers} with records, {missing} NXDOMAIN");
    Ok(())
}

fn middle(mut costs: Vec<Cost>) -> Result<Cost> {
    costs.sort_by_key(|cost| cost.cpu);
    let middle = costs.len() / 2;
    costs.into_iter().nth(middle).context("no rounds")
}

fn report(who: &str, cost: &Cost) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |percent: usize| {
        let index = (cost.waits.len() * percent / 100).min(cost.waits.len().saturating_sub(1));
        cost.waits.get(index).copied().unwrap_or_default()
    };
    figure(
        &format!("dns_{who}_cpu_per_answer"),
        micros(cost.cpu),
        "us",
        None,
    );
    figure(&format!("dns_{who}_wait_p50"), micros(at(50)), "us", None);
    figure(&format!("dns_{who}_wait_p99"), micros(at(99)), "us", None);
}

/// One endpoint changes: what that costs with all Services and with a tenth of them.
fn changes_cost(services: u32) -> Result<()> {
    let mut costs = Vec::new();
    for count in [services / 10, services] {
        let mut zone = zone(count)?;
        let mut changes = Vec::new();
        for round in 1..=2000 {
            let number = (round * 7919) % count;
            // Not an ExternalName Service.
            let number = number - number % 10;
            changes.push(world::change(
                Kind::EndpointSlice,
                &world::slice(number, 8 + round % 8),
            )?);
        }
        let total = u32::try_from(changes.len())?;
        let begin = Instant::now();
        let mut subjects = 0;
        for change in changes {
            subjects += zone.apply(change).subjects.len();
        }
        let cost = begin.elapsed() / total;
        let name = format!("dns_endpoint_change_{count}_services");
        figure(&name, cost.as_secs_f64() * 1e6, "us", None);
        ensure!(
            subjects <= 3 * changes_len(total),
            "more than O(1) records changed"
        );
        costs.push(cost.as_secs_f64());
    }
    if let [small, large] = costs[..] {
        figure(
            "dns_endpoint_change_growth",
            large / small,
            "times",
            Some(Goal::AtMost(2.0)),
        );
    }
    Ok(())
}

fn changes_len(total: u32) -> usize {
    usize::try_from(total).unwrap_or(usize::MAX)
}
