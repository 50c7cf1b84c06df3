// SPDX-License-Identifier: Apache-2.0

//! The reference of annotations in `docs/reference`.

use portolan_model::ipvs::SCHEDULERS;

use super::{DRAIN_TIMEOUT, FLAGS, MAX_WEIGHT, SCHEDULER, SCHEDULER_FLAGS, WEIGHT};

fn code(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

#[test]
fn the_reference_of_annotations_is_that_of_the_code() {
    let schedulers = code(&SCHEDULERS);
    let flags = code(&FLAGS.map(|(name, ..)| name));
    let rows = [
        (
            &SCHEDULER[..],
            "Service",
            format!("The scheduler of the Service's virtual servers: {schedulers}. Default: the agent's `--scheduler`"),
        ),
        (
            &SCHEDULER_FLAGS,
            "Service",
            format!("Flags of the scheduler, separated by commas: {flags}. An empty value stands for no flags. Default: the fallback flag of `mh` and `sh`"),
        ),
        (
            &DRAIN_TIMEOUT,
            "Service",
            "How long a removed TCP endpoint keeps its connections: `90`, `30s`, `5m`, `1h`; `0` resets them at once. Default: the agent's `--drain-timeout`".to_owned(),
        ),
        (
            &WEIGHT,
            "Node; Pod, with `--pod-weights`, which precedes its Node's",
            format!("The share of new connections of the endpoints there, 0 to {MAX_WEIGHT}. Default: 1"),
        ),
    ];
    let mut page = "An unusable value is a problem of the reason `invalid_value`, and the default is used. An unknown \
                    annotation of the same prefixes is one of the reason `unsupported`. Of two names the first counts.\n\n\
                    | annotation | object | value |\n|---|---|---|\n"
        .to_owned();
    for (names, object, value) in rows {
        page += &format!("| {} | {object} | {value} |\n", code(names));
    }
    portolan_reference::compare("annotations.md", "Annotations", &page);
}
