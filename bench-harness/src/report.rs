//! How results are shown: a table for people, or one JSON object per line.

use serde_json::{Map, Value};

/// Rows with named columns.
#[derive(Debug, Default)]
pub struct Report {
    json: bool,
    rows: Vec<Map<String, Value>>,
}

impl Report {
    /// `json`: each row is printed at once, as one line.
    pub fn new(json: bool) -> Self {
        Self { json, rows: Vec::new() }
    }

    /// Adds a row, which is a JSON object.
    ///
    /// # Panics
    /// When `row` is no object.
    pub fn add(&mut self, row: Value) {
        let Value::Object(row) = row else { panic!("a row is an object") };
        if self.json {
            println!("{}", Value::Object(row));
        } else {
            self.rows.push(row);
        }
    }

    /// Prints the table (nothing in JSON mode, where it is out already).
    pub fn finish(self) {
        let Some(first) = self.rows.first() else { return };
        let columns: Vec<&String> = first.keys().collect();
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| columns.iter().map(|c| row.get(*c).map_or(String::new(), show)).collect())
            .collect();
        let widths: Vec<usize> = columns
            .iter()
            .enumerate()
            .map(|(i, name)| cells.iter().map(|row| row[i].len()).fold(name.len(), usize::max))
            .collect();
        let line = |cells: &[String]| {
            let padded: Vec<String> = cells
                .iter()
                .zip(&widths)
                .map(|(cell, width)| {
                    let numeric = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
                    if numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                })
                .collect();
            println!("| {} |", padded.join(" | "));
        };
        line(&columns.iter().map(|name| (*name).clone()).collect::<Vec<_>>());
        println!("|{}|", widths.iter().map(|w| "-".repeat(w + 2)).collect::<Vec<_>>().join("|"));
        cells.iter().for_each(|row| line(row));
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(n) if !number.is_u64() && !number.is_i64() => {
                if n.abs() >= 100.0 {
                    format!("{n:.0}")
                } else if n.abs() >= 1.0 {
                    format!("{n:.2}")
                } else {
                    format!("{n:.4}")
                }
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// Rounds for a row, so that JSON lines stay readable.
pub fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}
