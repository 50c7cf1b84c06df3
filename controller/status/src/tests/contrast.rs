// SPDX-License-Identifier: Apache-2.0

//! Contrast of the colours, by the rule of WCAG 2: at least 4.5 for text.

use std::collections::BTreeMap;

use crate::asset;

const LEAST: f64 = 4.5;
/// Backgrounds, and what stands on them.
const BACKGROUNDS: [&str; 2] = ["page", "panel"];
const TEXTS: [&str; 6] = ["text", "quiet", "link", "good", "warn", "bad"];

/// The colours of the light and of the dark theme.
fn themes() -> [BTreeMap<String, [u8; 3]>; 2] {
    let css = asset("style.css").unwrap().text;
    let (light, dark) = css.split_once("prefers-color-scheme: dark").unwrap();
    let dark = dark.split("* {").next().unwrap();
    [light, dark].map(colours)
}

fn colours(css: &str) -> BTreeMap<String, [u8; 3]> {
    let variables = css.split("--").skip(1);
    let variables = variables.filter_map(|rest| rest.split(';').next()?.split_once(": #"));
    let channel = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    variables
        .map(|(name, hex)| (name.to_owned(), [0, 2, 4].map(|at| channel(hex, at))))
        .collect()
}

fn luminance(colour: [u8; 3]) -> f64 {
    let linear = colour.map(|channel| {
        let value = f64::from(channel) / 255.0;
        match value <= 0.04045 {
            true => value / 12.92,
            false => ((value + 0.055) / 1.055).powf(2.4),
        }
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
    let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
    a.max(b) / a.min(b)
}

#[test]
fn the_rule_is_that_of_wcag() {
    assert!((contrast([0; 3], [255; 3]) - 21.0).abs() < 0.01);
    // #767676 on white is the lightest grey that passes.
    assert!(contrast([0x76; 3], [255; 3]) > LEAST && contrast([0x77; 3], [255; 3]) < LEAST);
}

#[test]
fn every_text_can_be_read_in_both_themes() {
    for (theme, colours) in ["light", "dark"].into_iter().zip(themes()) {
        assert_eq!(colours.len(), 9, "{theme}: {colours:?}");
        for background in BACKGROUNDS {
            for text in TEXTS {
                let found = contrast(colours[text], colours[background]);
                assert!(
                    found >= LEAST,
                    "{theme}: {text} on {background}: {found:.2}"
                );
            }
        }
    }
}
