// SPDX-License-Identifier: Apache-2.0

//! Objects of an API server.

use portolan_director::Position;
use portolan_director::read::{Key, Node, Value};
use serde_json::Value as Json;

use crate::ObjectName;
use crate::spec::API_VERSION;

/// An object of an API server. Its name is known, whatever is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    /// Kind and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub created: Option<i64>,
    /// `metadata.labels`; null if there are none.
    pub labels: Json,
    /// `spec`; null if there is none.
    pub spec: Json,
}

impl Served {
    /// The object as a document of a file.
    pub(crate) fn document(&self) -> Node {
        let text = |text: &str| node(&Json::from(text));
        let mut metadata = vec![(key("name"), text(&self.name.name))];
        if !self.labels.is_null() {
            metadata.push((key("labels"), node(&self.labels)));
        }
        let mut fields = vec![
            (key("apiVersion"), text(API_VERSION)),
            (key("kind"), text(self.name.kind.as_str())),
            (key("metadata"), placed(Value::Map(metadata))),
        ];
        if !self.spec.is_null() {
            fields.push((key("spec"), node(&self.spec)));
        }
        placed(Value::Map(fields))
    }
}

fn placed(value: Value) -> Node {
    Node {
        at: Position::default(),
        value,
    }
}

fn key(name: &str) -> Key {
    Key {
        at: Position::default(),
        name: name.to_owned(),
    }
}

fn node(json: &Json) -> Node {
    placed(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            let integer = number.as_i64().map(i128::from);
            let integer = integer.or_else(|| number.as_u64().map(i128::from));
            match integer {
                Some(integer) => Value::Integer(integer),
                None => Value::Float(number.as_f64().unwrap_or_default()),
            }
        }
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(node).collect()),
        Json::Object(fields) => {
            let fields = fields.iter();
            Value::Map(
                fields
                    .map(|(name, value)| (key(name), node(value)))
                    .collect(),
            )
        }
    })
}
