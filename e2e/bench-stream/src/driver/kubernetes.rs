//! How large the same cluster is as the objects of Kubernetes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::world::Size;

/// The bytes of its Services and EndpointSlices as a watch sends them in protobuf.
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
