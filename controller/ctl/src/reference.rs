// SPDX-License-Identifier: Apache-2.0

//! The reference of flags in `docs/reference`.

use clap::CommandFactory as _;

use crate::args::Cli;

#[test]
fn the_reference_of_flags_is_that_of_the_code() {
    let page = portolan_reference::flags(Cli::command());
    portolan_reference::compare("portolanctl-flags.md", "Flags of portolanctl", &page);
}
