// SPDX-License-Identifier: Apache-2.0

//! Step 1: health in twentieths.

use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

use super::TWENTIETHS;

/// Health in twentieths, 0 to 20, of `ready` endpoints of `expected`. It is 0 without a ready one, and
/// else at least 1 if load is given away in proportion.
#[must_use]
pub fn health(ready: u64, expected: u64, least: Threshold, spill_over: SpillOver) -> u32 {
    if ready == 0 {
        return 0;
    }
    // What there is, by what there should be.
    let (ready, needed) = match least {
        Threshold::Number(number) => (u128::from(ready), u128::from(number)),
        Threshold::Percent(percent) => (
            u128::from(ready) * 100,
            u128::from(percent) * u128::from(expected),
        ),
    };
    if ready >= needed {
        return TWENTIETHS;
    }
    match spill_over {
        SpillOver::AllAtOnce => 0,
        SpillOver::Proportional => {
            // Less than 20, since less is ready than needed.
            let health = u128::from(TWENTIETHS) * ready / needed;
            u32::try_from(health).unwrap_or(TWENTIETHS).max(1)
        }
    }
}
