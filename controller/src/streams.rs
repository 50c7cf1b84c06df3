// SPDX-License-Identifier: Apache-2.0

//! Flags of streams to agents.

use std::time::Duration;

use portolan_runtime::duration_within;
use portolan_serve::ServeConfig;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Flags of streams to agents.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Streams")]
pub(crate) struct StreamArgs {
    /// Number of agents that are sent a whole table at the same time. Further ones wait for their
    /// turn.
    #[arg(long, env = "PORTOLAN_SNAPSHOTS", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..))]
    snapshots: u32,

    /// Time after which the connection of an agent that reads nothing is closed. The agent resumes
    /// at its cursor.
    #[arg(long, env = "PORTOLAN_STALL_TIMEOUT", default_value = "1m",
        value_parser = duration_within(SECOND, HOUR))]
    stall_timeout: Duration,

    /// Time that an agent from another controller has to name the parts of its table that differ.
    /// After that it is sent the whole table.
    #[arg(long, env = "PORTOLAN_BUCKETS_TIMEOUT", default_value = "5s",
        value_parser = duration_within(SECOND, HOUR))]
    buckets_timeout: Duration,

    /// Time that an agent with a newer table waits for this controller to catch up, before it is
    /// sent to another one.
    #[arg(long, env = "PORTOLAN_CATCH_UP_TIMEOUT", default_value = "5s",
        value_parser = duration_within(SECOND, HOUR))]
    catch_up_timeout: Duration,
}

impl StreamArgs {
    /// The configuration of streams. All other settings have their defaults.
    pub(crate) fn config(&self) -> ServeConfig {
        ServeConfig {
            snapshots: usize::try_from(self.snapshots).unwrap_or(usize::MAX),
            stall_timeout: self.stall_timeout,
            buckets_timeout: self.buckets_timeout,
            catch_up_timeout: self.catch_up_timeout,
            ..ServeConfig::default()
        }
    }
}
