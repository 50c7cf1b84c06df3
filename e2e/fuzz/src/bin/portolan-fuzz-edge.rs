// SPDX-License-Identifier: Apache-2.0

//! Fuzzes what an edge controller and the centre decode of each other. Without coverage it replays the files named as arguments.
#![cfg_attr(fuzzing, no_main, allow(unsafe_code, missing_docs))]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    portolan_fuzz::edge::check(input);
});

#[cfg(not(fuzzing))]
fn main() -> anyhow::Result<()> {
    for path in std::env::args_os().skip(1) {
        portolan_fuzz::edge::check(&std::fs::read(path)?);
    }
    Ok(())
}
