// SPDX-License-Identifier: Apache-2.0

//! Keys of a list: scrolling and a filter. Pure.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Rows of a page, for the keys that turn pages.
const PAGE: usize = 10;

/// Characters of a filter, at most.
const MAX_FILTER: usize = 64;

/// The part of a list that is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Browse {
    /// Rows have this in their name or address; all do if it is empty.
    pub filter: String,
    /// Whether keys are letters of the filter.
    pub is_typing: bool,
    /// Rows that are left out above.
    pub offset: usize,
}

/// Purpose of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    /// The end of the view.
    Quit,
    /// The list, or nothing.
    Done,
    /// Anything else.
    Other(KeyCode),
}

impl Browse {
    /// Takes a key. The offset may pass the last row: see [`Self::limit`].
    pub fn press(&mut self, key: KeyEvent) -> Pressed {
        if key.kind == KeyEventKind::Release {
            return Pressed::Done;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Pressed::Quit,
            _ if self.is_typing => self.type_key(key.code),
            KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.offset = self.offset.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(PAGE),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(PAGE),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = usize::MAX,
            other => return Pressed::Other(other),
        }
        Pressed::Done
    }

    /// Keeps the offset within a list of this length.
    pub fn limit(&mut self, rows: usize) {
        self.offset = self.offset.min(rows.saturating_sub(1));
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }
}
