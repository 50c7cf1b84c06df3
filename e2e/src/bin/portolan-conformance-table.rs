// SPDX-License-Identifier: Apache-2.0

//! Prints the conformance table as Markdown.

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    io::stdout().write_all(portolan_e2e::conformance::markdown().as_bytes())
}
