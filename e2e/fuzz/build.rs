// SPDX-License-Identifier: Apache-2.0

//! Makes `cfg(fuzzing)` known, which `e2e/fuzz/rustc` sets.

#[allow(clippy::print_stdout, reason = "how a build script speaks")]
fn main() {
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    println!("cargo::rerun-if-changed=build.rs");
}
