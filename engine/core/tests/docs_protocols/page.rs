//! A page as the rules see it.

use crate::rules::{Findings, finding};

pub(crate) const SECTIONS: [&str; 5] =
    ["States", "Invariants", "Orderings", "Not shown", "Cost and progress"];

/// A name in backticks, and the line on which it stands.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    pub(crate) line: usize,
}

/// A row of the ordering table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) models: Vec<Name>,
    pub(crate) mutants: Vec<Name>,
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) file: String,
    pub(crate) code: Vec<Name>,
    /// The checks of each invariant.
    pub(crate) invariants: Vec<Vec<Name>>,
    pub(crate) rows: Vec<Row>,
}

fn names(text: &str, line: usize) -> Vec<Name> {
    let spans = text.split('`').skip(1).step_by(2);
    spans.map(|name| Name { name: name.to_owned(), line }).collect()
}

impl Page {
    /// Reads a page, and says where it has not the form of one.
    pub(crate) fn parse(file: &str, text: &str, findings: &mut Findings) -> Self {
        let mut page = Self {
            file: file.to_owned(),
            code: Vec::new(),
            invariants: Vec::new(),
            rows: Vec::new(),
        };
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).collect();
        let heads: Vec<(usize, &str)> = lines
            .iter()
            .filter_map(|(line, text)| Some((*line, text.strip_prefix("## ")?)))
            .collect();
        for (at, wanted) in SECTIONS.iter().enumerate() {
            let (line, found) = heads.get(at).copied().unwrap_or((lines.len(), "nothing"));
            if found != *wanted {
                let order = SECTIONS.join(", ");
                findings.push(finding(
                    file,
                    line,
                    &format!("section {} is `{found}`", at + 1),
                    &format!("a page has the sections {order}, in this order"),
                ));
                return page;
            }
        }
        let of = |at: usize| {
            let (from, to) =
                (heads[at].0, heads.get(at + 1).map_or(lines.len() + 1, |head| head.0));
            &lines[from..to - 1]
        };
        page.head(&lines[..heads[0].0 - 1], findings);
        page.invariants(of(1), findings);
        page.orderings(of(2), findings);
        for at in [0, 3, 4] {
            if of(at).iter().all(|(_, text)| text.is_empty()) {
                let what = format!("the section `{}` is empty", SECTIONS[at]);
                findings.push(finding(
                    file,
                    heads[at].0,
                    &what,
                    "say it, or why there is nothing to say",
                ));
            }
        }
        page
    }

    /// Title, the purpose in one sentence, and the files.
    fn head(&mut self, lines: &[(usize, &str)], findings: &mut Findings) {
        let mut purpose = String::new();
        let mut in_code = false;
        for (line, text) in lines {
            in_code = (in_code || text.starts_with("Code:")) && !text.is_empty();
            if in_code {
                self.code.extend(names(text, *line));
            } else if !text.starts_with("# ") {
                purpose += text;
                purpose += " ";
            }
        }
        let purpose = purpose.trim();
        if purpose.is_empty() || !purpose.ends_with('.') || purpose.contains(". ") {
            let what = format!("the purpose is `{purpose}`");
            findings.push(finding(&self.file, 3, &what, "say it in one sentence"));
        }
        if self.code.is_empty() {
            findings.push(finding(
                &self.file,
                5,
                "no file is named",
                "name the files behind `Code:`",
            ));
        }
    }

    fn invariants(&mut self, lines: &[(usize, &str)], findings: &mut Findings) {
        let mut item: Option<(usize, String)> = None;
        let mut items = Vec::new();
        for (line, text) in lines.iter().chain(&[(0, "")]) {
            let is_next =
                text.starts_with(|first: char| first.is_ascii_digit()) && text.contains(". ");
            if is_next || !text.starts_with("   ") {
                items.extend(item.take());
            }
            if is_next {
                item = Some((*line, (*text).to_owned()));
            } else if let Some((_, so_far)) = &mut item {
                so_far.push(' ');
                so_far.push_str(text.trim_start());
            }
        }
        for (at, (line, text)) in items.iter().enumerate() {
            if !text.starts_with(&format!("{}. ", at + 1)) {
                let what = format!("invariant {} begins with `{:.12}`", at + 1, text);
                findings.push(finding(&self.file, *line, &what, "number them from 1"));
            }
            let checks = text.split_once("Checked by:").map_or("", |(_, checks)| checks);
            let checks = names(checks, *line);
            if checks.is_empty() {
                let what = format!("invariant {} names no check", at + 1);
                let out = "write `Checked by:` and the model or test that fails without it";
                findings.push(finding(&self.file, *line, &what, out));
            }
            self.invariants.push(checks);
        }
        if items.is_empty() {
            let line = lines.first().map_or(1, |(line, _)| *line);
            findings.push(finding(&self.file, line, "no invariant", "number them: `1. ...`"));
        }
    }

    fn orderings(&mut self, lines: &[(usize, &str)], findings: &mut Findings) {
        let table = lines.iter().filter(|(_, text)| text.starts_with('|'));
        // The first two are the head of the table.
        for (line, text) in table.skip(2) {
            let cells: Vec<&str> = text.trim_matches('|').split('|').collect();
            let [_, _, _, models, mutants] = cells[..] else {
                let what = format!("a row of {} cells: {text}", cells.len());
                let out = "a row has operation, order, pairs with, model, mutant";
                findings.push(finding(&self.file, *line, &what, out));
                continue;
            };
            let row = Row { models: names(models, *line), mutants: names(mutants, *line) };
            if row.models.is_empty() {
                let what = format!("no model or test for this line: {text}");
                let out =
                    "name what fails without it, or say under `Not shown` why there is nothing";
                findings.push(finding(&self.file, *line, &what, out));
            }
            self.rows.push(row);
        }
        if self.rows.is_empty() {
            let line = lines.first().map_or(1, |(line, _)| *line);
            findings.push(finding(&self.file, line, "no ordering", "write the table"));
        }
    }

    /// All models and tests that the page names.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &Name> {
        let rows = self.rows.iter().flat_map(|row| &row.models);
        self.invariants.iter().flatten().chain(rows)
    }
}
