// SPDX-License-Identifier: Apache-2.0

//! Location of fields in a document.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A document's shape: no values, only where each is.
#[derive(Debug)]
pub(super) enum Shape {
    Scalar,
    Map(Vec<(String, Spanned<Shape>)>),
    List(Vec<Spanned<Shape>>),
}

impl Shape {
    /// Line and column of the field with this path (`spec.ports[0].port`); if it is missing, of
    /// the innermost field around it that is there.
    pub(super) fn locate(&self, path: &str) -> Option<(u64, u64)> {
        let (inner, rest) = match self {
            Self::Scalar => return None,
            Self::Map(fields) if path.starts_with('[') => {
                // An annotation's name, in brackets because it has dots.
                let (name, rest) = path.strip_prefix('[')?.split_once(']')?;
                let named = fields.iter().find(|(key, _)| key == name);
                named.map(|(_, field)| (field, rest))?
            }
            Self::Map(fields) => {
                let path = path.strip_prefix('.').unwrap_or(path);
                fields.iter().find_map(|(key, field)| {
                    // By the keys that there are, because a key may have dots of its own.
                    let rest = path.strip_prefix(key.as_str())?;
                    let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                    ends.then_some((field, rest))
                })?
            }
            Self::List(elements) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                (elements.get(index.parse::<usize>().ok()?)?, rest)
            }
        };
        let here = (inner.referenced.line(), inner.referenced.column());
        Some(inner.value.locate(rest).unwrap_or(here))
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

/// All scalars are alike here.
macro_rules! visit_scalars {
    ($($visit:ident($type:ty)),*) => {
        $(fn $visit<E: de::Error>(self, _: $type) -> Result<Shape, E> {
            Ok(Shape::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    visit_scalars!(
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_i128(i128),
        visit_u128(u128),
        visit_f64(f64),
        visit_str(&str),
        visit_bytes(&[u8])
    );

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Scalar)
    }

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Scalar)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        Shape::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Shape, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element()? {
            elements.push(element);
        }
        Ok(Shape::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Shape, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(Shape::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_or_the_innermost_one_around_it_is_found() {
        let text = "metadata:\n  labels:\n    a.b/c: x\nspec:\n  ports:\n    - port: 1\n    - 2\n";
        let shape: Shape = serde_saphyr::from_str(text).unwrap();
        let cases = [
            ("metadata.labels.a.b/c", Some((3, 12))),
            ("metadata.labels[a.b/c]", Some((3, 12))),
            ("metadata.labels[a.b]", Some((3, 5))),
            ("spec.ports[0].port", Some((6, 13))),
            ("spec.ports[0].nodePort", Some((6, 7))),
            ("spec.ports[1]", Some((7, 7))),
            ("spec.ports[9].port", Some((6, 5))),
            ("status", None),
            ("", None),
        ];
        for (path, expected) in cases {
            assert_eq!(shape.locate(path), expected, "{path}");
        }
    }
}
