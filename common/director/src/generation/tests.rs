// SPDX-License-Identifier: Apache-2.0

use super::*;

fn text(weights: &[u16]) -> String {
    let one = |(number, weight): (usize, &u16)| {
        format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: lb{number}}}\nspec:\n  \
             frontends: [{{addresses: [192.0.2.{number}], port: 80}}]\n  scheduler: wrr\n  \
             backends: [{{address: 10.0.0.1, weight: {weight}}}]\n"
        )
    };
    weights
        .iter()
        .enumerate()
        .map(|(number, weight)| (number + 1, weight))
        .map(one)
        .collect()
}

/// Reads texts one after the other in both ways, and returns the results, which are equal.
fn read(texts: &[String]) -> Vec<Result<Generation, Vec<Problem>>> {
    let mut former = Former::default();
    let already = Already::default();
    let mut all = Vec::new();
    for text in texts {
        let file = [File {
            name: "lb.yaml",
            text,
        }];
        let again = parse_again(&file, &already, &mut former);
        assert_eq!(again, parse(&file, &already), "{text}");
        all.push(again);
    }
    all
}

#[test]
fn what_was_not_parsed_again_is_the_same() {
    let bad = text(&[1, 2, 4]).replace("weight: 4", "weight: x");
    let twice = text(&[1, 2, 3]).replace("lb3", "lb2");
    // The same line is a warning each time.
    let warned = text(&[1, 2]).replace("wrr", "rr").replace(
        "10.0.0.1, weight: 2",
        "10.0.0.1, weight: 2}, {address: 10.0.0.2, weight: 3",
    );
    let moved = format!("# one line more\n{}", text(&[1, 2, 3]));
    let texts = [
        text(&[1, 2, 3]),
        text(&[1, 5, 3]),
        bad,
        text(&[1, 5, 3]),
        twice,
        moved,
        warned.clone(),
        warned,
        text(&[1]),
    ];
    let all = read(&texts);
    let is_good: Vec<_> = all.iter().map(Result::is_ok).collect();
    assert_eq!(
        is_good,
        [true, true, false, true, false, true, true, true, true]
    );
    let warnings = |index: usize| all[index].as_ref().unwrap().warnings.len();
    assert!(warnings(6) > 0);
    assert_eq!(warnings(6), warnings(7));
}

#[test]
fn a_text_that_moves_to_a_file_of_another_format_is_parsed() {
    let text = text(&[1]);
    let file = |name| [File { name, text: &text }];
    let mut former = Former::default();
    let already = Already::default();
    parse_again(&file("a.yaml"), &already, &mut former).unwrap();
    let moved = parse_again(&file("a.json"), &already, &mut former);
    assert!(moved.is_err(), "YAML is no JSON");
    assert_eq!(moved, parse(&file("a.json"), &already));
    // Back again it is right.
    assert!(parse_again(&file("a.yaml"), &already, &mut former).is_ok());
}

#[test]
fn documents_as_before_are_not_parsed() {
    let (before, after) = (text(&[1, 2]), text(&[1, 3]));
    let file = |text| {
        [File {
            name: "lb.yaml",
            text,
        }]
    };
    let mut former = Former::default();
    parse_again(&file(&before), &Already::default(), &mut former).unwrap();
    // A sign in what is remembered of the first document shows up.
    for document in former.documents.values_mut() {
        Arc::make_mut(&mut document.object).source_nat = true;
    }
    let read = parse_again(&file(&after), &Already::default(), &mut former).unwrap();
    let signs = read.load_balancers.iter().map(|object| object.source_nat);
    assert!(signs.eq([true, false]));
    assert_eq!(former.documents.len(), 2);
}
