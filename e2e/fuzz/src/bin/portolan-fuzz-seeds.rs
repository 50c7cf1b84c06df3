// SPDX-License-Identifier: Apache-2.0

//! Writes the seeds of all targets, and the words of those that read text as `TARGET.dict`:
//! `portolan-fuzz-seeds DIRECTORY`.

use std::path::PathBuf;

use anyhow::Context;
use portolan_fuzz::{files, seeds};

fn main() -> anyhow::Result<()> {
    let directory = std::env::args_os().nth(1).context("a directory")?;
    let directory = PathBuf::from(directory);
    let texts = [
        ("director", files::director::seeds()),
        ("import", files::import::seeds()),
        ("policy", files::policy::seeds()),
    ];
    std::fs::create_dir_all(&directory)?;
    for (target, seeds) in &texts {
        let words = seeds::dictionary(seeds);
        std::fs::write(directory.join(target).with_extension("dict"), words)?;
    }
    let others = [
        ("agent", seeds::agent()),
        ("controller", seeds::controller()),
        ("dns", portolan_fuzz::dns::seeds()),
        ("edge", portolan_fuzz::edge::seeds()),
    ];
    for (target, seeds) in others.into_iter().chain(texts) {
        let directory = directory.join(target);
        std::fs::create_dir_all(&directory)?;
        for (name, bytes) in seeds {
            std::fs::write(directory.join(name), bytes)?;
        }
    }
    Ok(())
}
