// SPDX-License-Identifier: Apache-2.0

//! `portolanctl deletions` and `portolanctl confirm --deletions`.

use std::fmt::Write as _;

use serde_json::Value;

/// Shows a line for each kind with deletions that are held back, or were confirmed.
pub(crate) fn show(answer: &Value, state: &str) -> String {
    let mut text = String::new();
    for held in answer["held"].as_array().into_iter().flatten() {
        let kind = held["kind"].as_str().unwrap_or_default();
        let names = ["controller", "cluster"].map(|field| held[field].as_str().unwrap_or_default());
        let named = names.iter().filter(|name| !name.is_empty());
        let place: String = named.map(|name| format!("{name}: ")).collect();
        let (objects, of) = (&held["objects"], &held["ofObjects"]);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{place}{kind}: the deletion of {objects} of {of} {state}"
        );
        if held["ofReadyEndpoints"].as_u64() > Some(0) {
            let (ready, of) = (&held["readyEndpoints"], &held["ofReadyEndpoints"]);
            let _ = write!(text, ", with {ready} of {of} ready endpoints");
        }
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no deletions are held back\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_has_a_line() {
        let slices = json!({"kind": "EndpointSlice", "objects": 90, "ofObjects": 100,
            "readyEndpoints": 170, "ofReadyEndpoints": 200});
        let services = json!({"cluster": "eu-1", "kind": "Service", "objects": 60, "ofObjects": 70,
            "readyEndpoints": 0, "ofReadyEndpoints": 0});
        let text = show(&json!({"held": [services, slices]}), "is held back");
        assert_eq!(
            text,
            "eu-1: Service: the deletion of 60 of 70 is held back\n\
             EndpointSlice: the deletion of 90 of 100 is held back, with 170 of 200 ready endpoints\n"
        );
        assert_eq!(
            show(&json!({"held": []}), "is held back"),
            "no deletions are held back\n"
        );
    }
}
