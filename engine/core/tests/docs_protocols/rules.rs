//! The rules. Each finding says the value, the file, the line, and the way out.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    page::Page,
    sources::{PAGES, SRC, Tree},
};

pub(crate) type Findings = Vec<String>;

pub(crate) fn finding(file: &str, line: usize, what: &str, way_out: &str) -> String {
    format!("{file}:{line}: {what}: {way_out}")
}

const INDEX: &str = "docs/design/protocols.md";
const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
/// An `ORDERING` note stands so many lines above its access, at most.
const ABOVE: usize = 6;

fn pages(tree: &Tree, findings: &mut Findings) -> Vec<Page> {
    tree.below(PAGES).map(|(file, text)| Page::parse(file, text, findings)).collect()
}

/// All gaps.
pub(crate) fn findings(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    let pages = pages(tree, &mut findings);
    index(tree, &pages, &mut findings);
    checks_exist(tree, &pages, &mut findings);
    mutants(tree, &pages, &mut findings);
    models(tree, &pages, &mut findings);
    files(tree, &pages, &mut findings);
    for (file, text) in tree.below(SRC).filter(|(file, _)| is_engine(file)) {
        accesses(file, text, &mut findings);
    }
    findings
}

/// How much was compared.
pub(crate) fn numbers(tree: &Tree) -> [(&'static str, usize); 6] {
    let pages = pages(tree, &mut Findings::new());
    let noted = |(file, text): &(&str, &str)| is_engine(file) && text.contains("// ORDERING:");
    [
        ("pages", pages.len()),
        ("invariants", pages.iter().map(|page| page.invariants.len()).sum()),
        ("rows", pages.iter().map(|page| page.rows.len()).sum()),
        ("mutants", tree.mutants().len()),
        ("models", tree.models().len()),
        ("files with orderings", tree.below(SRC).filter(noted).count()),
    ]
}

/// Every page is in the index, and nothing else is.
fn index(tree: &Tree, pages: &[Page], findings: &mut Findings) {
    let text = tree.text(INDEX).unwrap_or_default();
    let mut linked = BTreeSet::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| text.starts_with("| [")) {
        for link in text.split("](protocols/").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = format!("{PAGES}{link}");
            if tree.text(&file).is_none() {
                let what = format!("the index links {link}, which does not exist");
                findings.push(finding(INDEX, line, &what, "write the page or take the row away"));
            }
            linked.insert(file);
        }
    }
    for page in pages.iter().filter(|page| !linked.contains(&page.file)) {
        let out = format!("add a row to {INDEX}");
        findings.push(finding(&page.file, 1, "the page is not in the index", &out));
    }
    for (file, _) in tree.below(concat!("engine/core/src/", "models/")) {
        let name = file.rsplit('/').next().unwrap_or(file);
        if name != "mod.rs" && !text.contains(&format!("`{name}`")) {
            let what = format!("the index names no page for `{name}`");
            findings.push(finding(file, 1, &what, &format!("name it in {INDEX}")));
        }
    }
}

/// Every model, test and file that a page names exists.
fn checks_exist(tree: &Tree, pages: &[Page], findings: &mut Findings) {
    for page in pages {
        for check in page.checks().filter(|check| !tree.has_check(&check.name)) {
            let what = format!("nothing is called `{}`", check.name);
            let out = "name a model (`file::model`), `shuttle::scenario`, `fuzz::target`, test (`file::test`) or unit test \
                       (`path/file.rs::test`) that exists";
            findings.push(finding(&page.file, check.line, &what, out));
        }
        for code in &page.code {
            if tree.text(&format!("{SRC}{}", code.name)).is_none() {
                let what = format!("there is no file `{}`", code.name);
                let out = format!("name files by their path in {SRC}");
                findings.push(finding(&page.file, code.line, &what, &out));
            }
        }
    }
}

/// Every mutant of loom and shuttle is in one page, with its model; a page names no other pair.
fn mutants(tree: &Tree, pages: &[Page], findings: &mut Findings) {
    let listed = tree.mutants();
    let of_fuzz = tree.fuzz_mutants();
    let mut named: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for page in pages {
        for row in &page.rows {
            for mutant in &row.mutants {
                for model in &row.models {
                    let pair = (mutant.name.as_str(), model.name.as_str());
                    named.entry(pair).or_default().insert(&page.file);
                    let known = listed.iter().any(|one| (&*one.name, &*one.model) == pair)
                        || of_fuzz.contains(&(pair.0.to_owned(), pair.1.to_owned()));
                    if !known {
                        let what =
                            format!("`{}` with `{}` is on no list of mutants", pair.0, pair.1);
                        let out = "correct the names, part the row, or add the pair to models/mod.rs, shuttle_engine.rs or \
                                   fuzz/mutants.txt";
                        findings.push(finding(&page.file, mutant.line, &what, out));
                    }
                }
            }
        }
    }
    for mutant in &listed {
        let what = format!("`{}` with `{}`", mutant.name, mutant.model);
        let pages = named.get(&(&*mutant.name, &*mutant.model));
        let pages: Vec<&str> = pages.into_iter().flatten().copied().collect();
        if pages.is_empty() {
            let what = format!("{what} is in no page");
            let out = format!("add a row to the ordering table of its protocol in {PAGES}");
            findings.push(finding(mutant.file, mutant.line, &what, &out));
        } else if pages.len() > 1 {
            let what = format!("{what} is in {}", pages.join(" and "));
            findings.push(finding(mutant.file, mutant.line, &what, "leave one of them"));
        }
    }
}

/// Every loom model is named by a page.
fn models(tree: &Tree, pages: &[Page], findings: &mut Findings) {
    let named: BTreeSet<&str> =
        pages.iter().flat_map(Page::checks).map(|check| check.name.as_str()).collect();
    for (model, file, line) in tree.models() {
        let module = model.split("::").next().unwrap_or(&model);
        if !named.contains(&*model) && !named.contains(module) {
            let what = format!("the model `{model}` is in no page");
            let out = format!("name it in {PAGES}, at the invariant or the ordering that it shows");
            findings.push(finding(file, line, &what, &out));
        }
    }
}

/// Every file with an `ORDERING` note is spoken of by a page.
fn files(tree: &Tree, pages: &[Page], findings: &mut Findings) {
    let code: BTreeSet<String> = pages
        .iter()
        .flat_map(|page| &page.code)
        .map(|code| format!("{SRC}{}", code.name))
        .collect();
    for (file, text) in tree.below(SRC).filter(|(file, _)| is_engine(file) && !code.contains(*file))
    {
        let note = (1..).zip(text.lines()).find(|(_, text)| text.contains("// ORDERING:"));
        if let Some((line, _)) = note {
            let what = "it has an ordering, and no page speaks of the file";
            let out = format!("name it behind `Code:` in the page of its protocol in {PAGES}");
            findings.push(finding(file, line, what, &out));
        }
    }
}

/// The engine itself: no model, no shim, nothing for tests and fuzz targets only.
fn is_engine(file: &str) -> bool {
    let file = file.trim_start_matches(SRC);
    !(["models/", "sync/", "fuzzing/"].iter().any(|folder| file.starts_with(folder))
        || file == "sync.rs"
        || file.ends_with("tests.rs"))
}

/// Every access that is not Relaxed has a note above it, in its function. What a mutant does instead needs none.
fn accesses(file: &str, text: &str, findings: &mut Findings) {
    let lines: Vec<&str> = text.lines().collect();
    let mut mutant: Option<String> = None;
    for (at, line) in lines.iter().enumerate() {
        let is_tests = line.starts_with("#[cfg(") && line.contains("test");
        if is_tests && lines.get(at + 1).is_some_and(|next| next.starts_with("mod ")) {
            return;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        if mutant.as_ref().is_some_and(|end| line.starts_with(end.as_str())) {
            mutant = None;
        }
        if line.trim_start().starts_with("if mutant(") && line.ends_with('{') {
            mutant = Some(format!("{indent}}}"));
        }
        let code = line.split("//").next().unwrap_or(line);
        let mut words = code.split(|one: char| !one.is_alphanumeric());
        let Some(order) = words.find(|word| ORDERS.contains(word)) else { continue };
        if mutant.is_some() || has_note(&lines[..at]) {
            continue;
        }
        let what = format!("this Ordering::{order} has no `// ORDERING:` note: {}", code.trim());
        let out =
            format!("write above it, at most {ABOVE} lines before, why this order, and its pair");
        findings.push(finding(file, at + 1, &what, &out));
    }
}

fn has_note(above: &[&str]) -> bool {
    let near = above.iter().rev().take(ABOVE);
    let mut same = near.take_while(|line| !line.trim().is_empty() && !line.contains("fn "));
    same.any(|line| line.contains("// ORDERING:"))
}
