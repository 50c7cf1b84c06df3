//! What the product takes: from a decoded table to what is programmed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan_dataplane::{Dataplane as _, Kernel, KernelConfig};
use portolan_model::{Destination, NodeTable};
use portolan_netlink::ipset::Ipset;
use portolan_netlink::ipvs::Ipvs;
use portolan_plan::Config;
use portolan_reconcile::Reconciler;

use crate::load::Load;
use crate::{milliseconds, say};

/// How many services get an endpoint, one after the other.
const ADDITIONS: u32 = 50;
/// How many services get other endpoints at once.
const REPLACED: u32 = 1_000;

type Product = Reconciler<Kernel>;

pub(crate) fn run(load: Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(load))
}

async fn open() -> Result<Product> {
    let record = std::env::temp_dir().join(format!("bench-rules-{}.json", std::process::id()));
    let config = KernelConfig {
        rules_record: Some(record),
        ..KernelConfig::default()
    };
    let mut kernel = Kernel::open(config).await?;
    kernel.prepare().await?;
    Ok(Reconciler::new(kernel, Config::default()))
}

async fn reconcile(product: &mut Product, table: &Arc<NodeTable>) -> Result<usize> {
    let outcome = product.reconcile(table).await?;
    ensure!(outcome.errors.is_empty(), "{:?}", outcome.errors.first());
    Ok(outcome.objects)
}

async fn measure(load: Load) -> Result<()> {
    let table = Arc::new(load.table());
    let mut product = open().await?;
    let start = Instant::now();
    reconcile(&mut product, &table).await?;
    say("cold", milliseconds(start));
    say("rss_peak", memory("VmHWM:")?);
    say("rss", memory("VmRSS:")?);
    additions(&mut product, load, &table).await?;
    reconcile(&mut product, &table).await?;
    let mut product = restart(product, &table).await?;
    unchanged(&mut product, &table).await?;
    if load.services > REPLACED {
        churn(&mut product, &table).await?;
    }
    Ok(())
}

/// One endpoint more, in one service after the other.
async fn additions(product: &mut Product, load: Load, table: &Arc<NodeTable>) -> Result<()> {
    let mut table = Arc::clone(table);
    let mut times = Vec::new();
    for number in 0..ADDITIONS {
        let service = number * (load.services / ADDITIONS);
        let address = SocketAddr::new([172, 16, 0, u8::try_from(number)?].into(), 8080);
        table = Arc::new(Load::changed(&table, service, |record| {
            record.destinations.push(Destination::new(address));
        }));
        let start = Instant::now();
        let objects = reconcile(product, &table).await?;
        times.push(milliseconds(start) * 1e3);
        // As the agent does it, after it has told what is programmed.
        product.tidy();
        ensure!(objects == 1, "{objects} objects changed");
    }
    times.sort_by(f64::total_cmp);
    say("endpoint", times[times.len() / 2]);
    Ok(())
}

/// Another process of the product begins where this one has ended.
async fn restart(product: Product, table: &Arc<NodeTable>) -> Result<Product> {
    drop(product);
    let mut product = open().await?;
    let start = Instant::now();
    let objects = reconcile(&mut product, table).await?;
    say("restart", milliseconds(start));
    say("restart_messages", objects as f64);
    let mut kernel = product.into_dataplane();
    let start = Instant::now();
    kernel.observe().await?;
    say("read", milliseconds(start));
    let (mut ipvs, mut ipset) = (Ipvs::open()?, Ipset::open()?);
    let start = Instant::now();
    ipvs.dump()?;
    say("read_ipvs", milliseconds(start));
    ipset.list()?;
    say("read_fastest", milliseconds(start));
    let mut product = Reconciler::new(kernel, Config::default());
    reconcile(&mut product, table).await?;
    Ok(product)
}

/// A look at whether anything has changed.
async fn unchanged(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    let before = cpu()?;
    product.forget();
    ensure!(reconcile(product, table).await? == 0, "something changed");
    say("unchanged_cpu", cpu()? - before);
    Ok(())
}

/// All endpoints of many services are replaced three times.
async fn churn(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    let mut next = NodeTable::clone(table);
    for round in 1u8..=3 {
        let records = next.records.values_mut().take(REPLACED as usize);
        for record in records {
            for destination in &mut Arc::make_mut(record).destinations {
                let std::net::IpAddr::V4(address) = destination.address.ip() else {
                    continue;
                };
                let [_, b, c, d] = address.octets();
                let address = [20 + round, b, c, d];
                destination.address = SocketAddr::new(address.into(), 8080);
            }
        }
        let changed = Arc::new(next.clone());
        product.tidy();
        let start = Instant::now();
        reconcile(product, &changed).await?;
        product.finish_drains(|_| false).await?;
        say(&format!("churn_{round}"), milliseconds(start));
    }
    Ok(())
}

/// A line of what the kernel says of this process's memory, in MiB.
fn memory(line: &str) -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|found| found.strip_prefix(line));
    let kilobytes = found
        .context("no such line")?
        .trim()
        .trim_end_matches(" kB");
    Ok(kilobytes.parse::<f64>()? / 1024.0)
}

/// The CPU time of this process and of the children that it has waited for, in milliseconds.
fn cpu() -> Result<f64> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6)
}
