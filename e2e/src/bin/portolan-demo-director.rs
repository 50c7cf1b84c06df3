// SPDX-License-Identifier: Apache-2.0

//! Shows the agent alone as a director: a file becomes a load balancer, and requests follow the health of its
//! two real servers.
//!
//! Usage: `portolan-demo-director FILE`, as root, where IPVS is; `make demo-director` provides both. It
//! prints observed results only, and fails if they are not as they must be.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::director_demo;
use portolan_e2e::lane::{has_ipvs, is_root};

fn main() -> Result<()> {
    ensure!(is_root(), "needs root: it makes network namespaces");
    ensure!(
        has_ipvs(),
        "this kernel has no IPVS: run `make demo-director`"
    );
    let file = std::env::args_os().nth(1);
    let file = file.context("usage: portolan-demo-director FILE")?;
    director_demo::run(Path::new(&file), |text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    })
}
