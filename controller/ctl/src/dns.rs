// SPDX-License-Identifier: Apache-2.0

//! `portolanctl dns`.

use serde_json::Value;

/// Shows an answer in the form of `dig`, without constant parts.
pub(crate) fn show(answer: &Value) -> String {
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    let mut shown = format!("{} {}: {}\n", text("name"), text("type"), text("code"));
    for (section, title) in [
        ("answers", ""),
        ("authorities", "authority"),
        ("additionals", "additional"),
    ] {
        let lines = answer[section].as_array().into_iter().flatten();
        let lines: Vec<_> = lines.filter_map(Value::as_str).collect();
        if !title.is_empty() && !lines.is_empty() {
            shown.push_str(&format!("{title}:\n"));
        }
        for line in lines {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_sections_are_left_out() {
        let answer = json!({"name": "web.", "type": "A", "code": "NOERROR",
            "answers": ["web. 5 IN A 10.0.0.1"], "authorities": [], "additionals": []});
        assert_eq!(show(&answer), "web. A: NOERROR\nweb. 5 IN A 10.0.0.1\n");
        let nothing = json!({"name": "x.", "type": "A", "code": "NXDOMAIN",
            "answers": [], "authorities": ["soa"], "additionals": []});
        assert_eq!(show(&nothing), "x. A: NXDOMAIN\nauthority:\nsoa\n");
    }
}
