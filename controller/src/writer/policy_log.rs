// SPDX-License-Identifier: Apache-2.0

//! The audit log of the policy: a line for each object that comes into force, changes or goes.

use std::collections::BTreeSet;

use portolan_policy::{ObjectName, Objects};

/// Writes the lines of one policy that takes the place of another one.
pub(super) fn note(before: &Objects, after: &Objects) {
    for (object, change) in changes(before, after) {
        tracing::info!(target: "audit", %object, change, "audit: the policy changed");
    }
}

fn changes(before: &Objects, after: &Objects) -> Vec<(ObjectName, &'static str)> {
    let names: BTreeSet<_> = before.names().into_iter().chain(after.names()).collect();
    let changes = names.into_iter().filter_map(|name| {
        let change = match (before.get(&name), after.get(&name)) {
            (None, Some(_)) => "added",
            (Some(_), None) => "removed",
            (before, after) if before != after => "changed",
            _ => return None,
        };
        Some((name, change))
    });
    changes.collect()
}

#[cfg(test)]
mod tests {
    use portolan_policy::{File, read};

    use super::*;

    fn policies(texts: &[(&str, &str)]) -> Objects {
        let document = |(name, spec): &(&str, &str)| {
            format!(
                "apiVersion: portolan.dev/v1alpha1\nkind: ExportPolicy\nmetadata: {{name: {name}}}\n\
                 spec: {spec}\n---\n"
            )
        };
        let text: String = texts.iter().map(document).collect();
        let reading = read(&[File {
            name: "policy",
            text: &text,
        }]);
        assert_eq!(reading.problems, []);
        reading.objects
    }

    #[test]
    fn each_object_that_differs_is_a_line() {
        let allow = "{services: {namespaces: [shop]}, action: Allow}";
        let deny = "{services: {namespaces: [shop]}, action: Deny}";
        let before = policies(&[("gone", allow), ("other", allow), ("same", allow)]);
        let after = policies(&[("new", allow), ("other", deny), ("same", allow)]);
        let found = changes(&before, &after).into_iter();
        let found: Vec<_> = found.map(|(name, change)| (name.name, change)).collect();
        let expected = [("gone", "removed"), ("new", "added"), ("other", "changed")];
        assert_eq!(
            found,
            expected.map(|(name, change)| (name.to_owned(), change))
        );
        assert!(changes(&after, &after).is_empty());
    }
}
