// SPDX-License-Identifier: Apache-2.0

//! A number in a file.

use portolan_health::{DynamicWeight, Outcome};
use portolan_model::check::FileProbe;

use crate::Context;
use crate::fault::{Checked, Stop};

/// The part of a file that is read, in bytes: a number needs no more.
const MAX: u64 = 64;

pub(crate) async fn run(probe: &FileProbe, context: &Context) -> Checked<Outcome> {
    let content = context.files().read(&probe.path, MAX).await?;
    let content = content.map_err(Stop::Fails)?;
    let text = String::from_utf8_lossy(&content);
    let text = text.trim();
    let not_a_number = |_| Stop::fails(format_args!("{}: {text:?} is no number", probe.path));
    let number: i64 = text.parse().map_err(not_a_number)?;
    if number < 0 {
        return Err(Stop::fails(format_args!("{} in the file", number)));
    }
    let weight = (probe.weight != 0).then(|| {
        let product = number.saturating_mul(i64::from(probe.weight));
        let weight = product.clamp(0, i64::from(u16::MAX));
        DynamicWeight::Absolute(u16::try_from(weight).unwrap_or(u16::MAX))
    });
    Ok(Outcome::Pass { weight })
}
