// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent import kernel`: writes what IPVS has as a file.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use portolan_dataplane::{Whole, read_whole};
use portolan_director::import::kernel::{self, Kernel};
use portolan_plan::KernelState;
use portolan_plan::export::save;

use crate::args::{ImportKernelArgs, node_name};

/// Runs the command; prints its answer.
///
/// # Errors
/// If the kernel cannot be read, or the answer not be written.
pub fn run(args: &ImportKernelArgs) -> anyhow::Result<ExitCode> {
    let whole = read_whole().context("reading IPVS")?;
    let director = node_name(args.director.as_deref())?;
    let import = kernel::import(&kernel_of(whole), &director, args.merge);
    std::io::stderr().write_all(import.report().as_bytes())?;
    std::io::stdout().write_all(import.to_yaml().as_bytes())?;
    Ok(ExitCode::from(import.exit_code()))
}

fn kernel_of(whole: Whole) -> Kernel {
    let Whole {
        virtual_servers,
        unknown,
        timeouts,
        daemons,
    } = whole;
    let state = KernelState {
        virtual_servers,
        ..KernelState::default()
    };
    Kernel {
        commands: save(&state),
        unknown,
        timeouts: [timeouts.tcp, timeouts.tcp_fin, timeouts.udp],
        daemons,
    }
}
