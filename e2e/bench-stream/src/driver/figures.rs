// SPDX-License-Identifier: Apache-2.0

//! Output of figures.

use std::io::Write as _;

use anyhow::{Result, ensure};
use portolan_e2e::figure::{Goal, figure};

/// Prints a figure without a goal.
pub(super) fn say(name: &str, value: f64, unit: &str) {
    figure(name, value, unit, None);
}

/// Prints a figure that must be at least `goal`.
pub(super) fn at_least(name: &str, value: f64, unit: &str, goal: f64) {
    figure(name, value, unit, Some(Goal::AtLeast(goal)));
}

/// Prints a figure that must be at most `goal`.
pub(super) fn at_most(name: &str, value: f64, unit: &str, goal: f64) {
    figure(name, value, unit, Some(Goal::AtMost(goal)));
}

/// Prints a line that is not a figure.
pub(super) fn remark(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The quantile of a sorted list; `share` is from 0 to 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of the list"
)]
pub(super) fn quantile(sorted: &[u64], share: f64) -> Result<f64> {
    ensure!(!sorted.is_empty(), "nothing was measured");
    let last = sorted.len() - 1;
    let index = (last as f64 * share).round() as usize;
    Ok(sorted[index.min(last)] as f64)
}

/// The median, on which a single disturbed figure has little influence.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> Result<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    ensure!(!sorted.is_empty(), "nothing was measured");
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    Ok(match sorted.len() % 2 {
        0 => f64::midpoint(sorted[half - 1], sorted[half]),
        _ => sorted[half],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median([9.0, 1.0, 2.0]).unwrap(), 2.0);
        assert_eq!(median([4.0, 1.0]).unwrap(), 2.5);
        assert!(median([]).is_err());
    }

    #[test]
    fn a_quantile_is_of_the_list() {
        let list: Vec<u64> = (0..=100).collect();
        assert_eq!(quantile(&list, 0.5).unwrap(), 50.0);
        assert_eq!(quantile(&list, 0.99).unwrap(), 99.0);
        assert_eq!(quantile(&[7], 0.99).unwrap(), 7.0);
        assert!(quantile(&[], 0.5).is_err());
    }
}
