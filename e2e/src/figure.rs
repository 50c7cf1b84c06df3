// SPDX-License-Identifier: Apache-2.0

//! Measured figures, one line each, where the summary of all lanes finds them.

use std::io::Write;

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
}

/// Prints a figure: `figure NAME VALUE UNIT [goal OP VALUE ok|short]`. Written straight to stdout,
/// since the test harness hides the output of a passing test.
pub fn figure(name: &str, value: f64, unit: &str, goal: Option<Goal>) {
    let _ = writeln!(std::io::stdout(), "{}", line(name, value, unit, goal));
}

fn line(name: &str, value: f64, unit: &str, goal: Option<Goal>) -> String {
    let line = format!("figure {name} {value:.1} {unit}");
    let (operator, bound, met) = match goal {
        None => return line,
        Some(Goal::AtMost(bound)) => ("<=", bound, value <= bound),
        Some(Goal::AtLeast(bound)) => (">=", bound, value >= bound),
    };
    let verdict = if met { "ok" } else { "short" };
    format!("{line} goal {operator} {bound} {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_the_goal_is_met() {
        assert_eq!(line("a", 1.25, "ms", None), "figure a 1.2 ms");
        let at_most = |value| line("a", value, "ms", Some(Goal::AtMost(10.0)));
        assert_eq!(at_most(10.0), "figure a 10.0 ms goal <= 10 ok");
        assert_eq!(at_most(10.5), "figure a 10.5 ms goal <= 10 short");
        let at_least = line("a", 9.0, "rows", Some(Goal::AtLeast(60.0)));
        assert_eq!(at_least, "figure a 9.0 rows goal >= 60 short");
    }
}
