// SPDX-License-Identifier: Apache-2.0

//! Whole numbers.

/// The greatest common divisor; 0 of nothing but zeroes.
pub(super) fn gcd(numbers: impl IntoIterator<Item = u128>) -> u128 {
    let mut numbers = numbers.into_iter();
    let mut one = 0;
    // Nothing divides more than 1.
    while one != 1
        && let Some(mut other) = numbers.next()
    {
        while other != 0 {
            (one, other) = (other, one % other);
        }
    }
    one
}

/// Numbers without their common divisor.
pub(super) fn reduced(numbers: &mut [u128]) {
    let divisor = gcd(numbers.iter().copied());
    if divisor > 1 {
        for number in numbers {
            *number /= divisor;
        }
    }
}
