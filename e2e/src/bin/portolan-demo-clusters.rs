// SPDX-License-Identifier: Apache-2.0

//! Shows a Service of three clusters behind one address: shares, the loss of a cluster, and its return.
//!
//! Usage: `portolan-demo-clusters`, as root, where nftables is; `make demo-clusters` provides both. It prints
//! observed results only, and fails if they are not as they must be.

use std::io::Write as _;

use anyhow::{Result, ensure};
use portolan_e2e::clusters_demo;
use portolan_e2e::lane::is_root;

fn main() -> Result<()> {
    ensure!(is_root(), "needs root: it makes network namespaces");
    clusters_demo::run(|text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    })
}
