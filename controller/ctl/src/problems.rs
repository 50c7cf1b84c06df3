// SPDX-License-Identifier: Apache-2.0

//! `portolanctl problems`.

use serde_json::Value;

use crate::reply::Reply;

/// Shows the answer of `/debug/problems`, one problem a line.
pub(crate) fn show(answer: Value) -> Reply {
    let mut text: String = list(&answer)
        .map(|problem| format!("{problem}\n"))
        .collect();
    if text.is_empty() {
        text.push_str("no problems\n");
    }
    Reply::new(answer, text)
}

/// Problems of objects, then those of files.
pub(crate) fn list(answer: &Value) -> impl Iterator<Item = &str> {
    let of = |kind: &str| answer[kind].as_array().into_iter().flatten();
    of("objects").chain(of("files")).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_have_a_line_each() {
        let answer = json!({"objects": ["Service a/b: x"], "files": ["c.yaml: y"]});
        assert_eq!(show(answer).text, "Service a/b: x\nc.yaml: y\n");
        assert_eq!(
            show(json!({"objects": [], "files": []})).text,
            "no problems\n"
        );
    }
}
