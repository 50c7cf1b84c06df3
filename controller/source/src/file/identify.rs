// SPDX-License-Identifier: Apache-2.0

//! Identification of the object in a document whose YAML is broken.
//!
//! Looks at lines only: `kind` and, under `metadata`, `name` and `namespace`, each written plainly
//! and once. In doubt, the object is unknown, and the deletions of the whole file are held back.

use std::sync::Arc;

use portolan_catalog::{Kind, ObjectRef};

use crate::objects;

pub(super) fn identify(text: &str, cluster: &Arc<str>) -> Option<ObjectRef> {
    // The last line may have been cut short.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut kind = Field::default();
    let mut name = Field::default();
    let mut namespace = Field::default();
    let mut in_metadata = false;
    let mut indent = None;
    for line in complete.lines() {
        let content = line.trim_start_matches(' ');
        let depth = line.len() - content.len();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if depth == 0 {
            in_metadata = content.trim_end() == "metadata:";
            indent = None;
            kind.read_line(content, "kind");
        } else if in_metadata && *indent.get_or_insert(depth) == depth {
            name.read_line(content, "name");
            namespace.read_line(content, "namespace");
        }
    }
    let kind = match kind.value? {
        "Service" => Kind::Service,
        "EndpointSlice" => Kind::EndpointSlice,
        "Node" => Kind::Node,
        "Pod" => Kind::Pod,
        "Namespace" => Kind::Namespace,
        "ServiceExport" => Kind::ServiceExport,
        "ClusterProperty" => Kind::ClusterProperty,
        _ => return None,
    };
    objects::named(kind, name.once(), namespace.once(), cluster)
}

#[derive(Default)]
struct Field<'t> {
    value: Option<&'t str>,
    count: usize,
}

impl<'t> Field<'t> {
    fn read_line(&mut self, content: &'t str, key: &str) {
        let value = content
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix(':'));
        if let Some(value) = value {
            self.count += 1;
            self.value = plain(value);
        }
    }

    fn once(&self) -> Option<&'t str> {
        self.value.filter(|_| self.count == 1)
    }
}

/// A scalar that can be nothing but a name.
fn plain(value: &str) -> Option<&str> {
    let value = value.split_once(" #").map_or(value, |(value, _)| value);
    let value = value.trim().trim_matches(['"', '\'']);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!value.is_empty() && value.chars().all(is_name)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identified(text: &str) -> Option<String> {
        identify(text, &Arc::from("")).map(|object| object.to_string())
    }

    #[test]
    fn a_plainly_written_object_is_identified() {
        let text = "apiVersion: v1\nkind: Service # ours\nmetadata:\n  labels:\n    name: no\n  \
                    name: 'web'\n  namespace: prod\nspec: [\n  name: x\n";
        assert_eq!(identified(text).as_deref(), Some("Service prod/web"));
        let node = "kind: Node\nmetadata:\n  name: n1\n{";
        assert_eq!(identified(node).as_deref(), Some("Node n1"));
    }

    #[test]
    fn in_doubt_nothing_is_identified() {
        let cases = [
            "kind: Service\nmetadata:\n  name: web\n",
            "kind: Service\nmetadata:\n  namespace: a\n  name: we",
            "kind: Service\nmetadata:\n  namespace: a\n  name: x\n  name: y\n",
            "kind: Service\nmetadata: {name: a, namespace: b}\n",
            "kind: List\nmetadata:\n  name: a\n  namespace: b\n",
            "metadata:\n  name: a\n  namespace: b\n",
        ];
        for text in cases {
            assert_eq!(identified(text), None, "{text}");
        }
    }
}
