// SPDX-License-Identifier: Apache-2.0

//! The cost of a DNS answer in Portolan's DnsService and in CoreDNS with its kubernetes plugin,
//! which serves the same gRPC service. Both have the same objects, and the same client sends them
//! the same queries in turns.

#![allow(clippy::print_stdout, reason = "figures are its product")]
#![forbid(unsafe_code)]

mod api;
mod load;
mod world;

use std::collections::BTreeSet;
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
use portolan_dns::{NamesChange, Server, ServiceKey, SharedZone, Subject, Zone, ZoneConfig};
use portolan_e2e::figure::{Goal, figure};

use load::{Cost, Target};

/// Compares the cost of DNS answers with that of CoreDNS's kubernetes plugin.
#[derive(Debug, Parser)]
struct Args {
    /// Number of Services.
    #[arg(long, default_value = "10000")]
    services: u32,

    /// Number of queries in a round.
    #[arg(long, default_value = "50000")]
    queries: usize,

    /// Number of rounds for each server; the median counts.
    #[arg(long, default_value = "3")]
    rounds: usize,

    /// Path of CoreDNS.
    #[arg(long, env = "PORTOLAN_COREDNS")]
    coredns: PathBuf,

    /// Serve on this port instead; a run starts its own server so.
    #[arg(long, hide = true)]
    serve: Option<u16>,
}

/// A server process, killed on drop.
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

/// Waits until a server answers the first name with records.
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

/// Checks that both servers give the same results, as a comparison of cost is meaningless
/// otherwise.
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

/// Measures the cost of a change of one endpoint, with all Services and with a tenth of them, and
/// the number of names whose records change.
fn changes_cost(services: u32) -> Result<()> {
    let mut costs = Vec::new();
    for count in [services / 10, services] {
        let mut zone = zone(count)?;
        // One uncounted round first: the figure is the cost of the work, not of loading the zone
        // into the processor's cache.
        time_of_changes(&mut zone, count, 0)?;
        let cost = time_of_changes(&mut zone, count, ROUNDS)? / ROUNDS;
        let name = format!("dns_endpoint_change_{count}_services");
        figure(&name, cost.as_secs_f64() * 1e6, "us", None);
        costs.push(cost.as_secs_f64());
        // The Service's name, its port's, and the endpoint's old and new ones, with the addresses.
        let goal = Goal::AtMost(6.0);
        let name = format!("dns_endpoint_change_names_{count}_services");
        figure(&name, names_changed(&mut zone, count)?, "names", Some(goal));
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

/// The number of measured changes.
const ROUNDS: u32 = 2000;

/// The number of Services that change, spread evenly over all.
const CHANGING: u32 = 100;

fn time_of_changes(zone: &mut Zone, services: u32, first: u32) -> Result<Duration> {
    let rounds = first + 1..=first + ROUNDS;
    let changes = rounds.map(|round| moved(round, services, 0));
    let changes = changes.collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    for change in changes {
        zone.apply(change);
    }
    Ok(begin.elapsed())
}

/// The change that gives one endpoint of a Service another address, a different one in each round.
/// `last` is the last digit of the Service's number: 0 for one with cluster IPs, 3 for a headless
/// one.
fn moved(round: u32, services: u32, last: u32) -> Result<NamesChange> {
    let number = (round % CHANGING) * (services / CHANGING);
    let number = number - number % 10 + last;
    let moved = 8 + (round / CHANGING) % 8;
    world::change(Kind::EndpointSlice, &world::slice(number, moved))
}

/// The number of names, those of addresses included, whose records one such change replaces: the
/// maximum over many changes.
fn names_changed(zone: &mut Zone, services: u32) -> Result<f64> {
    let mut most = 0;
    for round in 2 * ROUNDS + 1..=3 * ROUNDS {
        let change = moved(round, services, if round % 2 == 0 { 0 } else { 3 })?;
        let NamesChange::Slice(slice) = &change else {
            anyhow::bail!("a slice makes no such change");
        };
        let key = ServiceKey::new(&slice.key.namespace, &slice.service);
        let before = zone.service(&key).map(|records| records.names.clone());
        let applied = zone.apply(change);
        let after = zone.service(&key).map(|records| records.names.clone());
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let different = names
            .iter()
            .filter(|name| before.get(**name) != after.get(**name));
        let is_address = |subject: &&Subject| matches!(subject, Subject::Address(_));
        let addresses = applied.subjects.iter().filter(is_address);
        most = most.max(different.count() + addresses.count());
    }
    Ok(f64::from(u32::try_from(most)?))
}
