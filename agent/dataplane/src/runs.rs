// SPDX-License-Identifier: Apache-2.0

//! Runs: adjacent steps of one class, applied together.
//!
//! The gate checks all steps of a run before any of them is applied. So the dependencies of a step are in
//! another class: real servers come in a later run than their virtual server.

use std::borrow::Borrow;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_netlink::Errno;
use portolan_plan::Step;

use crate::gate::Gate;
use crate::{Doubt, StepError, StepErrorKind};

/// Interface of the kernel that a step uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Set,
    Rules,
    Route,
    VirtualServer,
    RealServer,
}

impl Class {
    fn of(step: &Step) -> Self {
        match step {
            Step::CreateSet { .. }
            | Step::ReplaceSet { .. }
            | Step::AddEntries { .. }
            | Step::DelEntries { .. } => Self::Set,
            Step::WriteRules { .. } => Self::Rules,
            Step::AddRoute { .. } | Step::SetRoute { .. } | Step::DelRoute { .. } => Self::Route,
            Step::AddVirtualServer { .. }
            | Step::SetVirtualServer { .. }
            | Step::DelVirtualServer { .. } => Self::VirtualServer,
            Step::FillVirtualServer { .. }
            | Step::AddRealServer { .. }
            | Step::SetRealServer { .. }
            | Step::DelRealServer { .. } => Self::RealServer,
        }
    }
}

/// Failure of a step, as a whole or in part.
#[derive(Debug, Default)]
pub(crate) struct StepFailure {
    pub(crate) message: String,
    /// Missing entries; empty if the whole step failed.
    pub(crate) entries: Vec<SetEntry>,
    /// The part of the step that the kernel executed.
    pub(crate) done: Option<Box<Step>>,
    pub(crate) doubt: Doubt,
}

impl StepFailure {
    /// Failure of a whole step.
    pub(crate) fn new(doubt: Doubt, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            doubt,
            ..Self::default()
        }
    }

    /// Failure with an unknown effect.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(Doubt::Lost, message)
    }

    /// Refusal of some entries; the others were applied. The message is left empty.
    pub(crate) fn of_entries(step: &Step, entries: Vec<SetEntry>) -> Self {
        let mut rest = step.clone();
        if let Step::AddEntries { entries: rest, .. } | Step::DelEntries { entries: rest, .. } =
            &mut rest
        {
            Arc::make_mut(rest).retain(|entry| !entries.contains(entry));
        }
        Self {
            entries,
            done: Some(Box::new(rest)),
            ..Self::default()
        }
    }

    /// Refusal of some real servers of a virtual server; the others were applied.
    pub(crate) fn of_real_servers(step: &Step, refused: &[(SocketAddr, Errno)]) -> Self {
        const SHOWN: usize = 4;
        let mut rest = step.clone();
        if let Step::FillVirtualServer { real_servers, .. } = &mut rest {
            let real_servers = Arc::make_mut(real_servers);
            real_servers.retain(|address, _| refused.iter().all(|(bad, _)| *bad != address));
        }
        let shown = refused.iter().take(SHOWN);
        let shown = shown.map(|(address, errno)| format!("{address}: {errno}"));
        let mut shown: Vec<String> = shown.collect();
        if let Some(more @ 1..) = refused.len().checked_sub(SHOWN) {
            shown.push(format!("and {more} more"));
        }
        let doubts = refused.iter().map(|(_, errno)| doubt(step, *errno));
        Self {
            message: shown.join("; "),
            done: Some(Box::new(rest)),
            doubt: doubts.max().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Refusal of a whole step.
    pub(crate) fn refused(step: &Step, errno: Errno) -> Self {
        Self::new(doubt(step, errno), errno.to_string())
    }
}

/// Doubt that a refusal casts on the observed state. An object that exists or is missing unexpectedly may
/// have been changed by another program.
fn doubt(step: &Step, errno: Errno) -> Doubt {
    let is_missing = [Errno::ENOENT, Errno::ESRCH].contains(&errno);
    let is_certain = match step {
        // ENOENT: no such scheduler.
        Step::AddVirtualServer { .. } | Step::AddRoute { .. } => errno != Errno::EEXIST,
        Step::AddRealServer { .. } | Step::FillVirtualServer { .. } => {
            errno != Errno::EEXIST && !is_missing
        }
        Step::SetVirtualServer { .. } => errno != Errno::ESRCH,
        Step::SetRealServer { .. } => !is_missing,
        Step::SetRoute { .. }
        | Step::DelRoute { .. }
        | Step::DelVirtualServer { .. }
        | Step::DelRealServer { .. }
        // Failed rules do not count as observed.
        | Step::WriteRules { .. } => true,
        // Several messages, or a change of the whole set.
        Step::CreateSet { .. }
        | Step::ReplaceSet { .. }
        | Step::AddEntries { .. }
        | Step::DelEntries { .. } => false,
    };
    if is_certain {
        Doubt::None
    } else {
        Doubt::Stale
    }
}

/// A kernel that applies runs.
pub(crate) trait ApplyRun {
    /// Applies a run; returns the failed steps, each once and in order.
    fn apply_run<S: Borrow<Step> + Sync>(
        &mut self,
        class: Class,
        run: &[S],
    ) -> impl Future<Output = Vec<(usize, StepFailure)>> + Send;
}

/// Applies steps in order, without those that the gate holds back.
pub(crate) async fn apply(kernel: &mut impl ApplyRun, steps: &[Step]) -> Vec<StepError> {
    let mut gate = Gate::default();
    let mut errors = Vec::new();
    let mut start = 0;
    for run in steps.chunk_by(|a, b| Class::of(a) == Class::of(b)) {
        let mut held = Vec::new();
        for (number, step) in run.iter().enumerate() {
            if let Some(reason) = gate.holds(step) {
                held.push(number);
                errors.push(StepError {
                    index: start + number,
                    kind: StepErrorKind::Held(reason),
                    message: reason.to_string(),
                    entries: Vec::new(),
                    done: None,
                    doubt: Doubt::None,
                });
            }
        }
        let class = Class::of(&run[0]);
        let failures = if held.is_empty() {
            // The common case, without a list of references to all steps.
            kernel.apply_run(class, run).await
        } else {
            let is_allowed = |number: &usize| held.binary_search(number).is_err();
            let numbers: Vec<_> = (0..run.len()).filter(is_allowed).collect();
            let allowed: Vec<_> = numbers.iter().map(|number| &run[*number]).collect();
            let failures = kernel.apply_run(class, &allowed).await.into_iter();
            let numbered = failures.map(|(failed, failure)| (numbers[failed], failure));
            numbered.collect()
        };
        for (number, failure) in failures {
            let step = &run[number];
            let entries = if failure.entries.is_empty() {
                gate.failed(step);
                step.added_entries()
            } else {
                let failed = failure.entries.iter().cloned();
                failed.for_each(|entry| gate.failed_entry(entry));
                failure.entries
            };
            errors.push(StepError {
                index: start + number,
                kind: StepErrorKind::Failed,
                message: failure.message,
                entries,
                done: failure.done.map(|rest| *rest),
                doubt: failure.doubt,
            });
        }
        start += run.len();
    }
    errors.sort_by_key(|error| error.index);
    errors
}
