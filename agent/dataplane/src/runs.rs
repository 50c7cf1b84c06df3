//! Runs: neighbouring steps of one class, which the kernel takes together.
//!
//! The gate is asked for all of a run before any of it is taken. So what a step must not be taken
//! without is in another class: a virtual server's real servers come in a later run than itself.

use std::borrow::Borrow;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_netlink::Errno;
use portolan_plan::Step;

use crate::gate::Gate;
use crate::{Doubt, StepError};

/// What a step goes through.
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

/// Why a step failed, as a whole or in part.
#[derive(Debug, Default)]
pub(crate) struct StepFailure {
    pub(crate) message: String,
    /// The entries that are missing; empty if the whole step failed.
    pub(crate) entries: Vec<SetEntry>,
    /// The part of the step that was taken all the same.
    pub(crate) done: Option<Step>,
    pub(crate) doubt: Doubt,
}

impl StepFailure {
    /// A step failed as a whole.
    pub(crate) fn new(doubt: Doubt, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            doubt,
            ..Self::default()
        }
    }

    /// It is unknown what was done.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(Doubt::Lost, message)
    }

    /// The kernel refused some entries and took the others; the message is left to say.
    pub(crate) fn of_entries(step: &Step, entries: Vec<SetEntry>) -> Self {
        let mut rest = step.clone();
        if let Step::AddEntries { entries: rest, .. } | Step::DelEntries { entries: rest, .. } =
            &mut rest
        {
            Arc::make_mut(rest).retain(|entry| !entries.contains(entry));
        }
        Self {
            entries,
            done: Some(rest),
            ..Self::default()
        }
    }

    /// The kernel refused some real servers of a virtual server and took the others.
    pub(crate) fn of_real_servers(step: &Step, refused: &[(SocketAddr, Errno)]) -> Self {
        const SHOWN: usize = 4;
        let mut rest = step.clone();
        if let Step::FillVirtualServer { real_servers, .. } = &mut rest {
            let real_servers = Arc::make_mut(real_servers);
            real_servers.retain(|address, _| refused.iter().all(|(bad, _)| bad != address));
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
            done: Some(rest),
            doubt: doubts.max().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The kernel refused all of the step.
    pub(crate) fn refused(step: &Step, errno: Errno) -> Self {
        Self::new(doubt(step, errno), errno.to_string())
    }
}

/// What a step that was refused like this says about what is known. That something is there already,
/// or is not there, may mean that somebody else changed it.
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
        // Of rules nothing counts as known after that.
        | Step::WriteRules { .. } => true,
        // Several messages, or it is the whole set that is not as it was.
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

/// What takes runs.
pub(crate) trait ApplyRun {
    /// Takes a run, and says which of its steps failed, each once and in order.
    fn apply_run<S: Borrow<Step> + Sync>(
        &mut self,
        class: Class,
        run: &[S],
    ) -> impl Future<Output = Vec<(usize, StepFailure)>> + Send;
}

/// Takes steps in order, without those that must not be taken because of one that failed.
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
                    message: reason.to_owned(),
                    entries: Vec::new(),
                    done: None,
                    doubt: Doubt::None,
                });
            }
        }
        let class = Class::of(&run[0]);
        let failures = if held.is_empty() {
            // As a rule, and a list of all steps would take longer to make than to go through.
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
                message: failure.message,
                entries,
                done: failure.done,
                doubt: failure.doubt,
            });
        }
        start += run.len();
    }
    errors.sort_by_key(|error| error.index);
    errors
}
