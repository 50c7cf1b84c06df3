// SPDX-License-Identifier: Apache-2.0

//! The machine's clock, which tests in guests may set.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::lane;

/// Returns `true` if the clock is that of a guest, so that a test may set it.
#[must_use]
pub fn is_of_guest() -> bool {
    ["uml", "debian", "packaged"].contains(&&*lane::lane())
}

/// Sets the clock forward, or back if `seconds` is negative.
///
/// # Errors
/// If the clock cannot be set.
pub fn jump(seconds: i64) -> Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let to = i64::try_from(since.as_secs())? + seconds;
    let output = Command::new("date")
        .arg("-s")
        .arg(format!("@{to}"))
        .output()?;
    ensure!(output.status.success(), "date -s @{to}: {output:?}");
    Ok(())
}
