// SPDX-License-Identifier: Apache-2.0

//! Tells the crate which compiler and which sources it is built of, for `portolan_build_info`.

use std::error::Error;
use std::process::Command;

/// The commit, set by builds of releases. Asking git here would build every crate again after every
/// commit.
const REVISION: &str = "PORTOLAN_REVISION";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={REVISION}");
    let revision = std::env::var(REVISION).unwrap_or_default();
    println!("cargo::rustc-env={REVISION}={revision}");
    let version = Command::new(std::env::var("RUSTC")?)
        .arg("--version")
        .output()?;
    let version = String::from_utf8(version.stdout)?;
    println!("cargo::rustc-env=PORTOLAN_RUSTC={}", version.trim());
    Ok(())
}
