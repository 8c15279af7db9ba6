//! The pages on the protocols (docs/design/protocols) are complete: they and the sources say the same.
//!
//! A page is prose, but its parts have a form that can be compared: the order of its sections, the checks that each
//! invariant names, the models and mutants of its ordering table, the files that it speaks of. Each rule below has a test
//! that plants a gap and wants it reported.

#[path = "docs_protocols/page.rs"]
mod page;
#[path = "docs_protocols/rules.rs"]
mod rules;
#[path = "docs_protocols/sources.rs"]
mod sources;

use sources::Tree;

const RING: &str = "docs/design/protocols/ring.md";
const INDEX: &str = "docs/design/protocols.md";
const MODELS: &str = "engine/core/src/models/mod.rs";

#[test]
fn pages_and_sources_agree() {
    let tree = Tree::read();
    let findings = rules::findings(&tree);
    assert!(findings.is_empty(), "{} gaps:\n{}", findings.len(), findings.join("\n"));
    // A check that read nothing would find nothing.
    let numbers = rules::numbers(&tree);
    assert!(numbers.iter().all(|(_, number)| *number > 10), "{numbers:?}");
    println!("{numbers:?}");
}

/// Puts `to` for `from` in one file, and wants one gap reported that says all of `wanted`.
fn planted(file: &str, from: &str, to: &str, wanted: &[&str]) {
    let mut tree = Tree::read();
    tree.replace(file, from, to);
    let findings = rules::findings(&tree);
    findings.iter().for_each(|finding| println!("{finding}"));
    let is_it = |finding: &&String| wanted.iter().all(|part| finding.contains(part));
    assert_eq!(findings.iter().filter(is_it).count(), 1, "{wanted:?} in {findings:#?}");
}

#[test]
fn a_mutant_that_no_page_names_is_reported() {
    planted(
        MODELS,
        "    (\"ring-publish-relaxed\", \"models::ring::order\"),\n",
        "    (\"ring-publish-relaxed\", \"models::ring::order\"),\n    (\"new-one\", \"models::ring::order\"),\n",
        &[MODELS, "new-one", "ring::order", "no page", "add a row"],
    );
}

#[test]
fn a_mutant_of_shuttle_that_no_page_names_is_reported() {
    planted(
        RING,
        "`ring::close`, `shuttle::close_meets_submitters`",
        "`ring::close`",
        &[
            "shuttle_engine.rs:",
            "ring-close-by-store",
            "shuttle::close_meets_submitters",
            "no page",
        ],
    );
}

#[test]
fn a_mutant_on_two_pages_is_reported() {
    let row =
        "| publish | Release | read | `ring::order` | `ring-publish-relaxed` |\n\n## Not shown";
    planted(
        "docs/design/protocols/lane.md",
        "## Not shown",
        row,
        &[MODELS, "ring-publish-relaxed", "lane.md", "ring.md", "leave one"],
    );
}

#[test]
fn a_mutant_that_is_on_no_list_is_reported() {
    planted(
        RING,
        "`ring-head-relaxed`",
        "`ring-head-relaxd`",
        &["ring.md:", "ring-head-relaxd", "ring::order", "on no list"],
    );
}

#[test]
fn a_model_that_does_not_exist_is_reported() {
    planted(
        RING,
        "Checked by: `ring::order`, `ring::lap`",
        "Checked by: `ring::orders`, `ring::lap`",
        &["ring.md:", "ring::orders", "nothing is called"],
    );
}

#[test]
fn a_model_that_no_page_names_is_reported() {
    planted(
        RING,
        "`ring::baton`, ",
        "",
        &["models/ring.rs:", "ring::baton", "no page", "invariant"],
    );
}

#[test]
fn an_invariant_without_a_check_is_reported() {
    planted(
        RING,
        "Checked by: `ring::baton`, `e1_serial_per_group::baton_by_all_ways_mixed`.",
        "",
        &["ring.md:", "invariant 4", "names no check"],
    );
}

#[test]
fn an_invariant_whose_test_is_gone_is_reported() {
    planted(
        "engine/core/tests/f11_close.rs",
        "fn a_halt_gives_everything_back_in_order",
        "fn a_halt_gives_all_back_in_order",
        &["hands.md:", "f11_close::a_halt_gives_everything_back_in_order", "nothing is called"],
    );
}

#[test]
fn a_file_with_an_ordering_that_no_page_speaks_of_is_reported() {
    planted(
        "docs/design/protocols/drain.md",
        "`watch/stats.rs`, ",
        "",
        &["engine/core/src/watch/stats.rs:", "no page", "Code:"],
    );
}

#[test]
fn an_access_without_a_note_is_reported() {
    planted(
        "engine/core/src/ready/inbox.rs",
        "        // ORDERING: Acquire pairs with the Release of every push since the last take.\n",
        "",
        &[
            "engine/core/src/ready/inbox.rs:",
            "Ordering::Acquire",
            "has no `// ORDERING:`",
            "its pair",
        ],
    );
}

#[test]
fn sections_out_of_order_are_reported() {
    planted(
        RING,
        "## Not shown",
        "## Doubts",
        &["ring.md:", "Doubts", "States, Invariants, Orderings, Not shown, Cost and progress"],
    );
}

#[test]
fn a_page_that_is_not_in_the_index_is_reported() {
    planted(
        INDEX,
        "(protocols/inbox.md)",
        "(protocols/outbox.md)",
        &["inbox.md:", "not in the index"],
    );
}
