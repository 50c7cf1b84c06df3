// SPDX-License-Identifier: Apache-2.0

//! The JSON schema and the parser agree about structure: over all files on disk, and over files
//! in which one value was replaced.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

use portolan_director::{Already, File, parse, schema};
use serde_json::{Value, json};

/// The texts of a directory's files, sorted by name.
fn texts(directory: &str) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(directory);
    let mut texts: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect();
    texts.sort();
    texts
}

/// Documents of ours in a file; nothing if its YAML is broken.
fn ours(text: &str) -> Option<Vec<Value>> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).ok()?;
    let is_ours = |document: &Value| {
        let version = document.get("apiVersion").and_then(Value::as_str);
        version.is_none_or(|version| version.starts_with("portolan.dev/"))
    };
    Some(documents.into_iter().filter(is_ours).collect())
}

fn validator() -> jsonschema::Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(&schema())
        .unwrap()
}

#[test]
fn the_schema_is_valid() {
    jsonschema::meta::validate(&schema()).unwrap();
}

#[test]
fn good_files_and_those_whose_meaning_is_broken_have_the_right_structure() {
    let validator = validator();
    let broken = texts("broken")
        .into_iter()
        .filter(|(_, text)| text.contains("# meaning\n"));
    let mut count = 0;
    for (name, text) in texts("good").into_iter().chain(broken) {
        let structural = name.contains("syntax-") || name.contains("all-at-once");
        let structural = structural || name.contains("sysctl-name");
        for document in ours(&text).filter(|_| !structural).into_iter().flatten() {
            let errors: Vec<_> = validator
                .iter_errors(&document)
                .map(|e| e.to_string())
                .collect();
            assert!(errors.is_empty(), "{name}: {errors:#?}");
            count += 1;
        }
    }
    assert!(count >= 60, "{count}");
}

#[test]
fn files_whose_structure_is_broken_are_refused_by_both() {
    let validator = validator();
    let mut count = 0;
    for (name, text) in texts("broken") {
        if text.contains("# structure\n") {
            let documents = ours(&text).unwrap();
            assert!(
                documents
                    .iter()
                    .any(|document| !validator.is_valid(document)),
                "{name}"
            );
            count += 1;
        }
    }
    assert!(count >= 20, "{count}");
}

/// The values that stand in for each value of the good files.
fn replacements() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(7),
        json!(4_294_967_296_u64),
        json!(1.5),
        json!(""),
        json!("x"),
        json!("5s"),
        json!("192.0.2.1"),
        json!("fe80::1%eth0"),
        json!([]),
        json!(["/x"]),
        json!({}),
        json!({"unknown": 1}),
    ]
}

/// All paths of a value.
fn pointers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    found.push(pointer.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(field, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Messages that only the parser's structural checks give: `VALUE: expected`, `unknown field`,
/// `missing: expected` and `has N items`. What a file means is not the schema's business, so the
/// parser may refuse more; it must refuse all that the schema refuses.
#[test]
fn what_the_schema_refuses_the_parser_refuses() {
    let validator = validator();
    let mut refused = 0;
    for (name, text) in texts("good") {
        for document in ours(&text).unwrap() {
            let mut paths = Vec::new();
            pointers(&document, "", &mut paths);
            let paths = paths.iter().filter(|path| path.starts_with("/spec"));
            let mut replacements = replacements().into_iter().cycle();
            for path in paths {
                // Three for each value: all of them meet all kinds of values in the end.
                for replacement in replacements.by_ref().take(3) {
                    let mut changed = document.clone();
                    *changed.pointer_mut(path).unwrap() = replacement;
                    if !validator.is_valid(&changed) {
                        refused += 1;
                        let text = changed.to_string();
                        let file = File {
                            name: "x.json",
                            text: &text,
                        };
                        let parsed = parse(&[file], &Already::default());
                        assert!(parsed.is_err(), "{name}: {path}: {text}");
                    }
                }
            }
        }
    }
    assert!(refused > 300, "{refused}");
}
