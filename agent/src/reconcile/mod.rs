//! Makes the kernel equal to the newest table: [`run`] has a [`Reconciler`] do it whenever the table
//! changes, when something failed, and every sync period in case somebody else changed the kernel.

mod drains;
mod ready;
mod run;
mod takeover;
mod tally;

pub use drains::{BootClock, Deadlines, Drainer};
pub use portolan_reconcile::{Counts, Draining, Outcome, Reconciler, StaleFlows};
pub use ready::Ready;
pub use run::{Inlets, Outlets, Timing, run};
pub use takeover::TakeoverConfig;
pub use tally::NoLocalEndpoints;
