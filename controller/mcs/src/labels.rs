// SPDX-License-Identifier: Apache-2.0

//! Exported labels and annotations that an API server accepts. ServiceExports may have any text as a key: one
//! bad export would otherwise keep the ServiceImport from being written in all clusters.

use std::collections::BTreeMap;

use portolan_federate::imports::ImportName;

/// The most labels, and the most annotations, that travel.
const MOST: usize = 64;
/// The most bytes of all annotations that travel.
const BYTES: usize = 32 << 10;
/// Keys of this domain say something of the import itself.
const OURS: &str = "portolan.dev/";

/// The labels that an API server accepts, at most 64 of them.
pub(crate) fn labels(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let good = given
        .iter()
        .filter(|(key, value)| is_key(key) && (value.is_empty() || is_name(value)));
    let good = good.take(MOST);
    good.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The annotations that an API server accepts, at most 64 of them and 32 KiB.
pub(crate) fn annotations(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut bytes = 0;
    let good = given.iter().filter(|(key, _)| is_key(key)).take(MOST);
    let good = good.filter(|(key, value)| {
        let more = bytes + key.len() + value.len();
        let fits = more <= BYTES;
        bytes = if fits { more } else { bytes };
        fits
    });
    good.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns `true` if a namespace and a name are those of an object: DNS labels.
pub(crate) fn is_object(name: &ImportName) -> bool {
    is_label(&name.namespace) && is_label(&name.name)
}

/// Returns `true` if a text is a qualified name, and not one of ours.
fn is_key(key: &str) -> bool {
    if key.starts_with(OURS) {
        return false;
    }
    match key.split_once('/') {
        None => is_name(key),
        Some((domain, name)) => is_domain(domain) && is_name(name),
    }
}

/// 1 to 63 letters, digits, `-`, `_` and `.`, the first and the last a letter or digit.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().into_iter().chain(bytes.last());
    (1..=63).contains(&bytes.len())
        && ends.copied().all(|end| end.is_ascii_alphanumeric())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// A DNS subdomain in lower case.
pub(crate) fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A DNS label in lower case.
pub(crate) fn is_label(text: &str) -> bool {
    let mut bytes = text.bytes();
    is_name(text)
        && bytes.all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn what_an_api_server_refuses_does_not_travel() {
        let long = "a".repeat(64);
        let good = [("app", "web"), ("example.com/a.b_c", ""), ("B", "1")];
        let bad = [
            ("", "a"),
            ("bad key", "a"),
            ("Example.com/a", "a"),
            ("a/b/c", "a"),
            ("/a", "a"),
            ("a/", "a"),
            (&*long, "a"),
            ("portolan.dev/winner", "us-1"),
        ];
        assert_eq!(labels(&map(&[&good[..], &bad].concat())), map(&good));
        assert_eq!(annotations(&map(&[&good[..], &bad].concat())), map(&good));
        for value in ["a b", &long, "-", "ä"] {
            assert_eq!(labels(&map(&[("app", value)])), map(&[]), "{value}");
            assert_eq!(annotations(&map(&[("app", value)])).len(), 1);
        }
    }

    #[test]
    fn they_are_bounded() {
        let many: Vec<String> = (0..1000).map(|number| format!("k{number:04}")).collect();
        let many: BTreeMap<_, _> = many
            .into_iter()
            .map(|key| (key, String::from("v")))
            .collect();
        assert_eq!(labels(&many).len(), MOST);
        assert_eq!(annotations(&many).len(), MOST);
        let large = "x".repeat(BYTES);
        let kept = annotations(&map(&[("a", &large), ("b", "small")]));
        assert_eq!(kept, map(&[("b", "small")]));
    }
}
