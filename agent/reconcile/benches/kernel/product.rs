// SPDX-License-Identifier: Apache-2.0

//! Time and memory of the agent, from a decoded table to a programmed kernel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan_dataplane::{Dataplane as _, Kernel, KernelConfig, ROUTE_MARK};
use portolan_model::{Destination, Family, NodeTable};
use portolan_netlink::ipset::Ipset;
use portolan_netlink::ipvs::Ipvs;
use portolan_netlink::route::LocalRoutes;
use portolan_plan::{Config, IncrementalDesired, Step, plan};
use portolan_reconcile::Reconciler;

use crate::load::Load;
use crate::{milliseconds, say};

/// The number of services that get an endpoint, one after the other.
const ADDITIONS: u32 = 50;
/// The number of glances at an unchanged kernel.
const GLANCES: u32 = 20;
/// The number of services whose endpoints are replaced at once.
const REPLACED: u32 = 1_000;

type Product = Reconciler<Kernel>;

/// Runs the work on a worker, with one heap for all threads, as the agent does: a blocking call hands over
/// the worker's other tasks.
pub(crate) fn on_worker(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    portolan_runtime::share_heap();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build()?;
    runtime.block_on(async { tokio::spawn(work).await? })
}

pub(crate) fn run(load: Load) -> Result<()> {
    on_worker(measure(load))
}

/// Measures the programming of a decoded table alone.
pub(crate) fn cold(load: Load) -> Result<()> {
    on_worker(async move {
        let table = Arc::new(load.table());
        let mut product = open().await?;
        program(&mut product, &table).await
    })
}

async fn program(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    let start = Instant::now();
    reconcile(product, table).await?;
    say("cold", milliseconds(start));
    Ok(())
}

/// Measures the phases of a cold start.
pub(crate) fn phases(load: Load) -> Result<()> {
    on_worker(async move {
        let (table, config) = (load.table(), Config::default());
        let mut kernel = open_kernel().await?;
        let start = Instant::now();
        let facts = kernel.facts().await?;
        let mut observed = kernel.observe().await?;
        say("read", milliseconds(start));
        let start = Instant::now();
        let kept = IncrementalDesired::new(&table, &facts, &config, &observed);
        say("desire", milliseconds(start));
        let start = Instant::now();
        let steps = plan(kept.desired(), &observed, &config);
        say("plan", milliseconds(start));
        for (name, of) in CLASSES {
            let steps: Vec<Step> = steps.iter().filter(|step| of(step)).cloned().collect();
            let start = Instant::now();
            let errors = kernel.apply(&steps).await;
            say(name, milliseconds(start));
            ensure!(errors.is_empty(), "{:?}", errors.first());
        }
        let start = Instant::now();
        steps.iter().for_each(|step| observed.advance(step));
        say("advance", milliseconds(start));
        Ok(())
    })
}

type Class = (&'static str, fn(&Step) -> bool);

/// The classes of steps, in an order in which they can be applied.
const CLASSES: [Class; 4] = [
    ("sets", |step| {
        matches!(step, Step::CreateSet { .. } | Step::AddEntries { .. })
    }),
    ("rules", |step| matches!(step, Step::WriteRules { .. })),
    ("routes", |step| matches!(step, Step::AddRoute { .. })),
    ("ipvs", |step| step.virtual_server().is_some()),
];

async fn open() -> Result<Product> {
    Ok(Reconciler::new(open_kernel().await?, Config::default()))
}

async fn open_kernel() -> Result<Kernel> {
    let record = std::env::temp_dir().join(format!("bench-rules-{}.json", std::process::id()));
    let config = KernelConfig {
        rules_record: Some(record),
        ..KernelConfig::default()
    };
    let mut kernel = Kernel::open(config).await?;
    kernel.prepare().await?;
    Ok(kernel)
}

async fn reconcile(product: &mut Product, table: &Arc<NodeTable>) -> Result<usize> {
    let outcome = product.reconcile(table).await?;
    ensure!(outcome.errors.is_empty(), "{:?}", outcome.errors.first());
    Ok(outcome.objects)
}

async fn measure(load: Load) -> Result<()> {
    let begin = Instant::now();
    let table = Arc::new(load.table());
    let mut product = open().await?;
    program(&mut product, &table).await?;
    say("start", milliseconds(begin));
    let start = Instant::now();
    product.settle().await?;
    say("settle", milliseconds(start));
    let ourselves = std::process::id();
    say("rss_peak", memory(ourselves, "VmHWM:")?);
    say("rss", memory(ourselves, "VmRSS:")?);
    additions(&mut product, load, &table).await?;
    reconcile(&mut product, &table).await?;
    let mut product = restart(product, &table).await?;
    unchanged(&mut product, &table).await?;
    if load.services > REPLACED {
        churn(&mut product, &table).await?;
        renew(&mut product, &table).await?;
    }
    Ok(())
}

/// Adds one endpoint to each of several services, one after the other.
async fn additions(product: &mut Product, load: Load, table: &Arc<NodeTable>) -> Result<()> {
    let mut table = Arc::clone(table);
    let (mut times, mut messages) = (Vec::new(), 0);
    for number in 0..ADDITIONS {
        let service = number * (load.services / ADDITIONS);
        let address = SocketAddr::new([172, 16, 0, u8::try_from(number)?].into(), 8080);
        table = Arc::new(Load::changed(&table, service, |record| {
            record.destinations.push(Destination::new(address));
        }));
        let before = product.dataplane().requests();
        let start = Instant::now();
        let objects = reconcile(product, &table).await?;
        times.push(milliseconds(start) * 1e3);
        messages = messages.max(product.dataplane().requests() - before);
        ensure!(objects == 1, "{objects} objects changed");
    }
    times.sort_by(f64::total_cmp);
    say("endpoint", times[times.len() / 2]);
    say("endpoint_messages", messages.into());
    Ok(())
}

/// Replaces the product by a new instance, which finds the kernel programmed.
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
    say("read_sets", milliseconds(start));
    let mut routes = LocalRoutes::open(ROUTE_MARK)?;
    let found = routes.read(Family::V4, |found: &mut u32, _| *found += 1)?;
    say("read_fastest", milliseconds(start));
    ensure!(found as usize == table.records.len(), "{found} routes");
    let mut product = Reconciler::new(kernel, Config::default());
    reconcile(&mut product, table).await?;
    Ok(product)
}

/// Measures the detection of changes where there are none: by a glance, and by a full read.
async fn unchanged(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    // The first glance after a change reads each object.
    let before = cpu()?;
    product.glance().await?;
    say("first_check_cpu", cpu()? - before);
    let before = cpu()?;
    for _ in 0..GLANCES {
        let found = product.glance().await?;
        ensure!(found.is_none(), "{found:?}");
    }
    say("check_cpu", (cpu()? - before) / f64::from(GLANCES));
    let before = cpu()?;
    product.forget();
    ensure!(reconcile(product, table).await? == 0, "something changed");
    say("compare_cpu", cpu()? - before);
    Ok(())
}

/// Replaces all endpoints of many services, three times.
async fn churn(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    let mut next = NodeTable::clone(table);
    for round in 1u8..=3 {
        let all = next.records.clone();
        for key in all.keys().take(REPLACED as usize) {
            for destination in &mut Arc::make_mut(&mut next.records[key]).destinations {
                let std::net::IpAddr::V4(address) = destination.address.ip() else {
                    continue;
                };
                let [_, b, c, d] = address.octets();
                let address = [20 + round, b, c, d];
                destination.address = SocketAddr::new(address.into(), 8080);
            }
        }
        let changed = Arc::new(next.clone());
        let start = Instant::now();
        reconcile(product, &changed).await?;
        product.finish_drains(|_| false).await?;
        say(&format!("churn_{round}"), milliseconds(start));
    }
    Ok(())
}

/// Replaces many services by as many others, three times.
async fn renew(product: &mut Product, table: &Arc<NodeTable>) -> Result<()> {
    let mut next = NodeTable::clone(table);
    for round in 1u8..=3 {
        let keys: Vec<_> = next
            .records
            .keys()
            .take(REPLACED as usize)
            .cloned()
            .collect();
        for mut key in keys {
            let Some(mut record) = next.records.remove(&key) else {
                continue;
            };
            let renewed = Arc::make_mut(&mut record);
            key.service = format!("zz-{round}-{}", key.service).into();
            renewed.key = key.clone();
            for frontend in &mut renewed.frontends {
                frontend.port += u16::from(round);
            }
            for destination in &mut renewed.destinations {
                destination.address.set_port(9_000 + u16::from(round));
            }
            next.records.insert(key, record);
        }
        let changed = Arc::new(next.clone());
        let start = Instant::now();
        reconcile(product, &changed).await?;
        product.finish_drains(|_| false).await?;
        say(&format!("renew_{round}"), milliseconds(start));
    }
    Ok(())
}

/// A line of the kernel's statistics of a process's memory, in MiB.
pub(crate) fn memory(process: u32, line: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
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
