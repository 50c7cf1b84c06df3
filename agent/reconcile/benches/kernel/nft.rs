// SPDX-License-Identifier: Apache-2.0

//! The nftables dataplane, from a decoded table to a programmed kernel; the same bytes by a bare loop; and a real
//! kube-proxy in nftables mode.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan_dataplane::{KernelConfig, NftablesKernel};
use portolan_model::{Destination, Family, NodeTable};
use portolan_netlink::nftables::{Nftables, Request, TableContent};
use portolan_nftables::{Surplus, TABLE, Ways, advance, desire, plan};
use portolan_plan::{Config, NodeFacts};
use portolan_reconcile::NftablesReconciler;

use crate::load::Load;
use crate::product::{memory, on_worker};
use crate::wire::Wire;
use crate::{kube_proxy, milliseconds, say};

/// The number of services that get an endpoint, one after the other.
const ADDITIONS: u32 = 50;
/// kube-proxy's map of addresses, which its first transaction fills.
const THEIR_MAP: (&str, &str) = ("kube-proxy", "service-ips");

/// Sends the transaction of a whole table, encoded before.
pub(crate) fn floor(load: Load) -> Result<()> {
    on_worker(async move {
        let mut kernel = NftablesKernel::open(KernelConfig::default())?;
        let facts = kernel.facts().await?;
        let requests = requests(&load.table(), &facts, None);
        let bytes = Nftables::open()?.encode(Family::V4, TABLE, &requests)?;
        say("mebibytes", bytes.len() as f64 / f64::from(1 << 20));
        let mut wire = Wire::netfilter()?;
        let start = Instant::now();
        wire.transaction(&bytes)?;
        say("cold", milliseconds(start));
        Ok(())
    })
}

/// Measures the programming of a decoded table alone.
pub(crate) fn cold(load: Load) -> Result<()> {
    on_worker(async move {
        let table = Arc::new(load.table());
        let mut product = open()?;
        let start = Instant::now();
        reconcile(&mut product, &table).await?;
        say("cold", milliseconds(start));
        Ok(())
    })
}

/// Measures start, memory and single endpoints.
pub(crate) fn run(load: Load) -> Result<()> {
    on_worker(async move {
        let begin = Instant::now();
        let table = Arc::new(load.table());
        let mut product = open()?;
        reconcile(&mut product, &table).await?;
        say("start", milliseconds(begin));
        product.settle()?;
        say("rss", memory(std::process::id(), "VmRSS:")?);
        let table = additions(&mut product, load, &table).await?;
        kernel_time(load, &table).await
    })
}

/// Runs a real kube-proxy.
pub(crate) fn kube_proxy(load: Load) -> Result<()> {
    let (table, map) = THEIR_MAP;
    let mut nftables = Nftables::open()?;
    kube_proxy::measure(load, "nftables", move || {
        let elements = nftables.elements(Family::V4, table, map);
        elements.is_ok_and(|elements| elements.len() == load.services as usize)
    })
}

fn open() -> Result<NftablesReconciler> {
    let kernel = NftablesKernel::open(KernelConfig::default())?;
    Ok(NftablesReconciler::new(kernel, Config::default()))
}

async fn reconcile(product: &mut NftablesReconciler, table: &Arc<NodeTable>) -> Result<usize> {
    let outcome = product.reconcile(table, Surplus::Delete).await?;
    ensure!(outcome.errors.is_empty(), "{:?}", outcome.errors.first());
    Ok(outcome.objects)
}

/// The table with one endpoint more at a service.
fn with_endpoint(table: &NodeTable, load: Load, number: u32, network: u8) -> Result<NodeTable> {
    let service = number * (load.services / ADDITIONS);
    let address = SocketAddr::new([172, network, 0, u8::try_from(number)?].into(), 8080);
    Ok(Load::changed(table, service, |record| {
        record.destinations.push(Destination::new(address));
    }))
}

/// Adds one endpoint to each of several services, one after the other.
async fn additions(
    product: &mut NftablesReconciler,
    load: Load,
    table: &Arc<NodeTable>,
) -> Result<Arc<NodeTable>> {
    let mut table = Arc::clone(table);
    let mut times = Vec::new();
    for number in 0..ADDITIONS {
        table = Arc::new(with_endpoint(&table, load, number, 16)?);
        let start = Instant::now();
        let objects = reconcile(product, &table).await?;
        times.push(milliseconds(start) * 1e3);
        ensure!(objects > 0, "nothing changed");
    }
    say("endpoint", median(times));
    Ok(table)
}

/// Measures transactions of one endpoint more. All are encoded before the first is sent: computing a whole table in
/// between would leave the kernel's data in no cache.
async fn kernel_time(load: Load, table: &NodeTable) -> Result<()> {
    let mut kernel = NftablesKernel::open(KernelConfig::default())?;
    let facts = kernel.facts().await?;
    let mut nftables = Nftables::open()?;
    let content = nftables.content(Family::V4, TABLE)?;
    let mut content = Some(content.context("no table")?);
    let (mut table, mut transactions) = (table.clone(), Vec::new());
    for number in 0..ADDITIONS {
        table = with_endpoint(&table, load, number, 17)?;
        let requests = requests(&table, &facts, content.as_ref());
        transactions.push(nftables.encode(Family::V4, TABLE, &requests)?);
        advance(&mut content, &requests);
    }
    let (mut wire, mut times) = (Wire::netfilter()?, Vec::new());
    for bytes in &transactions {
        let start = Instant::now();
        wire.transaction(bytes)?;
        times.push(milliseconds(start) * 1e3);
    }
    say("endpoint_kernel", median(times));
    Ok(())
}

fn requests(table: &NodeTable, facts: &NodeFacts, there: Option<&TableContent>) -> Vec<Request> {
    let ways = Ways::new(table, facts);
    // As the product has them on this kernel, so that both send the same.
    let config = Config {
        sizes_sets: NftablesKernel::resizes_sets(),
        ..Config::default()
    };
    let desired = desire(Family::V4, &ways, &config, &table.node, there);
    plan(&desired.content, there, Surplus::Delete)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
