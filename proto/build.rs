// SPDX-License-Identifier: Apache-2.0

//! Generates `portolan.v1` with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // What servers describe of themselves. Few have the service of edge controllers.
    let out = env::var("OUT_DIR")?;
    for (name, proto) in [
        ("descriptors.bin", "portolan/v1/tables.proto"),
        ("federation.bin", "portolan/v1/federation.proto"),
    ] {
        let described = protox::compile([proto], ["proto"])?;
        fs::write(Path::new(&out).join(name), described.encode_to_vec())?;
    }
    let protos = ["portolan/v1/tables.proto", "portolan/v1/federation.proto"];
    let files = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        // Sets of keys are kept sorted, so that reports and frames are reproducible.
        .type_attribute(".portolan.v1.RecordKey", "#[derive(PartialOrd, Ord)]")
        // Objects are kept as they are sent: hashes cover their bytes.
        .bytes(".portolan.v1.EdgeObjects.put")
        .bytes(".portolan.v1.CentreWork.put")
        .bytes(".portolan.v1.CentrePlans.put")
        .type_attribute(".portolan.v1.PlanId", "#[derive(PartialOrd, Ord)]")
        .type_attribute(".portolan.v1.ObjectId", "#[derive(PartialOrd, Ord)]")
        .compile_fds(files)?;
    Ok(())
}
