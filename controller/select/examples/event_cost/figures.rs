// SPDX-License-Identifier: Apache-2.0

//! Lines of results, processor time, and the published form of a delta.

use std::time::Duration;

use portolan_proto::convert::{encode_lists, encode_record};
use portolan_proto::encoded::encode;
use portolan_select::TableDelta;
use rustix::time::{ClockId, clock_gettime};

/// Prints a figure and whether it meets its goal.
pub(crate) fn goal(name: &str, value: f64, unit: &str, operator: &str, bound: f64) {
    let met = match operator {
        "<=" => value <= bound,
        _ => value >= bound,
    };
    let verdict = if met { "ok" } else { "short" };
    println!("figure {name} {value:.2} {unit} goal {operator} {bound} {verdict}");
}

/// The thread's processor time, which excludes other load on the machine.
pub(crate) fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a clock that began at 0")
}

/// Hashes and encodes a delta as before publication. Returns the encoded length.
pub(crate) fn prepare(delta: &TableDelta) -> usize {
    let records = delta.records.values().flatten();
    let records = records.map(|record| encode(&encode_record(record, record.content_hash())).len());
    let lists = delta.lists.values().flatten();
    let lists = lists.filter_map(|(key, lists)| Some((key, lists.as_ref()?)));
    let lists =
        lists.map(|(key, lists)| encode(&encode_lists(key, lists, lists.content_hash(key))).len());
    records.sum::<usize>() + lists.sum::<usize>()
}
