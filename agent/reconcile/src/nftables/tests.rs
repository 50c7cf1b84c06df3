// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn a_table_is_not_followed_while_a_family_lacks_it() {
    let broken: Families = [Family::V4].into_iter().collect();
    // The other family has read all tables again.
    assert!(!is_complete(Surplus::Delete, broken, true));
    assert!(is_complete(Surplus::Delete, Families::NONE, true));
    assert!(!is_complete(Surplus::Delete, Families::NONE, false));
    assert!(!is_complete(Surplus::Keep, Families::NONE, true));
}

fn observed() -> Observed {
    Observed {
        generation: Some(5),
        ..Observed::default()
    }
}

#[test]
fn a_notice_of_a_change_counts_until_the_tables_are_read() {
    let mut observed = observed();
    assert!(observed.must_be_read(Some(true), 6));
    // The read failed, and there is no further notice.
    assert!(observed.must_be_read(Some(false), 6));
    assert!(observed.must_be_read(None, 5));
    // A transaction of ours must still follow the generation that was read.
    assert_eq!(observed.generation, Some(5));
}

#[test]
fn changes_of_other_tables_are_passed_over() {
    let mut told = observed();
    assert!(!told.must_be_read(Some(false), 6));
    assert_eq!(told.generation, Some(6));
    let mut untold = observed();
    assert!(!untold.must_be_read(None, 5));
    assert!(untold.must_be_read(None, 6));
    let mut doubtful = Observed::default();
    assert!(doubtful.must_be_read(Some(false), 6));
}
