// SPDX-License-Identifier: Apache-2.0

//! Allocation of marks to records with short circuits, or with ranges of ports.
//!
//! A record keeps its mark while the kernel maps one of its frontends to it. So it changes neither when
//! other records come and go nor when the agent restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use portolan_model::RecordKey;
use portolan_model::ipset::SetEntry;

use crate::{MarkMask, SetName};

/// Frontends that get a record's mark, and the set that gives it.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    /// The set that gives the mark.
    pub(crate) set: SetName,
    /// The frontends, as `IpPortMark` with any mark.
    pub(crate) entries: Vec<SetEntry>,
}

/// Allocates a mark to each record, given what gets it. `mapped` are the entries of the kernel's sets; `foreign`
/// marks belong to other programs, or to operators.
///
/// A record is missing from the result if no mark is free: the mask is too small. A mark that the kernel
/// still maps for another record is not free, since connections still get it.
pub(crate) fn allocate(
    wanted: &BTreeMap<RecordKey, Marked>,
    mapped: &[(SetName, &BTreeSet<SetEntry>)],
    foreign: &BTreeSet<u32>,
    mask: MarkMask,
) -> BTreeMap<RecordKey, u32> {
    let mapped = mapped.iter().flat_map(|(set, entries)| {
        entries.iter().filter_map(|entry| match entry {
            SetEntry::IpPortMark(.., mark) => Some(((*set, entry.identity()), *mark)),
            _ => None,
        })
    });
    let mapped: BTreeMap<(SetName, SetEntry), u32> = mapped.collect();
    let mut taken: BTreeSet<u32> = foreign.clone();
    let mut marks = BTreeMap::new();
    for (record, Marked { set, entries }) in wanted {
        let kept = entries
            .iter()
            .filter_map(|entry| mapped.get(&(*set, entry.identity())).copied())
            .find(|mark| mask.contains(*mark) && !taken.contains(mark));
        if let Some(mark) = kept {
            taken.insert(mark);
            marks.insert(record.clone(), mark);
        }
    }
    taken.extend(mapped.values());
    taken.retain(|mark| mask.contains(*mark));
    for record in wanted.keys() {
        if !marks.contains_key(record) {
            let Some(mark) = free(record, &taken, mask) else {
                continue;
            };
            taken.insert(mark);
            marks.insert(record.clone(), mark);
        }
    }
    marks
}

/// The first free mark from the hash of its owner's name on. All `taken` marks are of the mask.
pub(crate) fn free(
    owner: &impl fmt::Display,
    taken: &BTreeSet<u32>,
    mask: MarkMask,
) -> Option<u32> {
    let capacity = mask.capacity();
    if u32::try_from(taken.len()).is_ok_and(|taken| taken >= capacity) {
        return None;
    }
    let first = hash(owner) % capacity;
    (first..capacity)
        .chain(0..first)
        .map(|number| mask.mark(number + 1))
        .find(|mark| !taken.contains(mark))
}

/// FNV-1a: equal on all nodes and in all versions, so that marks of two nodes can be compared.
fn hash(owner: &impl fmt::Display) -> u32 {
    owner.to_string().bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    fn record(number: u16) -> RecordKey {
        RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: format!("s{number}").into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        }
    }

    fn entry(number: u16, mark: u32) -> SetEntry {
        SetEntry::IpPortMark([10, 0, 0, 1].into(), Protocol::Tcp, number, mark)
    }

    fn wanted(numbers: impl IntoIterator<Item = u16>) -> BTreeMap<RecordKey, Marked> {
        let of = |number| Marked {
            set: SetName::ShortCircuit,
            entries: vec![entry(number, 0)],
        };
        let numbers = numbers.into_iter();
        numbers.map(|number| (record(number), of(number))).collect()
    }

    /// With what the kernel's set has.
    fn allocated(
        wanted: &BTreeMap<RecordKey, Marked>,
        mapped: &BTreeSet<SetEntry>,
        foreign: &BTreeSet<u32>,
        mask: MarkMask,
    ) -> BTreeMap<RecordKey, u32> {
        allocate(wanted, &[(SetName::ShortCircuit, mapped)], foreign, mask)
    }

    fn mask(bits: u32) -> MarkMask {
        MarkMask::new(bits, 0x4000).unwrap()
    }

    fn mapping(numbers: impl IntoIterator<Item = u16>, bits: u32) -> BTreeSet<SetEntry> {
        let numbers: Vec<u16> = numbers.into_iter().collect();
        let wanted = wanted(numbers.iter().copied());
        let marks = allocated(&wanted, &BTreeSet::new(), &BTreeSet::new(), mask(bits));
        let mapped = numbers
            .iter()
            .map(|number| entry(*number, marks[&record(*number)]));
        mapped.collect()
    }

    #[test]
    fn every_record_has_its_own_mark_until_none_is_left() {
        let none = BTreeSet::new();
        let marks = allocated(&wanted(0..15), &none, &none_foreign(), mask(0xf_0000));
        let different: BTreeSet<_> = marks.values().collect();
        assert_eq!(different.len(), 15);
        let marks = allocated(&wanted(0..17), &none, &none_foreign(), mask(0xf_0000));
        assert_eq!(marks.len(), 15);
    }

    fn none_foreign() -> BTreeSet<u32> {
        BTreeSet::new()
    }

    #[test]
    fn a_mark_stays_when_others_come_and_go() {
        let mapped = mapping(0..10, 0x1f_0000);
        let marks = allocated(&wanted(5..20), &mapped, &none_foreign(), mask(0x1f_0000));
        for number in 5..10 {
            assert!(mapped.contains(&entry(number, marks[&record(number)])));
        }
        // Marks still mapped for a deleted record are not free.
        for number in 10..20 {
            let mark = marks[&record(number)];
            let others = (0..10).any(|other| mapped.contains(&entry(other, mark)));
            assert!(!others, "{mark:#x}");
        }
    }

    #[test]
    fn foreign_marks_and_those_outside_the_mask_are_given_up() {
        let mapped = mapping(0..3, 0xf_0000);
        let foreign: BTreeSet<u32> = mapped
            .iter()
            .filter_map(|entry| match entry {
                SetEntry::IpPortMark(.., 1, mark) => Some(*mark),
                _ => None,
            })
            .collect();
        let marks = allocated(&wanted(0..3), &mapped, &foreign, mask(0xf_0000));
        assert!(!foreign.contains(&marks[&record(1)]));
        assert!(mapped.contains(&entry(2, marks[&record(2)])));
        let marks = allocated(&wanted(0..3), &mapped, &foreign, mask(0xf00_0000));
        assert!(marks.values().all(|mark| mask(0xf00_0000).contains(*mark)));
    }

    #[test]
    fn a_set_keeps_its_own_marks() {
        let mapped = mapping(0..1, 0xf_0000);
        let mut wanted = wanted(0..1);
        for marked in wanted.values_mut() {
            marked.set = SetName::BalancedMark;
        }
        let marks = allocated(&wanted, &mapped, &none_foreign(), mask(0xf_0000));
        // The other set maps the same frontend to the mark that this record's name asks for.
        assert!(!mapped.contains(&entry(0, marks[&record(0)])));
    }
}
