// SPDX-License-Identifier: Apache-2.0

//! The program `portolanctl`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    portolan_ctl::main()
}
