// SPDX-License-Identifier: Apache-2.0

//! Generates `coredns.dns` with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let dns = protox::compile(["dns.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(dns)?;
    let names = protox::compile(["portolan/dns/v1/names.proto"], ["proto"])?;
    let descriptors = Path::new(&env::var("OUT_DIR")?).join("names.bin");
    fs::write(descriptors, names.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(names)?;
    Ok(())
}
