// SPDX-License-Identifier: Apache-2.0

//! Flags of a command line.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use crate::cell;

/// A page of all flags of a program and its subcommands; hidden ones are left out.
#[must_use]
pub fn flags(mut command: Command) -> String {
    command.build();
    let mut page = String::new();
    section(&command, None, 2, &mut page);
    page
}

/// Writes a command and its subcommands. Flags that it shares with its parent are named and not
/// explained again.
fn section(command: &Command, parent: Option<(&str, &[String])>, level: usize, page: &mut String) {
    let (of, above) = parent.unwrap_or_default();
    let path = format!("{of} {}", command.get_name());
    let path = path.trim();
    let _ = writeln!(page, "{} `{path}`\n", "#".repeat(level));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = writeln!(page, "{about}\n");
    }
    let all = command.get_arguments().filter(|arg| is_listed(arg));
    let all: Vec<&Arg> = all.collect();
    let rows: Vec<String> = all.iter().map(|arg| row(arg)).collect();
    let is_shared = |arg: &&Arg| above.contains(&row(arg));
    let (shared, args): (Vec<&Arg>, Vec<&Arg>) = all.into_iter().partition(is_shared);
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        let _ = writeln!(page, "**{}**\n", heading.unwrap_or("Options"));
        page.push_str("| flag | environment | default | meaning |\n|---|---|---|---|\n");
        let under = args.iter().filter(|arg| arg.get_help_heading() == heading);
        under.for_each(|arg| page.push_str(&row(arg)));
        page.push('\n');
    }
    if !shared.is_empty() && shared.len() == above.len() {
        let _ = writeln!(page, "All flags of `{of}` are accepted too.\n");
    } else if !shared.is_empty() {
        let names: Vec<String> = shared.into_iter().map(names).collect();
        let _ = writeln!(
            page,
            "Flags of `{of}` are accepted too: {}.\n",
            names.join(", ")
        );
    }
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            section(inner, Some((path, &rows)), level + 1, page);
        }
    }
}

fn is_listed(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

fn row(arg: &Arg) -> String {
    let environment = arg.get_env().map(|name| format!("`{}`", name.display()));
    let help = arg.get_long_help().or(arg.get_help());
    let mut meaning = help.map(ToString::to_string).unwrap_or_default();
    // clap drops the full stop of a single sentence.
    if !meaning.is_empty() && !meaning.ends_with('.') {
        meaning.push('.');
    }
    let values: Vec<String> = match is_switch(arg) {
        true => Vec::new(),
        false => arg
            .get_possible_values()
            .iter()
            .map(|v| format!("`{}`", v.get_name()))
            .collect(),
    };
    if !values.is_empty() {
        let _ = write!(meaning, " One of {}.", values.join(", "));
    }
    format!(
        "| {} | {} | {} | {} |\n",
        cell(&names(arg)),
        environment.unwrap_or_default(),
        cell(&default(arg)),
        cell(meaning.trim()),
    )
}

/// All visible names with the placeholder of the value.
fn names(arg: &Arg) -> String {
    let mut names: Vec<String> = Vec::new();
    names.extend(arg.get_short().map(|short| format!("`-{short}`")));
    names.extend(arg.get_long().map(|long| format!("`--{long}`")));
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        names.push(format!("`--{alias}`"));
    }
    if arg.is_positional() {
        names.push(format!("`{}`", arg.get_id().as_str().to_uppercase()));
    }
    names.join(", ")
}

fn default(arg: &Arg) -> String {
    if is_switch(arg) {
        return "off".to_owned();
    }
    let values = arg.get_default_values().iter();
    let values: Vec<String> = values
        .map(|value| format!("`{}`", value.display()))
        .collect();
    values.join(", ")
}

/// Returns `true` if a flag takes no value.
fn is_switch(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count
    )
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::flags;

    #[test]
    fn a_page_has_every_visible_flag_once() {
        let hidden = Arg::new("old").long("old").hide(true);
        let switch = Arg::new("b")
            .long("bold")
            .action(ArgAction::SetTrue)
            .help("a | b");
        let valued = Arg::new("mode")
            .long("mode")
            .default_value("x")
            .value_parser(["x", "y"]);
        let sub = Command::new("sub")
            .about("Inner")
            .arg(Arg::new("file").required(true));
        let command = Command::new("tool")
            .args([hidden, switch, valued])
            .subcommand(sub);
        let page = flags(command);
        assert!(page.contains("| `--bold` |  | off | a \\| b. |"), "{page}");
        assert!(
            page.contains("| `--mode` |  | `x` | One of `x`, `y`. |"),
            "{page}"
        );
        assert!(page.contains("### `tool sub`\n\nInner\n"), "{page}");
        assert!(page.contains("| `FILE` |"), "{page}");
        assert!(
            !page.contains("`--old`") && !page.contains("`--help`"),
            "{page}"
        );
    }

    #[test]
    fn flags_of_the_parent_are_named_and_not_explained_again() {
        let flag = |name: &'static str| {
            let arg = Arg::new(name).long(name).action(ArgAction::SetTrue);
            arg.help(format!("Sets {name}"))
        };
        let all = Command::new("all").args([flag("a"), flag("b"), flag("c")]);
        let some = Command::new("some").args([flag("b").help("Another b"), flag("a")]);
        let command = Command::new("tool").args([flag("a"), flag("b")]);
        let page = flags(command.subcommand(all).subcommand(some));
        assert_eq!(page.matches("Sets a.").count(), 1, "{page}");
        assert!(
            page.contains("Sets c.") && page.contains("Another b."),
            "{page}"
        );
        let whole = "All flags of `tool` are accepted too.";
        assert_eq!(page.matches(whole).count(), 1, "{page}");
        let part = "Flags of `tool` are accepted too: `--a`.";
        assert!(page.contains(part), "{page}");
    }
}
