// SPDX-License-Identifier: Apache-2.0

//! Synchronisation of the kernel with the newest table: [`run`] calls a [`Reconciler`] on every
//! change of the table, after a failure, and once in each sync period in case another program changed
//! the kernel.

mod drains;
mod engine;
mod ready;
mod run;
mod succession;
mod tally;
mod userspace;

pub use drains::{BootClock, Deadlines, Drainer};
pub use engine::Engine;
pub use portolan_reconcile::{
    Counts, Draining, NftablesReconciler, Outcome, Reconciler, StaleFlows,
};
pub use ready::Ready;
pub use run::{SyncInputs, SyncOutputs, Timing, run};
pub(crate) use succession::{Opens, Succession};
pub use tally::{NoLocalEndpoints, TableChanges};
pub use userspace::Userspace;
