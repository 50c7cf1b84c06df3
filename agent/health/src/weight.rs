// SPDX-License-Identifier: Apache-2.0

//! The weight that the kernel is given.

use std::time::Duration;

use crate::DynamicWeight;

/// The largest weight: that of the node tables.
const MAX: u32 = 65_535;
/// The factor of all weights of a load balancer with slow start, so that weight 1 has steps too.
const FINE: u32 = 100;

/// The factor of all weights of a load balancer: 1 without slow start, else 100, or less if the
/// largest weight would not fit. It depends on the configuration alone, so it changes only with that.
pub(crate) fn factor(slow_start: Duration, largest: u16) -> u32 {
    match slow_start.is_zero() {
        true => 1,
        false => (MAX / u32::from(largest).max(1)).clamp(1, FINE),
    }
}

/// The weight of a backend that serves: 0 only if it is configured, or told, to have none.
pub(crate) fn serving(
    configured: u16,
    dynamic: Option<DynamicWeight>,
    share: u32,
    factor: u32,
) -> u16 {
    let (weight, percent) = match dynamic {
        None => (configured, 100),
        Some(DynamicWeight::Percent(percent)) => (configured, percent),
        Some(DynamicWeight::Absolute(weight)) => (weight, 100),
    };
    if weight == 0 || percent == 0 {
        return 0;
    }
    let parts = u64::from(weight) * u64::from(percent) * u64::from(share) * u64::from(factor);
    let rounded = (parts + 5_000) / 10_000;
    u16::try_from(rounded.max(1)).unwrap_or(u16::MAX)
}

/// The smaller of two weights that different checks give.
pub(crate) fn smaller(configured: u16, a: DynamicWeight, b: DynamicWeight) -> DynamicWeight {
    let value = |each| serving(configured, Some(each), 100, 1);
    if value(b) < value(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_rounded_and_never_vanish() {
        let percent = |each| Some(DynamicWeight::Percent(each));
        assert_eq!(serving(3, None, 100, 1), 3);
        assert_eq!(serving(3, percent(50), 100, 1), 2);
        assert_eq!(serving(1, percent(10), 10, 1), 1);
        assert_eq!(serving(1, None, 15, 100), 15);
        assert_eq!(serving(7, Some(DynamicWeight::Absolute(40)), 50, 1), 20);
        assert_eq!(serving(65_535, percent(200), 100, 1), 65_535);
        assert_eq!(
            [
                serving(0, percent(50), 100, 1),
                serving(9, percent(0), 100, 1)
            ],
            [0, 0]
        );
    }

    #[test]
    fn the_factor_keeps_the_largest_weight_within_bounds() {
        let ramp = Duration::from_secs(30);
        assert_eq!(factor(Duration::ZERO, 4), 1);
        assert_eq!(factor(ramp, 4), 100);
        assert_eq!(factor(ramp, 0), 100);
        assert_eq!(factor(ramp, 655), 100);
        assert_eq!(factor(ramp, 656), 99);
        assert_eq!(factor(ramp, 65_535), 1);
    }

    #[test]
    fn the_smaller_weight_wins() {
        let (half, three) = (DynamicWeight::Percent(50), DynamicWeight::Absolute(3));
        assert_eq!(smaller(4, half, three), half);
        assert_eq!(smaller(10, half, three), three);
    }
}
