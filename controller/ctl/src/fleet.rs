// SPDX-License-Identifier: Apache-2.0

//! Commands about the objects of a fleet, which are in etcd: `apply`, `get`, `delete`, `diff -f`.

mod apply;
mod args;
mod files;
mod lines;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use portolan_etcd::EtcdArgs;

use crate::reply::{Output, Reply};
use apply::Plan;
pub(crate) use args::{ApplyArgs, DeleteArgs, GetArgs};
use store::Store;

/// Exit code if an object has changed since the version that a write is based on.
const CONFLICT: u8 = 4;

/// `portolanctl apply`.
pub(crate) async fn apply(args: &ApplyArgs, timeout: Duration) -> anyhow::Result<Reply> {
    let texts = files::read(&args.file)?;
    let mut store = Store::open(&args.etcd, timeout)?;
    let stored = store.read().await?;
    let wanted = files::parse(&texts, &stored, args.prune.as_ref())?;
    let plan = Plan::new(&wanted, &stored, args.prune.as_ref());
    if args.dry_run {
        return Ok(plan.show(&stored));
    }
    plan.carry_out(&mut store).await
}

/// `portolanctl get`.
pub(crate) async fn get(
    args: &GetArgs,
    output: Output,
    timeout: Duration,
) -> anyhow::Result<Reply> {
    let mut store = Store::open(&args.etcd, timeout)?;
    let stored = store.read().await?;
    let wanted = args.name()?;
    let chosen = stored.into_iter().filter(|(name, _)| args.selects(name));
    let chosen: Vec<_> = chosen.collect();
    if let (Some(name), true) = (&wanted, chosen.is_empty()) {
        anyhow::bail!("{name}: not found");
    }
    Ok(store::show(
        &chosen,
        wanted.is_some(),
        output == Output::Wide,
    ))
}

/// `portolanctl delete`.
pub(crate) async fn delete(args: &DeleteArgs, timeout: Duration) -> anyhow::Result<Reply> {
    let mut store = Store::open(&args.etcd, timeout)?;
    let stored = store.read().await?;
    let names = match &args.file[..] {
        [] => args.names()?,
        paths => files::names(&files::read(paths)?)?,
    };
    let plan = Plan::of_deletions(&names, &stored)?;
    if args.dry_run {
        return Ok(plan.show(&stored));
    }
    plan.carry_out(&mut store).await
}

/// `portolanctl diff -f`. Exit code 1 if anything differs.
pub(crate) async fn diff(
    paths: &[PathBuf],
    etcd: &EtcdArgs,
    timeout: Duration,
) -> anyhow::Result<Reply> {
    let texts = files::read(paths)?;
    let stored = Store::open(etcd, timeout)?.read().await?;
    let wanted = files::parse(&texts, &stored, None)?;
    Ok(apply::differences(&wanted, &stored))
}
