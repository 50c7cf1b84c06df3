// SPDX-License-Identifier: Apache-2.0

//! Changes at a steady rate, whether or not they can be delivered.

use std::time::{Duration, Instant};

use anyhow::Result;
use portolan_select::TableDelta;
use portolan_tablelog::Debounce;
use tokio::time::sleep_until;

use super::Target;
use crate::usage::{Usage, now_ns};
use crate::words::{Published, Told};
use crate::world::World;

/// Interval of memory samples.
const LOOK: Duration = Duration::from_millis(100);

/// Each change removes an endpoint, which is urgent.
const URGENT: bool = true;

/// The controller's estimate of the work of each stream.
const PER_STREAM: Duration = Duration::from_micros(20);

/// Publishes changes as the controller does. Each change carries the time at which it was due, so
/// that a server that is late does not appear faster.
pub(super) async fn run(
    world: &mut World,
    target: &mut dyn Target,
    rate: u32,
    seconds: u32,
) -> Result<Told> {
    let (start, start_ns) = (Instant::now(), now_ns());
    let due = |event: u32| Duration::from_secs(1) * event / rate;
    let total = rate * seconds;
    let mut changes = Vec::new();
    let (mut waiting, mut delta) = (Vec::new(), TableDelta::default());
    let mut debounce = Debounce::default();
    let mut flush = None;
    let mut event = 0;
    let (mut looked, mut resident_max) = (start, 0);
    while event < total || flush.is_some() {
        let now = Instant::now();
        while event < total && start + due(event) <= now {
            world.change(&mut delta);
            waiting.push(start_ns + u64::try_from(due(event).as_nanos())?);
            flush = Some(debounce.changed(start + due(event), URGENT));
            event += 1;
            if !target.is_debounced() {
                break;
            }
        }
        if let Some(at) = flush
            && (at <= now || !target.is_debounced())
        {
            let revision = target.publish(&std::mem::take(&mut delta));
            let published = waiting.drain(..);
            changes.extend(published.map(|at_ns| Published { revision, at_ns }));
            if target.is_debounced() {
                let streams = u32::try_from(target.streams())?;
                debounce.flushed(Instant::now(), PER_STREAM * streams);
            }
            flush = None;
        }
        if now - looked > LOOK {
            looked = now;
            resident_max = Usage::now()?.resident.max(resident_max);
        }
        let next = flush.unwrap_or(start + due(event.min(total)));
        sleep_until(next.min(start + due(event)).into()).await;
    }
    resident_max = Usage::now()?.resident.max(resident_max);
    Ok(Told::Loaded {
        changes,
        resident_max,
    })
}
