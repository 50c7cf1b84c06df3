//! The flags that say how agents are served.

use std::time::Duration;

use portolan_serve::ServeConfig;

/// How agents are served.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StreamArgs {
    /// How many agents are sent a whole table at the same time; the others wait for their turn.
    #[arg(long, env = "PORTOLAN_SNAPSHOTS", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..))]
    snapshots: u32,

    /// How long an agent may take nothing while something waits for it, in seconds, before its
    /// connection is closed. It resumes where it was.
    #[arg(long, env = "PORTOLAN_STALL_TIMEOUT", default_value = "60",
        value_parser = clap::value_parser!(u64).range(1..=3_600))]
    stall_timeout: u64,

    /// How long an agent that comes from another controller may take to say which parts of its
    /// table differ, in seconds. Then it is sent everything.
    #[arg(long, env = "PORTOLAN_BUCKETS_TIMEOUT", default_value = "5",
        value_parser = clap::value_parser!(u64).range(1..=3_600))]
    buckets_timeout: u64,

    /// How long an agent whose table is newer than ours waits for us to catch up, in seconds,
    /// before it is told to go elsewhere.
    #[arg(long, env = "PORTOLAN_CATCH_UP_TIMEOUT", default_value = "5",
        value_parser = clap::value_parser!(u64).range(1..=3_600))]
    catch_up_timeout: u64,
}

impl StreamArgs {
    /// The rest is as it is by default.
    pub(crate) fn config(&self) -> ServeConfig {
        ServeConfig {
            snapshots: usize::try_from(self.snapshots).unwrap_or(usize::MAX),
            stall_timeout: Duration::from_secs(self.stall_timeout),
            buckets_timeout: Duration::from_secs(self.buckets_timeout),
            catch_up_timeout: Duration::from_secs(self.catch_up_timeout),
            ..ServeConfig::default()
        }
    }
}
