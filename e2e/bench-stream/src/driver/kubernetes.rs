// SPDX-License-Identifier: Apache-2.0

//! The size of the same cluster as Kubernetes objects.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::world::Size;

/// The size of its Services and EndpointSlices, in bytes, as a watch sends them in protobuf.
pub(super) fn kubernetes_bytes(program: &Path, size: Size) -> Result<f64> {
    let output = Command::new(program.join("run"))
        .arg(size.services.to_string())
        .arg(size.endpoints.to_string())
        .output()
        .context("the program that makes the objects")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", complaint.trim());
    let bytes = String::from_utf8_lossy(&output.stdout);
    bytes.trim().parse().context("its answer")
}
