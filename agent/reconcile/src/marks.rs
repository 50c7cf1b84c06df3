// SPDX-License-Identifier: Apache-2.0

//! Choice of packet marks when the first rules are desired: a host whose records need none is not asked for the marks
//! of other programs.

use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError};
use portolan_plan::{KernelState, MarkMask, RulesMode};

use crate::Reconciler;

/// Pause between two choices: each reads all rules of the host.
const PAUSE: Duration = Duration::from_secs(30);

/// The choice of marks.
#[derive(Debug, Default)]
pub(crate) enum MarkChoice {
    /// Not made yet.
    #[default]
    Open,
    /// Made.
    Made,
    /// No mark can be used.
    Refused {
        /// Why.
        error: String,
        /// When it was found.
        at: Instant,
    },
}

impl MarkChoice {
    /// The reason why no mark can be used.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Refused { error, .. } => Some(error.clone()),
            _ => None,
        }
    }
}

impl<D: Dataplane> Reconciler<D> {
    /// Chooses the marks if rules are desired, or were when no mark could be used. Returns whether the desired state
    /// has other marks now, and must be computed anew.
    ///
    /// Without a usable mark, what needs one is refused; all else is served.
    ///
    /// # Errors
    /// If no mark can be used while rules of ours are in the kernel: what they mark stays as it is.
    pub(crate) async fn choose_marks(
        &mut self,
        observed: &KernelState,
        are_desired: bool,
    ) -> Result<bool, DataplaneError> {
        let is_due = match &self.marks {
            MarkChoice::Open => are_desired,
            MarkChoice::Made => false,
            MarkChoice::Refused { at, .. } => at.elapsed() >= PAUSE,
        };
        if self.config.rules_mode == RulesMode::Always || !is_due {
            return Ok(false);
        }
        let (mask, choice) = match self.dataplane.choose_marks(&self.config).await {
            Ok(mask) => (mask, MarkChoice::Made),
            Err(error) if observed.has_rules(&self.config.names) => return Err(error.into()),
            Err(error) => {
                let (error, at) = (error.to_string(), Instant::now());
                (MarkMask::NONE, MarkChoice::Refused { error, at })
            }
        };
        self.marks = choice;
        let before = std::mem::replace(&mut self.config.short_circuit_mask, mask);
        Ok(before != mask)
    }
}
