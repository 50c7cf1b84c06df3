// SPDX-License-Identifier: Apache-2.0

//! Files with random damage.

use portolan_policy::ObjectName;
use proptest::prelude::*;

use super::{BASE, reading};

proptest! {
    #[test]
    fn a_damaged_file_has_placed_problems_and_loses_no_other_document(
        place in 0..BASE.len(),
        length in 0..12_usize,
        put in "[-{}\\[\\]:,#&*!|>'\"%@ \na0]{0,6}",
    ) {
        let end = (place + length).min(BASE.len());
        let text = [&BASE[..place], &put, &BASE[end..]].concat();
        let damaged = reading(&text);
        for problem in &damaged.problems {
            prop_assert!(problem.at.line > 0 && problem.at.column > 0, "{}", problem);
            prop_assert!(problem.at.line <= text.lines().count() as u64 + 1, "{}", problem);
        }
        // If it has as many documents, the damage is in one of them.
        let separators = |text: &str| text.lines().filter(|line| *line == "---").count();
        prop_assume!(separators(&text) == separators(BASE));
        let mut lost: Vec<ObjectName> = Vec::new();
        let good = reading(BASE).objects;
        for name in good.names() {
            if damaged.objects.get(&name) != good.get(&name) {
                lost.push(name);
            }
        }
        prop_assert!(lost.len() <= 1, "{:?}", lost);
        // Its last good version stays, unless the damage makes another object of it.
        let is_another = damaged.objects.names().len() == good.names().len();
        let is_not_ours = !damaged.not_ours.is_empty();
        let (kept, _) = damaged.in_force(&good);
        if !is_another && !is_not_ours {
            prop_assert_eq!(kept, good);
        }
    }
}
