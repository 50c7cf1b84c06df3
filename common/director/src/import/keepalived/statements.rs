// SPDX-License-Identifier: Apache-2.0

//! The syntax of keepalived.conf: words, quotes, comments, blocks, `include`, `$VAR`, `@id`.

use std::collections::HashMap;
use std::iter::Peekable;

use super::{Options, origin};
use crate::generation::File;
use crate::import::{Class, Draft, Origin};

/// Maximum depth of files that include each other.
const DEPTH: usize = 16;

/// Most files that are included, one that is included twice counted twice.
const FILES: usize = 4096;

/// Most bytes of included files and of values in the place of variables. The words that become of them
/// take a hundred times as much memory at worst.
const TEXT: usize = 4 << 20;

/// Maximum depth of nested blocks. keepalived has four levels; each is read by a call within another.
const BLOCKS: usize = 32;

/// One statement: a line of words and, if there is one, the block after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) origin: Origin,
    /// The words, at least one.
    pub(super) words: Vec<String>,
    pub(super) block: Vec<Statement>,
}

impl Statement {
    pub(super) fn name(&self) -> &str {
        &self.words[0]
    }

    /// The word after the name.
    pub(super) fn value(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str)
    }

    /// The word after the name as a number.
    pub(super) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        self.value()?.parse().ok()
    }
}

/// All statements of a file and of those that it includes.
pub(super) fn read(draft: &mut Draft, file: File<'_>, options: &Options<'_>) -> Vec<Statement> {
    let mut lexer = Lexer {
        options,
        variables: HashMap::new(),
        tokens: Vec::new(),
        files: 0,
        text: 0,
        is_over: false,
    };
    lexer.file(draft, file.name, file.text, 0);
    let mut tokens = lexer.tokens.into_iter().peekable();
    let mut statements = block(draft, &mut tokens, 0);
    while let Some((origin, _)) = tokens.next() {
        draft.note(&origin, Class::Error, "}", "closes no block");
        statements.extend(block(draft, &mut tokens, 0));
    }
    statements
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Open,
    Close,
    End,
}

type Tokens = Peekable<std::vec::IntoIter<(Origin, Token)>>;

struct Lexer<'a> {
    options: &'a Options<'a>,
    variables: HashMap<String, String>,
    tokens: Vec<(Origin, Token)>,
    /// Included files, and bytes of these and of values of variables.
    files: usize,
    text: usize,
    /// Whether there are more of them than may be, after which nothing else is read.
    is_over: bool,
}

impl Lexer<'_> {
    fn file(&mut self, draft: &mut Draft, name: &str, text: &str, depth: usize) {
        let mut lines = (1..).zip(text.lines());
        while let Some((number, line)) = lines.next() {
            let mut line = line.to_owned();
            while let Some(start) = line.strip_suffix('\\') {
                let Some((_, next)) = lines.next() else {
                    break;
                };
                line = format!("{start}{}", next.trim_start());
            }
            if self.is_over {
                return;
            }
            self.line(draft, &origin(name, number), &line, depth);
        }
    }

    /// Notes that there is too much of something, and reads nothing else.
    fn over(&mut self, draft: &mut Draft, origin: &Origin, setting: &str, message: &str) {
        draft.note(origin, Class::Error, setting, message);
        self.is_over = true;
    }

    /// Counts bytes that the first file does not have; whether they are few enough.
    fn takes(&mut self, draft: &mut Draft, origin: &Origin, setting: &str, bytes: usize) -> bool {
        self.text = self.text.saturating_add(bytes);
        if self.text > TEXT {
            let message = format!(
                "included files and values of variables have more than {} MiB",
                TEXT >> 20
            );
            self.over(draft, origin, setting, &message);
        }
        self.text <= TEXT
    }

    fn line(&mut self, draft: &mut Draft, origin: &Origin, line: &str, depth: usize) {
        let Some(line) = self.selected(line.trim()) else {
            return;
        };
        if let Some((name, value)) = definition(line) {
            if let Some(value) = self.substituted(draft, origin, uncommented(value).trim()) {
                self.variables.insert(name.to_owned(), value);
            }
            return;
        }
        let plain = uncommented(line);
        if plain.contains("~SEQ") || plain.contains("~LST") {
            draft.note(origin, Class::Error, "~SEQ, ~LST", "expected written out");
            return;
        }
        let Some(line) = self.substituted(draft, origin, line) else {
            return;
        };
        let words = match words(&line) {
            Ok(words) => words,
            Err(message) => {
                draft.note(origin, Class::Error, "quotes", message);
                return;
            }
        };
        match &words[..] {
            [Token::Word(name), Token::Word(pattern), ..] if name.starts_with("include") => {
                self.include(draft, origin, pattern, depth);
            }
            [] => {}
            _ => {
                let tokens = words.into_iter().chain([Token::End]);
                self.tokens
                    .extend(tokens.map(|token| (origin.clone(), token)));
            }
        }
    }

    /// The line, without its condition `@id` or `@^id`, if that holds.
    fn selected<'l>(&self, line: &'l str) -> Option<&'l str> {
        let Some(condition) = line.strip_prefix('@') else {
            return Some(line);
        };
        let (id, rest) = condition
            .split_once(char::is_whitespace)
            .unwrap_or((condition, ""));
        let holds = match id.strip_prefix('^') {
            Some(id) => self.options.config_id != Some(id),
            None => self.options.config_id == Some(id),
        };
        holds.then_some(rest.trim_start())
    }

    /// `$NAME` and `${NAME}` by their values; unknown ones stay. Nothing if the values are too long.
    fn substituted(&mut self, draft: &mut Draft, origin: &Origin, line: &str) -> Option<String> {
        let mut text = String::new();
        let mut rest = line;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            let (name, end) = match after
                .strip_prefix('{')
                .and_then(|inner| inner.split_once('}'))
            {
                Some((name, _)) => (name, name.len() + 2),
                None => {
                    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                    let end = after.find(is_end).unwrap_or(after.len());
                    (&after[..end], end)
                }
            };
            let length = self.variables.get(name).map_or(0, String::len);
            if !self.takes(draft, origin, "$", length) {
                return None;
            }
            match self.variables.get(name) {
                Some(value) => text.push_str(value),
                None => text.push_str(&rest[at..=at + end]),
            }
            rest = &after[end..];
        }
        Some(text + rest)
    }

    fn include(&mut self, draft: &mut Draft, origin: &Origin, pattern: &str, depth: usize) {
        let files = (self.options.include)(&origin.file, pattern);
        if files.is_empty() {
            draft.note(
                origin,
                Class::Nearest,
                "include",
                format!("no file is {pattern}"),
            );
            return;
        }
        if depth >= DEPTH {
            let message = "files include each other without end";
            return self.over(draft, origin, "include", message);
        }
        draft.note(origin, Class::Same, "include", "");
        for (name, text) in files {
            self.files += 1;
            if self.files > FILES {
                let message = format!("more than {FILES} files are included");
                return self.over(draft, origin, "include", &message);
            }
            let text = match text {
                Ok(text) => text,
                Err(error) => {
                    draft.note(origin, Class::Error, "include", format!("{name}: {error}"));
                    continue;
                }
            };
            if self.is_over || !self.takes(draft, origin, "include", text.len()) {
                return;
            }
            self.file(draft, &name, &text, depth + 1);
        }
    }
}

/// `$NAME=value`.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix('$')?.split_once('=')?;
    let name = name.trim_end();
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !name.is_empty()).then_some((name, value))
}

/// A text up to a comment, which begins outside of quotes.
fn uncommented(text: &str) -> &str {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if quote == Some(c) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            '#' | '!' if quote.is_none() => return &text[..at],
            _ => {}
        }
    }
    text
}

/// The words of a line, up to a comment, which begins within a word too.
fn words(line: &str) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut characters = line.chars().peekable();
    while let Some(&c) = characters.peek() {
        match c {
            '#' | '!' => break,
            '{' | '}' => {
                characters.next();
                tokens.push(if c == '{' { Token::Open } else { Token::Close });
            }
            '"' | '\'' => {
                characters.next();
                tokens.push(Token::Word(quoted(&mut characters, c)?));
            }
            _ if c.is_whitespace() => {
                characters.next();
            }
            _ => {
                let mut word = String::new();
                let is_part = |c: &char| !c.is_whitespace() && !"{}\"'#!".contains(*c);
                while let Some(c) = characters.next_if(is_part) {
                    match characters.next_if(|next| c == '\\' && "\\#!".contains(*next)) {
                        Some('\\') => word.push_str("\\\\"),
                        // A backslash makes a character of what would begin a comment.
                        Some(next) => word.push(next),
                        None => word.push(c),
                    }
                }
                tokens.push(Token::Word(word));
            }
        }
    }
    Ok(tokens)
}

/// The rest of a quoted word; in double quotes, a backslash takes the next character as it is.
fn quoted(
    characters: &mut Peekable<std::str::Chars<'_>>,
    quote: char,
) -> Result<String, &'static str> {
    let mut word = String::new();
    while let Some(c) = characters.next() {
        match c {
            _ if c == quote => return Ok(word),
            '\\' if quote == '"' => match characters.next() {
                Some('n') => word.push('\n'),
                Some('r') => word.push('\r'),
                Some('t') => word.push('\t'),
                Some(next @ ('"' | '\\')) => word.push(next),
                // Regular expressions keep their backslashes.
                Some(next) => word.extend(['\\', next]),
                None => break,
            },
            _ => word.push(c),
        }
    }
    Err("not closed: expected a closing quote in the same line")
}

/// Statements up to the end of a block within `depth` others, or to a `}` that closes none.
fn block(draft: &mut Draft, tokens: &mut Tokens, depth: usize) -> Vec<Statement> {
    let mut statements: Vec<Statement> = Vec::new();
    let mut is_new = true;
    while let Some((origin, token)) = tokens.next_if(|(_, token)| *token != Token::Close) {
        match token {
            Token::End => is_new = true,
            Token::Word(word) => match statements.last_mut() {
                Some(statement) if !is_new => statement.words.push(word),
                _ => {
                    statements.push(Statement {
                        origin,
                        words: vec![word],
                        block: Vec::new(),
                    });
                    is_new = false;
                }
            },
            Token::Open => {
                let inner = if depth < BLOCKS {
                    block(draft, tokens, depth + 1)
                } else {
                    let message =
                        format!("in {depth} other blocks: expected at most {}", BLOCKS - 1);
                    draft.note(&origin, Class::Error, "{", message);
                    skip(tokens);
                    Vec::new()
                };
                if tokens.next().is_none() {
                    draft.note(&origin, Class::Error, "{", "not closed: expected }");
                }
                match statements.last_mut() {
                    Some(statement) => statement.block.extend(inner),
                    None => draft.note(&origin, Class::Error, "{", "belongs to nothing"),
                }
                is_new = true;
            }
            Token::Close => {}
        }
    }
    statements
}

/// Passes over the rest of a block, up to its `}`.
fn skip(tokens: &mut Tokens) {
    let mut open = 0_usize;
    while let Some((_, token)) = tokens.next_if(|(_, token)| open > 0 || *token != Token::Close) {
        match token {
            Token::Open => open += 1,
            Token::Close => open -= 1,
            Token::Word(_) | Token::End => {}
        }
    }
}
