// SPDX-License-Identifier: Apache-2.0

//! Deserialization of the used fields only: most bytes of an object are managed fields and, of a
//! Node, images and conditions that change all the time.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The parts of a value to keep.
#[derive(Debug)]
pub(super) enum Keep {
    /// All of it.
    All,
    /// These fields of an object, or of each object in a list; other values are kept whole.
    Only(&'static [(&'static str, Keep)]),
}

impl Keep {
    fn field(&self, name: &str) -> Option<&Self> {
        match self {
            Self::All => Some(self),
            Self::Only(fields) => {
                let field = fields.iter().find(|(field, _)| *field == name)?;
                Some(&field.1)
            }
        }
    }
}

/// Reads a value as pruned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pruned(pub(super) &'static Keep);

impl<'de> DeserializeSeed<'de> for Pruned {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            Keep::All => Value::deserialize(deserializer),
            Keep::Only(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Pruned {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            match self.0.field(&name) {
                Some(keep) => _ = kept.insert(name, map.next_value_seed(Pruned(keep))?),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Value::Object(kept))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            kept.push(value);
        }
        Ok(Value::Array(kept))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEEP: Keep = Keep::Only(&[("a", Keep::All), ("b", Keep::Only(&[("c", Keep::All)]))]);

    fn pruned(value: &Value) -> Value {
        let text = value.to_string();
        let mut deserializer = serde_json::Deserializer::from_str(&text);
        let pruned = Pruned(&KEEP).deserialize(&mut deserializer).unwrap();
        deserializer.end().unwrap();
        // A value that was read before, as in an event of a watch, gives the same result.
        assert_eq!(Pruned(&KEEP).deserialize(value).unwrap(), pruned);
        pruned
    }

    #[test]
    fn only_kept_fields_are_read() {
        let value = json!({
            "a": {"x": [1, -2, 0.5, null, true]},
            "b": [{"c": 1, "d": {"c": 2}}, "text", null, {"d": 3}],
            "e": {"a": 1},
        });
        let expected = json!({
            "a": {"x": [1, -2, 0.5, null, true]},
            "b": [{"c": 1}, "text", null, {}],
        });
        assert_eq!(pruned(&value), expected);
    }

    #[test]
    fn other_values_are_kept_for_their_reader_to_refuse() {
        for value in [
            json!(1),
            json!(-1),
            json!("x"),
            json!(null),
            json!(false),
            json!([0.5]),
        ] {
            assert_eq!(pruned(&value), value);
        }
    }
}
