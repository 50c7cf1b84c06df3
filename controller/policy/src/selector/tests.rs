// SPDX-License-Identifier: Apache-2.0

use super::*;

fn selector(spec: &SelectorSpec) -> Selector {
    let mut faults = Faults::default();
    let selector = Selector::new(spec, &Path::default(), &mut faults);
    faults.into_result(selector).unwrap()
}

fn names(names: &[&str]) -> SelectorSpec {
    SelectorSpec {
        names: names.iter().map(ToString::to_string).collect(),
        ..SelectorSpec::default()
    }
}

fn expression(operator: Operator, values: &[&str]) -> SelectorSpec {
    SelectorSpec {
        match_expressions: vec![ExpressionSpec {
            key: "tier".into(),
            operator,
            values: values.iter().map(ToString::to_string).collect(),
        }],
        ..SelectorSpec::default()
    }
}

#[test]
fn all_parts_of_a_selector_must_hold() {
    let prod = Labels::from([("tier".into(), "prod".into())]);
    let both = SelectorSpec {
        match_labels: prod.clone(),
        ..names(&["eu-*", "us-1"])
    };
    let cases = [
        (SelectorSpec::default(), "x", &Labels::new(), true),
        (names(&["eu-*"]), "eu-1", &prod, true),
        (names(&["eu-*"]), "us-1", &prod, false),
        (names(&["eu-1"]), "eu-12", &prod, false),
        (names(&["a", "*"]), "b", &prod, true),
        (both.clone(), "us-1", &prod, true),
        (both.clone(), "us-1", &Labels::new(), false),
        (both, "us-2", &prod, false),
        (
            expression(Operator::In, &["test", "prod"]),
            "x",
            &prod,
            true,
        ),
        (expression(Operator::In, &["test"]), "x", &prod, false),
        (
            expression(Operator::In, &["test"]),
            "x",
            &Labels::new(),
            false,
        ),
        (expression(Operator::NotIn, &["test"]), "x", &prod, true),
        (expression(Operator::NotIn, &["prod"]), "x", &prod, false),
        (
            expression(Operator::NotIn, &["prod"]),
            "x",
            &Labels::new(),
            true,
        ),
        (expression(Operator::Exists, &[]), "x", &prod, true),
        (
            expression(Operator::Exists, &[]),
            "x",
            &Labels::new(),
            false,
        ),
        (expression(Operator::DoesNotExist, &[]), "x", &prod, false),
        (
            expression(Operator::DoesNotExist, &[]),
            "x",
            &Labels::new(),
            true,
        ),
    ];
    for (spec, name, labels, expected) in cases {
        assert_eq!(
            selector(&spec).selects(name, labels),
            expected,
            "{spec:?} {name} {labels:?}"
        );
    }
}

#[test]
fn a_star_alone_is_no_name() {
    assert_eq!(selector(&names(&["*"])).closeness(), Closeness::All);
    assert_eq!(selector(&names(&["a", "*"])).closeness(), Closeness::All);
    assert_eq!(selector(&names(&["a*"])).closeness(), Closeness::Names);
    assert_eq!(
        selector(&expression(Operator::Exists, &[])).closeness(),
        Closeness::Selector
    );
}
