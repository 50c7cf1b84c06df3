// SPDX-License-Identifier: Apache-2.0

//! The live view as a frame. Pure: the same view and size give the same frame.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::super::table::{BACKEND_HEADINGS, HEADINGS, backend_row, notes, plain, row};
use super::view::{Condition, View, backend_condition, condition};

/// Columns of virtual servers that a narrow terminal lacks, the first one first. They are places in [`HEADINGS`].
const DISPENSABLE: [usize; 7] = [3, 2, 7, 10, 9, 5, 8];

/// Columns of backends that a narrow terminal lacks, the first one first. They are places in [`BACKEND_HEADINGS`].
const DISPENSABLE_OF_BACKENDS: [usize; 8] = [1, 7, 10, 9, 8, 3, 6, 11];

/// Space between two columns.
const GAP: u16 = 2;

/// Lines of notes, at most.
const MAX_NOTES: u16 = 6;

/// Rows of virtual servers above those of backends, at most.
const MAX_SERVERS: u16 = 6;

/// A row of a table, and how well it serves.
type Cells = (Vec<String>, Condition);

/// Draws the view.
pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let rows = view.rows();
    let servers: Vec<Cells> = rows
        .iter()
        .map(|(balancer, server)| (row(balancer, server).to_vec(), condition(balancer, server)))
        .collect();
    let notes = notes_of(view);
    let of_notes = u16::try_from(notes.len()).unwrap_or(MAX_NOTES);
    let of_servers = match view.with_backends {
        true => Constraint::Length(1 + height(&servers).min(MAX_SERVERS)),
        false => Constraint::Fill(1),
    };
    let of_backends = match view.with_backends {
        true => Constraint::Fill(1),
        false => Constraint::Length(0),
    };
    let areas = Layout::vertical([
        Constraint::Length(1),
        of_servers,
        of_backends,
        Constraint::Length(of_notes.min(MAX_NOTES)),
        Constraint::Length(1),
    ]);
    let [head, top, bottom, below, foot] = areas.areas(frame.area());
    frame.render_widget(heading(view, &servers), head);
    let of_top = if view.with_backends { 0 } else { view.offset };
    draw_table(
        frame,
        top,
        &HEADINGS,
        &DISPENSABLE,
        &servers[of_top.min(servers.len())..],
    );
    if view.with_backends {
        let backends = view.backends();
        let cells: Vec<Cells> = backends
            .iter()
            .map(|(_, each)| (backend_row(each).to_vec(), backend_condition(each)))
            .collect();
        let shown = &cells[view.offset.min(cells.len())..];
        draw_table(
            frame,
            bottom,
            &BACKEND_HEADINGS,
            &DISPENSABLE_OF_BACKENDS,
            shown,
        );
    }
    frame.render_widget(Paragraph::new(notes), below);
    frame.render_widget(Paragraph::new(footer(view)), foot);
}

fn height(rows: &[Cells]) -> u16 {
    u16::try_from(rows.len()).unwrap_or(u16::MAX - 1)
}

/// When the answer was given, and how many rows are not as they should be.
fn heading(view: &View, servers: &[Cells]) -> Paragraph<'static> {
    let of = |wanted| servers.iter().filter(|(_, each)| *each == wanted).count();
    let (bad, reduced) = (of(Condition::Bad), of(Condition::Reduced));
    let revision = view.overview.revision;
    let revision = revision.map_or("no table yet".to_owned(), |number| {
        format!("revision {number}")
    });
    let text = format!(
        "{}  {revision}  {} virtual servers: {bad} bad, {reduced} reduced",
        view.overview.at,
        servers.len()
    );
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::BOLD))
}

/// What the tables do not say.
fn notes_of(view: &View) -> Vec<Line<'static>> {
    let error = view.error.iter();
    let error = error.map(|error| Line::styled(format!("# {}", plain(error)), Color::Red));
    let text = notes(&view.overview);
    let others = text.lines().map(|line| Line::raw(line.to_owned()));
    let lines: Vec<_> = error.chain(others).collect();
    let room = usize::from(MAX_NOTES);
    match lines.len().checked_sub(room) {
        None | Some(0) => lines,
        Some(left_out) => {
            let more = format!("# {} more: `portolan-agent status`", left_out + 1);
            let shown = lines.into_iter().take(room - 1);
            shown.chain([Line::raw(more)]).collect()
        }
    }
}

fn footer(view: &View) -> Line<'static> {
    if view.is_typing {
        return Line::raw(format!("filter: {}_  Enter keep  Esc clear", view.filter));
    }
    let filter = match view.filter.as_str() {
        "" => String::new(),
        filter => format!("  filter: {filter}"),
    };
    let sort = view.sort.name();
    Line::raw(format!(
        "q quit  s sort: {sort}  / filter{filter}  ↑↓ scroll"
    ))
}

fn draw_table(
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
