//! Which tables are held back: those that come first on a stream and delete too much.
//!
//! A controller that comes up with little (an API server restored from the wrong backup, a cache
//! that was not full) is believed only after a while, or when an operator says so. Only what comes
//! first on a stream is judged: what changes then, the controller saw happen.

use std::time::Duration;

/// A table with fewer records is never held: where there is little, much of it may well go.
const LARGE: usize = 100;

/// What is too much, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldConfig {
    /// A table is held if it would delete more than so many of a hundred records; 100 holds none.
    pub above_percent: u8,
    /// After so long on one stream a table counts as confirmed; `None` for never.
    pub confirmed_after: Option<Duration>,
}

impl Default for HoldConfig {
    fn default() -> Self {
        Self {
            above_percent: 50,
            confirmed_after: Some(Duration::from_secs(30)),
        }
    }
}

impl HoldConfig {
    /// Whether a table is to be held that would delete so many of the records in force.
    #[must_use]
    pub fn is_too_much(&self, deleted: usize, records: usize) -> bool {
        records > LARGE && deleted * 100 > records * usize::from(self.above_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_of_a_large_table_is_too_much() {
        let config = HoldConfig::default();
        assert!(config.is_too_much(101, 200));
        assert!(!config.is_too_much(100, 200));
        assert!(!config.is_too_much(100, 100), "a small table");
        let never = HoldConfig {
            above_percent: 100,
            ..config
        };
        assert!(!never.is_too_much(200, 200));
    }
}
