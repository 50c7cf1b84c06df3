// SPDX-License-Identifier: Apache-2.0

//! A document without fields whose structure is wrong, so that the rest can be checked too.

use super::node::{Node, Value};
use super::path::Path;

/// The document without these fields. Of a list with a wrong item the whole field is left out,
/// unless the item is a map, since the places of the others must stay the same.
pub(crate) fn without(document: &Node, fields: &[String]) -> Node {
    pruned(document, &Path::default(), fields)
}

fn pruned(node: &Node, path: &Path, fields: &[String]) -> Node {
    let value = match &node.value {
        Value::Map(entries) => Value::Map(
            entries
                .iter()
                .filter(|(key, field)| !is_left_out(field, &path.field(&key.name), fields))
                .map(|(key, field)| (key.clone(), pruned(field, &path.field(&key.name), fields)))
                .collect(),
        ),
        Value::List(items) => Value::List(
            (0..)
                .zip(items)
                .map(|(index, item)| pruned(item, &path.item(index), fields))
                .collect(),
        ),
        scalar => scalar.clone(),
    };
    Node { at: node.at, value }
}

fn is_left_out(node: &Node, path: &Path, fields: &[String]) -> bool {
    let is_wrong = |path: &Path| fields.iter().any(|field| field == path.as_str());
    let Value::List(items) = &node.value else {
        return is_wrong(path);
    };
    let mut items = (0..).zip(items);
    is_wrong(path) || items.any(|(index, _)| is_wrong(&path.item(index)))
}
