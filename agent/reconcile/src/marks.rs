// SPDX-License-Identifier: Apache-2.0

//! Choice of packet marks when the first rules or ways of health checks are desired: a host whose records need none is
//! not asked for the marks of other programs.

use std::time::{Duration, Instant};

use portolan_dataplane::Dataplane;
use portolan_plan::KernelState;

use crate::Reconciler;

/// Pause between two choices: each reads all rules of the host.
const PAUSE: Duration = Duration::from_secs(30);

/// The choice of marks.
#[derive(Debug)]
pub(crate) enum MarkChoice {
    /// Not made yet, or to be made again.
    Open,
    /// Made.
    Made,
    /// No mark can be chosen.
    Refused {
        /// Reason.
        error: String,
        /// When it was found.
        at: Instant,
    },
}

impl MarkChoice {
    /// The reason why no mark can be chosen.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Refused { error, .. } => Some(error.clone()),
            _ => None,
        }
    }
}

impl<D: Dataplane> Reconciler<D> {
    /// Takes the bits that a host's `Director` asks for, or those of the flag. The next reconciliation that needs
    /// marks chooses anew.
    pub(crate) fn ask_for_marks(&mut self, asked: Option<u32>) {
        if self.config.asked_marks == asked {
            return;
        }
        self.config.asked_marks = asked;
        self.marks = MarkChoice::Open;
        // All records are looked at again.
        self.forget();
    }

    /// Chooses the marks if something that needs them is desired, or was when no mark could be chosen. Returns whether
    /// the desired state has other marks now, and must be computed anew.
    ///
    /// If none can be chosen, records with a mark in the kernel keep it: packets have these bits already. Records that need
    /// a mark of other bits are refused; all others are served.
    pub(crate) async fn choose_marks(&mut self, observed: &KernelState, are_desired: bool) -> bool {
        let is_due = match &self.marks {
            MarkChoice::Open => are_desired,
            MarkChoice::Made => false,
            MarkChoice::Refused { at, .. } => at.elapsed() >= PAUSE,
        };
        if !is_due {
            return false;
        }
        let (mask, choice) = match self.dataplane.choose_marks(&self.config).await {
            Ok(mask) => (mask, MarkChoice::Made),
            Err(error) => {
                let (error, at) = (error.to_string(), Instant::now());
                let mapped = observed.mapped_mask(&self.config);
                (mapped, MarkChoice::Refused { error, at })
            }
        };
        self.marks = choice;
        let before = std::mem::replace(&mut self.config.short_circuit_mask, mask);
        before != mask
    }
}
