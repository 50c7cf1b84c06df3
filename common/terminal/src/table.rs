// SPDX-License-Identifier: Apache-2.0

//! Tables whose columns fit the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Row, Table};

/// Space between two columns.
const GAP: u16 = 2;

/// Condition of the object of a row; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// It does not serve, or something could not be programmed.
    Bad,
    /// It serves with less than all, or late.
    Reduced,
    /// All is well.
    Good,
}

/// A row of a table, and how well its object is.
pub type Cells = (Vec<String>, Condition);

/// Draws rows below headings, as many as fit. Columns that do not fit are left out in the order of `dispensable`,
/// whose numbers are places in `headings`.
pub fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    headings: &[&str],
    dispensable: &[usize],
    rows: &[Cells],
) {
    let room = usize::from(area.height.saturating_sub(1));
    let rows = &rows[..rows.len().min(room)];
    let columns = columns(headings, dispensable, rows, area.width);
    let cells = |cells: &[String]| {
        let shown = columns
            .iter()
            .filter_map(|(column, _)| cells.get(*column).cloned());
        Row::new(shown.collect::<Vec<_>>())
    };
    let head: Vec<_> = headings
        .iter()
        .map(|heading| (*heading).to_owned())
        .collect();
    let lines = rows
        .iter()
        .map(|(each, condition)| cells(each).style(style(*condition)));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(lines.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(cells(&head).style(Style::new().add_modifier(Modifier::REVERSED)))
        .column_spacing(GAP);
    frame.render_widget(table, area);
}

fn style(condition: Condition) -> Style {
    match condition {
        Condition::Bad => Style::new().fg(Color::Red),
        Condition::Reduced => Style::new().fg(Color::Yellow),
        Condition::Good => Style::new(),
    }
}

/// The columns that fit, with their widths: the widest cell's. The first one is cut if it does not fit alone.
fn columns(
    headings: &[&str],
    dispensable: &[usize],
    rows: &[Cells],
    room: u16,
) -> Vec<(usize, u16)> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|(cells, _)| cells.get(column));
        let cells = cells.map(|cell| cell.chars().count());
        let widest = cells.chain([headings[column].chars().count()]).max();
        u16::try_from(widest.unwrap_or(0)).unwrap_or(u16::MAX)
    };
    let mut columns: Vec<_> = (0..headings.len())
        .map(|each| (each, width(each)))
        .collect();
    let needed = |columns: &[(usize, u16)]| {
        let widths = columns.iter().map(|(_, width)| u32::from(*width));
        widths
            .map(|width| width + u32::from(GAP))
            .sum::<u32>()
            .saturating_sub(u32::from(GAP))
    };
    for column in dispensable {
        if needed(&columns) <= u32::from(room) {
            break;
        }
        columns.retain(|(each, _)| each != column);
    }
    let excess = needed(&columns).saturating_sub(u32::from(room));
    if let (Some((_, first)), Ok(excess)) = (columns.first_mut(), u16::try_from(excess)) {
        *first = first.saturating_sub(excess).max(1);
    }
    columns
}
