// SPDX-License-Identifier: Apache-2.0

//! The running agent that a command asks.

use clap::Args;

use crate::ask::socket_path;

/// Address of the running agent.
#[derive(Debug, Clone, Args)]
pub struct SocketArgs {
    /// Socket of the agent as unix:///PATH (its --debug-listen).
    #[arg(
        long,
        env = "PORTOLAN_DEBUG_LISTEN",
        value_name = "ADDRESS",
        default_value = "unix:///run/portolan/agent.sock"
    )]
    pub address: String,
}

impl SocketArgs {
    /// Checks the address.
    ///
    /// # Errors
    /// If it is none of a Unix socket.
    pub fn validate(&self) -> anyhow::Result<()> {
        socket_path(&self.address).map(drop)
    }
}
