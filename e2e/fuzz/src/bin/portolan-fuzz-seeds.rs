// SPDX-License-Identifier: Apache-2.0

//! Writes the seeds of all targets: `portolan-fuzz-seeds DIRECTORY`.

use std::path::PathBuf;

use anyhow::Context;
use portolan_fuzz::seeds;

fn main() -> anyhow::Result<()> {
    let directory = std::env::args_os().nth(1).context("a directory")?;
    let directory = PathBuf::from(directory);
    for (target, seeds) in [
        ("agent", seeds::agent()),
        ("controller", seeds::controller()),
        ("dns", portolan_fuzz::dns::seeds()),
    ] {
        let directory = directory.join(target);
        std::fs::create_dir_all(&directory)?;
        for (name, bytes) in seeds {
            std::fs::write(directory.join(name), bytes)?;
        }
    }
    Ok(())
}
