// SPDX-License-Identifier: Apache-2.0

//! The canonical text of objects: fields in one order, defaults left out.
//!
//! Reading the text gives the same object, and writing that gives the same text.

mod balancer;
mod check;
mod director;

use std::time::Duration;

use serde::Serialize;

use crate::balancer::LoadBalancer;
use crate::director::Director;
use crate::document::{DirectorDocument, LoadBalancerDocument, Period};
use crate::generation::Generation;

impl LoadBalancer {
    /// The object as a document, with what is not a default.
    #[must_use]
    pub fn to_document(&self) -> LoadBalancerDocument {
        balancer::document(self)
    }

    /// The object as canonical YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        to_yaml(&self.to_document())
    }
}

impl Director {
    /// The object as a document, with what is not a default.
    #[must_use]
    pub fn to_document(&self) -> DirectorDocument {
        director::document(self)
    }

    /// The object as canonical YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        to_yaml(&self.to_document())
    }
}

impl Generation {
    /// All objects as canonical YAML, directors first, one document each.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let directors = self.directors.iter().map(Director::to_yaml);
        let balancers = self.load_balancers.iter().map(|object| object.to_yaml());
        directors.chain(balancers).collect::<Vec<_>>().join("---\n")
    }
}

/// One document. Long texts stay on their line, so that they are easy to search for.
pub(crate) fn to_yaml(document: &impl Serialize) -> String {
    let options = serde_saphyr::ser_options! {
        prefer_block_scalars: false,
    };
    // Documents have only maps with text keys, lists and scalars, all of which YAML has.
    serde_saphyr::to_string_with_options(document, options).unwrap_or_default()
}

/// A value that is not the default.
fn unless<T: PartialEq>(value: T, default: &T) -> Option<T> {
    Some(value).filter(|value| value != default)
}

fn period(duration: Duration) -> Period {
    Period::new(duration)
}
