//! What the pages are compared with: the texts of the repository, read once, so that a test may change them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

pub(crate) const SRC: &str = "engine/core/src/";
pub(crate) const TESTS: &str = "engine/core/tests/";
pub(crate) const PAGES: &str = "docs/design/protocols/";

/// Texts by their path from the root of the repository.
pub(crate) struct Tree(BTreeMap<String, String>);

/// A mutant with the model, scenario or target that kills it, and where that is written.
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) file: &'static str,
    pub(crate) line: usize,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut texts = BTreeMap::new();
        for place in ["docs/design", "engine/core/src", "engine/core/tests", "fuzz/fuzz_targets"] {
            collect(&root, &PathBuf::from(place), &mut texts);
        }
        let mutants = fs::read_to_string(root.join("fuzz/mutants.txt")).expect("the list");
        texts.insert("fuzz/mutants.txt".to_owned(), mutants);
        Self(texts)
    }

    pub(crate) fn text(&self, file: &str) -> Option<&str> {
        self.0.get(file).map(String::as_str)
    }

    pub(crate) fn replace(&mut self, file: &str, from: &str, to: &str) {
        let text = self.0.get_mut(file).expect("a file of the tree");
        assert!(text.contains(from), "{file} has no {from:?}: plant the gap elsewhere");
        *text = text.replacen(from, to, 1);
    }

    /// Files below a folder, with their texts.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(file, text)| (file.as_str(), text.as_str()));
        all.filter(move |(file, _)| file.starts_with(folder))
    }

    /// The loom models: name, file and line.
    pub(crate) fn models(&self) -> Vec<(String, &str, usize)> {
        let folder = concat!("engine/core/src/", "models/");
        let mut all = Vec::new();
        for (file, text) in self.below(folder) {
            let module = file[folder.len()..].trim_end_matches(".rs");
            if module != "mod" {
                let tests = tests(text).into_iter();
                all.extend(tests.map(|(name, line)| (format!("{module}::{name}"), file, line)));
            }
        }
        all
    }

    /// Whether a model, a scenario, a fuzz target or a test has this name.
    pub(crate) fn has_check(&self, name: &str) -> bool {
        let has = |file: String, test: &str| {
            self.text(&file).is_some_and(|text| tests(text).iter().any(|(name, _)| *name == test))
        };
        match name.split_once("::") {
            Some(("shuttle", test)) => has(format!("{TESTS}shuttle_engine.rs"), test),
            Some(("fuzz", target)) => {
                self.text(&format!("fuzz/fuzz_targets/{target}.rs")).is_some()
            }
            Some((file, test)) if file.ends_with(".rs") => has(format!("{SRC}{file}"), test),
            Some((file, test)) => {
                has(format!("{SRC}models/{file}.rs"), test)
                    || has(format!("{TESTS}{file}.rs"), test)
            }
            // All models of a file.
            None => self
                .text(&format!("{SRC}models/{name}.rs"))
                .is_some_and(|text| !tests(text).is_empty()),
        }
    }

    /// The lists of loom and shuttle.
    pub(crate) fn mutants(&self) -> Vec<Mutant> {
        let loom = self.list("engine/core/src/models/mod.rs");
        let loom = loom.map(|mutant| {
            let model =
                mutant.model.trim_start_matches("models::").trim_end_matches("::").to_owned();
            Mutant { model, ..mutant }
        });
        let shuttle = self.list("engine/core/tests/shuttle_engine.rs");
        let shuttle =
            shuttle.map(|mutant| Mutant { model: format!("shuttle::{}", mutant.model), ..mutant });
        loom.chain(shuttle).collect()
    }

    fn list(&self, file: &'static str) -> impl Iterator<Item = Mutant> {
        let lines = (1..).zip(self.text(file).expect("a list of mutants").lines());
        let list = lines
            .skip_while(|(_, text)| !text.starts_with("const MUTANTS"))
            .take_while(|(_, text)| *text != "];");
        list.filter_map(move |(line, text)| {
            let mut parts = text.strip_prefix("    (\"")?.split('"');
            let (name, model) = (parts.next()?.to_owned(), parts.nth(1)?.to_owned());
            Some(Mutant { name, model, file, line })
        })
    }

    /// Mutants and targets of the fuzz list, as pairs of mutant and model.
    pub(crate) fn fuzz_mutants(&self) -> BTreeSet<(String, String)> {
        let lines = self.text("fuzz/mutants.txt").expect("the list").lines();
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        words
            .filter(|words| words.len() > 1)
            .map(|words| (words[1].to_owned(), format!("fuzz::{}", words[0])))
            .collect()
    }
}

fn collect(root: &Path, place: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root.join(place)).expect("a folder of the repository") {
        let entry = entry.expect("an entry");
        let path = place.join(entry.file_name());
        if entry.path().is_dir() {
            collect(root, &path, texts);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "md") {
            let text = fs::read_to_string(entry.path()).expect("a text");
            texts.insert(path.to_string_lossy().replace('\\', "/"), text);
        }
    }
}

/// The names of the tests in a text, with their lines.
fn tests(text: &str) -> Vec<(&str, usize)> {
    let mut all = Vec::new();
    let mut is_test = false;
    for (line, text) in (1..).zip(text.lines().map(str::trim_start)) {
        if text == "#[test]" {
            is_test = true;
        } else if is_test && let Some(rest) = text.strip_prefix("fn ") {
            all.extend(rest.split('(').next().map(|name| (name, line)));
            is_test = false;
        } else if !text.starts_with("#[") && !text.starts_with("//") {
            is_test = false;
        }
    }
    all
}
