// SPDX-License-Identifier: Apache-2.0

//! Probes of backends, and the engine that runs them.
//!
//! [`probe`] runs one check of one backend once. An [`Engine`] probes all backends of all load balancers
//! again and again, and publishes verdicts about them. This is how an agent uses it:
//!
//! ```
//! use std::time::Duration;
//!
//! use portolan_health::Saved;
//! use portolan_probe::{
//!     Clock, Context, Engine, Inputs, Limits, Overrides, StateFile, Wanted,
//! };
//! use tokio::sync::watch;
//! use tokio_util::sync::CancellationToken;
//!
//! /// The key of a load balancer: the record's in the agent.
//! type Key = String;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # let directory = std::env::temp_dir();
//! # let file = StateFile::new(&directory.join("no such directory"));
//! // Whoever computes the table sends what is wanted; each send costs what has changed.
//! let (wanted, wanted_receiver) = watch::channel(Wanted::<Key>::new());
//! let (overrides, overrides_receiver) = watch::channel(Overrides::<Key>::new());
//! // A director on standby may suspend its probes.
//! let (suspended, suspended_receiver) = watch::channel(false);
//! // Its limits may change while it runs.
//! let (limits, limits_receiver) = watch::channel(Limits::default());
//! let inputs = Inputs {
//!     wanted: wanted_receiver,
//!     overrides: overrides_receiver,
//!     suspended: suspended_receiver,
//!     limits: limits_receiver,
//! };
//!
//! // A damaged file is told to the operator; the backends are probed anew.
//! let saved: Option<Saved<Key>> = file.load().unwrap_or_default();
//! // The identifier of this boot, and the time since: the agent's clock has both.
//! let clock = Clock::new("3b241101-e2bb-4255-8caf-4136c566a962", Duration::from_secs(9_000));
//! let (engine, handle) = Engine::new(Context::default(), None, clock, inputs, saved);
//! let token = CancellationToken::new();
//! let engine = tokio::spawn(engine.run(token.clone()));
//! let keeper = tokio::spawn(file.keep(handle.saved.clone()));
//!
//! // Whoever programs the kernel waits for a change of `handle.health`, and takes the verdicts into its
//! // table. `handle.counts()` is for the metrics.
//! let health = handle.health.borrow().clone();
//! assert!(health.is_empty());
//!
//! // At the end the states are published once more, and written.
//! token.cancel();
//! engine.await.unwrap();
//! keeper.await.unwrap();
//! # drop((wanted, overrides, suspended, limits));
//! # }
//! ```

#![forbid(unsafe_code)]

mod blocking;
mod connects;
mod context;
mod engine;
mod fault;
mod kinds;
mod patterns;
mod probe;
mod programs;
mod socket;
mod state_file;
mod target;

pub use context::Context;
pub use engine::{
    BUCKETS, Clock, Counts, Engine, Handle, Health, Histogram, Inputs, Key, Limits, Overrides,
    Prober, ResultKind, Wanted, kind,
};
pub use kinds::exec::{ProgramError, run_program};
pub use probe::probe;
pub use programs::Programs;
pub use state_file::{StateFile, StateFileError};
pub use target::{Names, Target};
