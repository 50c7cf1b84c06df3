// SPDX-License-Identifier: Apache-2.0

//! Text in columns.

/// Aligns the cells of rows. Rows have no trailing spaces.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(&format!("{cell:<width$}  ", width = width(column)));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_are_aligned_without_trailing_space() {
        let rows = [["A", "B", "C"], ["long", "", "x"], ["", "é", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "A     B  C\nlong     x\n      é\n");
    }
}
