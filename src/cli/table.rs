//! Tables of plain text.

use std::io::{self, Write};

use super::console::Paint;
use super::text::clean_line;

/// Rows under a header, as wide as they need to be. The last column is not filled up.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows yet.
    pub fn new(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(str::to_owned)] }
    }

    /// Adds a row; the cells may come from anywhere.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| match clean_line(&cell) {
            cell if cell.is_empty() => "-".to_owned(),
            cell => cell,
        }));
    }

    /// Whether it has nothing but a header.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Prints it.
    pub fn print(&self, out: &mut dyn Write, paint: Paint) -> io::Result<()> {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for (number, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            let line = line.trim_end();
            if number == 0 {
                writeln!(out, "{}", paint.dim(line))?;
            } else {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new(["ID", "HELD", "NOTE"]);
        table.row(["a-long-id", "", "x"].map(str::to_owned));
        table.row(["é", "two\nlines", ""].map(str::to_owned));
        let mut out = Vec::new();
        table.print(&mut out, Paint(false)).unwrap();
        let lines =
            "ID         HELD       NOTE\na-long-id  -          x\né          two␊lines  -\n";
        assert_eq!(String::from_utf8(out).unwrap(), lines);
    }
}
