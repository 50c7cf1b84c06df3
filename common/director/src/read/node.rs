// SPDX-License-Identifier: Apache-2.0

//! Values of YAML and JSON that know their places.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::line::place;
use crate::problem::Position;

/// Broken YAML or JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// The place in the file.
    pub at: Position,
    /// Description of the fault.
    pub message: String,
}

impl SyntaxError {
    pub(super) fn moved(mut self, lines: u64) -> Self {
        self.at.line += lines;
        self
    }
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The place in the file.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// A value of YAML or JSON.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the notations' own kinds of values")]
pub enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A field's name and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// The place in the file.
    pub at: Position,
    /// The name.
    pub name: String,
}

impl Node {
    /// The value of one YAML document.
    pub(super) fn yaml(text: &str) -> Result<Self, SyntaxError> {
        let parsed: Result<Spanned<Value>, _> =
            serde_saphyr::from_str_with_options(text, yaml_options());
        parsed.map(Self::from).map_err(|error| SyntaxError {
            at: error.location().map_or_else(Position::default, position),
            message: without_position(
                &error.render_with_formatter(&serde_saphyr::UserMessageFormatter),
            ),
        })
    }

    /// The value of a JSON text. Its syntax is JSON's; the places come from its reading as YAML,
    /// of which JSON is a part but for tabs between values.
    pub(super) fn json(text: &str) -> Result<Self, SyntaxError> {
        if let Err(error) = serde_json::from_str::<de::IgnoredAny>(text) {
            return Err(SyntaxError {
                at: json_position(text, &error),
                message: without_position(&error.to_string()),
            });
        }
        Self::yaml(&text.replace('\t', " "))
    }

    /// The same value at other places.
    pub(super) fn moved(mut self, change: &impl Fn(&mut Position)) -> Self {
        change(&mut self.at);
        match &mut self.value {
            Value::List(items) => {
                for item in items {
                    *item = std::mem::replace(item, Self::null()).moved(change);
                }
            }
            Value::Map(fields) => {
                for (key, field) in fields {
                    change(&mut key.at);
                    *field = std::mem::replace(field, Self::null()).moved(change);
                }
            }
            _ => {}
        }
        self
    }

    fn null() -> Self {
        Self {
            at: Position::default(),
            value: Value::Null,
        }
    }

    /// A field of a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Value::Map(fields) = &self.value else {
            return None;
        };
        fields
            .iter()
            .find(|(key, _)| key.name == name)
            .map(|(_, field)| field)
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The place of the field with this path, or of the innermost value around it that is there.
    #[must_use]
    pub fn locate(&self, path: &str) -> Position {
        self.find(path).at
    }

    fn find(&self, path: &str) -> &Self {
        let inner = match &self.value {
            Value::Map(fields) => fields.iter().find_map(|(key, field)| {
                let rest = match path.strip_prefix('[') {
                    Some(named) => named.strip_prefix(&key.name)?.strip_prefix(']')?,
                    None => path
                        .strip_prefix('.')
                        .unwrap_or(path)
                        .strip_prefix(&key.name)?,
                };
                let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                ends.then_some((field, rest))
            }),
            Value::List(items) => path
                .strip_prefix('[')
                .and_then(|rest| rest.split_once(']'))
                .and_then(|(index, rest)| Some((items.get(index.parse::<usize>().ok()?)?, rest))),
            _ => None,
        };
        match inner {
            Some((node, rest)) if !path.is_empty() => node.find(rest),
            _ => self,
        }
    }

    /// The value without places.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Integer(value) => i64::try_from(*value)
                .map(Json::from)
                .or_else(|_| u64::try_from(*value).map(Json::from))
                .unwrap_or_else(|_| Json::String(value.to_string())),
            Value::Float(value) => Json::from(*value),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(fields) => fields
                .iter()
                .map(|(key, field)| (key.name.clone(), field.to_json()))
                .collect(),
        }
    }
}

impl fmt::Display for Node {
    /// As a message shows it: scalars as they are, texts in quotes, others by their kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Null => f.write_str("empty"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Integer(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Text(text) if text.chars().count() > 60 => {
                write!(f, "{:?}...", text.chars().take(60).collect::<String>())
            }
            Value::Text(text) => write!(f, "{text:?}"),
            Value::List(_) => f.write_str("a list"),
            Value::Map(_) => f.write_str("fields"),
        }
    }
}

/// YAML 1.2 with Kubernetes' booleans, without limits on size: 4,096 backends in one document are
/// no attack. The limits on nesting and aliases stay.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
    }
}

/// Both parsers end their messages with a position, which a problem has already.
fn without_position(message: &str) -> String {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message)
        .to_owned()
}

/// The place of a syntax error, whose column `serde_json` counts in bytes.
fn json_position(text: &str, error: &serde_json::Error) -> Position {
    let earlier = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    place(text, earlier.map(str::len).sum::<usize>() + error.column())
}

fn position(location: serde_saphyr::Location) -> Position {
    Position {
        line: location.line(),
        column: location.column(),
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            at: position(spanned.referenced),
            value: spanned.value,
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(i128::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(Value::Text(String::from_utf8_lossy(value).into_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Value>>()? {
            items.push(Node::from(item));
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, field)) = access.next_entry::<Spanned<String>, Spanned<Value>>()? {
            let key = Key {
                at: position(key.referenced),
                name: key.value,
            };
            fields.push((key, Node::from(field)));
        }
        Ok(Value::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_types_and_places() {
        let node =
            Node::yaml("a: 1\nb: '1'\nc: [x, 0x10, ~, true, yes, 1.5]\nd.e/f: {g: 1}\n").unwrap();
        assert_eq!(node.get("a").unwrap().value, Value::Integer(1));
        assert_eq!(node.get("b").unwrap().value, Value::Text("1".into()));
        let Value::List(items) = &node.get("c").unwrap().value else {
            panic!("a list");
        };
        let values: Vec<_> = items.iter().map(|item| item.value.clone()).collect();
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(
            values,
            [
                text("x"),
                Value::Integer(16),
                Value::Null,
                Value::Bool(true),
                text("yes"),
                Value::Float(1.5)
            ]
        );
        assert_eq!(items[1].at, Position { line: 3, column: 8 });
        let Value::Map(fields) = &node.value else {
            panic!("a map");
        };
        assert_eq!(fields[1].0.at, Position { line: 2, column: 1 });
        assert_eq!(node.locate("c[1]"), Position { line: 3, column: 8 });
        assert_eq!(
            node.locate("[d.e/f].g"),
            Position {
                line: 4,
                column: 12
            }
        );
        assert_eq!(node.locate("c[9]"), Position { line: 3, column: 4 });
    }

    #[test]
    fn json_may_have_tabs_and_must_be_json() {
        let node = Node::json("{\n\t\"a\": [1,\t2]\n}").unwrap();
        assert_eq!(
            node.locate("a[1]"),
            Position {
                line: 2,
                column: 11
            }
        );
        let error = Node::json("{a: 1}").unwrap_err();
        assert_eq!(
            (error.at.line, error.message.as_str()),
            (1, "key must be a string")
        );
    }
}
