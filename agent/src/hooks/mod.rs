// SPDX-License-Identifier: Apache-2.0

//! Programs that changes of state start: `spec.hooks` of load balancers in files of this host.
//!
//! They run in a task of their own, so that neither checks nor the kernel wait for them: at most so many at a time,
//! one at a time for each load balancer, each with a limit of time. Their output is not read. The newest state wins: a
//! state that has changed back before its program could start is not told.

mod queue;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use portolan_director::ObjectName;
use portolan_model::{Record, RecordKey};
use portolan_probe::{Programs, run_program};
use portolan_source::file::HooksOf;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::backends::{Health, frontend, quorum};
use crate::subscribe::Subscribed;
use queue::{Job, Queue, Seen, Subject};

/// Programs that run at the same time.
const MOST: usize = 8;
/// Time of a program.
const LIMIT: Duration = Duration::from_secs(30);

/// Inputs of the hooks.
#[derive(Debug)]
pub(crate) struct HookInputs {
    /// The hooks of the files.
    pub(crate) hooks: watch::Receiver<Arc<HooksOf>>,
    /// The newest table.
    pub(crate) tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// Verdicts about its records.
    pub(crate) health: watch::Receiver<Health>,
    /// Rules for programs.
    pub(crate) programs: Programs,
}

/// Runs the hooks until the token is cancelled or an input ends. Programs that still run then are killed.
pub(crate) async fn run(mut inputs: HookInputs, token: CancellationToken) {
    let mut queue = Queue::default();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < MOST
            && let Some(job) = queue.next()
        {
            running.push(run_job(inputs.programs.clone(), job));
        }
        let is_open = tokio::select! {
            () = token.cancelled() => return,
            changed = inputs.hooks.changed() => changed.is_ok(),
            changed = inputs.health.changed() => changed.is_ok(),
            // The verdicts about a new load balancer may come before the table that has it.
            changed = inputs.tables.changed() => changed.is_ok(),
            Some(object) = running.next(), if !running.is_empty() => {
                queue.ended(&object);
                continue;
            }
        };
        if !is_open {
            return;
        }
        let hooks = inputs.hooks.borrow_and_update().clone();
        let health = inputs.health.borrow_and_update().clone();
        let table = inputs.tables.borrow_and_update().clone();
        if let Some(table) = table {
            let records = table.table.records.values();
            let seen = seen(records.map(|record| &**record), &hooks, &health);
            queue.see(&hooks, seen);
        }
    }
}

/// The states of what has hooks. A backend behind several frontends is one.
fn seen<'r>(records: impl Iterator<Item = &'r Record>, hooks: &HooksOf, health: &Health) -> Seen {
    let mut seen = Seen::new();
    if hooks.is_empty() {
        return seen;
    }
    for record in records.filter(|record| record.balancing.is_some()) {
        let object = object(&record.key);
        if !hooks.contains_key(&object) {
            continue;
        }
        let verdicts = health.get(&record.key);
        let subject = Subject::Quorum(frontend(record).into());
        let is_up = verdicts.and_then(|verdicts| quorum(verdicts));
        seen.insert((object.clone(), subject), is_up);
        for destination in &record.destinations {
            let status = verdicts.and_then(|verdicts| verdicts.states.get(&destination.address));
            let is_up = status.and_then(|status| status.state.is_known_up());
            let key = (object.clone(), Subject::Backend(destination.address));
            let state = seen.entry(key).or_default();
            *state = state.or(is_up);
        }
    }
    seen
}

fn object(key: &RecordKey) -> ObjectName {
    ObjectName {
        namespace: key.namespace.to_string(),
        name: key.service.to_string(),
    }
}

/// Runs a program, and returns the load balancer that it was for.
async fn run_job(programs: Programs, job: Job) -> ObjectName {
    let Job {
        object,
        subject,
        is_up,
        command,
    } = job;
    let state = if is_up { "up" } else { "down" };
    let mut variables = vec![
        ("PORTOLAN_NAME", object.to_string()),
        ("PORTOLAN_STATE", state.to_owned()),
    ];
    let hook = match &subject {
        Subject::Quorum(frontend) => {
            variables.push(("PORTOLAN_FRONTEND", frontend.to_string()));
            "onQuorum"
        }
        Subject::Backend(address) => {
            variables.push(("PORTOLAN_ADDRESS", address.ip().to_string()));
            variables.push(("PORTOLAN_PORT", address.port().to_string()));
            "onBackend"
        }
    };
    match run_program(&programs, &command, &variables, LIMIT).await {
        Ok(()) => tracing::debug!(%object, hook, state, "hook ended"),
        Err(error) => tracing::warn!(%object, hook, state, %error, "hook failed"),
    }
    object
}

#[cfg(test)]
mod tests;
