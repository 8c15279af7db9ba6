//! The map against a plain list of pairs, with hashes chosen to hurt.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;

/// Well-mixed bits, as the map may expect them of its caller.
fn mix(x: u32) -> u32 {
    let x = u64::from(x).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// I1, I2, and the counts: every entry is reached from its home, in one table.
fn check(map: &Map) {
    let mut seen = HashSet::new();
    let leaving = map.leaving.as_ref();
    for table in [Some(&map.main), leaving.map(|l| &l.table)].into_iter().flatten() {
        let mut entries = 0;
        let slots = table.slots();
        let held = (0..slots).map(|slot| {
            // SAFETY: below the number of slots.
            (slot, unsafe { table.at(slot) })
        });
        for (slot, entry) in held.filter(|(_, e)| *e != VACANT) {
            entries += 1;
            assert!(seen.insert(entry), "I2: twice: {entry:#x}");
            let mut at = table.home(hash_of(entry));
            while at != slot {
                // SAFETY: below the number of slots.
                assert_ne!(unsafe { table.at(at) }, VACANT, "I1: a gap between home and slot");
                at = (at + 1) % slots;
            }
        }
        assert!(slots == 0 || entries < slots, "I4: no vacant slot");
        assert!(table.counts_its_segments());
    }
    assert_eq!(seen.len(), map.len());
    if let Some(leaving) = leaving {
        assert_eq!(leaving.table.entries().count(), leaving.len);
        for entry in leaving.table.entries() {
            assert!(leaving.may_hold(hash_of(entry)), "a lookup would pass by {entry:#x}");
        }
    }
}

/// Slots of the table being left that are still to be visited; none is as many as it gets.
fn left(map: &Map) -> Option<usize> {
    let l = map.leaving.as_ref()?;
    Some(l.table.slots() - (l.stop.wrapping_sub(l.next) & l.table.mask))
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    /// Removes the n-th of the pairs held.
    Remove(usize),
    RemoveAbsent(u32, u32),
    Get(u32),
    Migrate,
}

fn ops(hash: impl Strategy<Value = u32> + Clone + 'static) -> impl Strategy<Value = Vec<Op>> {
    let op = |grow: u32, shrink: u32| {
        prop_oneof![
            grow => hash.clone().prop_map(Op::Insert),
            shrink => any::<usize>().prop_map(Op::Remove),
            1 => (hash.clone(), any::<u32>()).prop_map(|(h, i)| Op::RemoveAbsent(h, i)),
            2 => hash.clone().prop_map(Op::Get),
            1 => Just(Op::Migrate),
        ]
    };
    // Tides: mostly growing, then mostly shrinking, then both at once.
    let tide = |grow, shrink, most| prop::collection::vec(op(grow, shrink), 0..most);
    (tide(12, 1, 300), tide(1, 12, 300), tide(6, 5, 200)).prop_map(|(a, b, c)| [a, b, c].concat())
}

fn run(ops: &[Op]) {
    let mut map = Map::new();
    let mut oracle: Vec<(u32, u32)> = Vec::new();
    let mut fresh = 0;
    for op in ops {
        let before = left(&map);
        match *op {
            Op::Insert(hash) => {
                map.insert(hash, fresh);
                oracle.push((hash, fresh));
                fresh += 1;
            }
            Op::Remove(n) if !oracle.is_empty() => {
                let (hash, index) = oracle.swap_remove(n % oracle.len());
                assert!(map.remove(hash, index));
                assert!(!map.remove(hash, index));
            }
            Op::Remove(_) => assert!(!map.remove(7, 7)),
            Op::RemoveAbsent(hash, index) => {
                let held = oracle.iter().position(|&pair| pair == (hash, index));
                assert_eq!(map.remove(hash, index), held.is_some());
                held.map(|at| oracle.swap_remove(at));
            }
            Op::Get(hash) => {
                let mut offered: Vec<u32> = Vec::new();
                assert_eq!(map.get(hash, |i| (offered.push(i), false).1), None);
                let mut expected: Vec<u32> =
                    oracle.iter().filter(|(h, _)| *h == hash).map(|&(_, i)| i).collect();
                offered.sort_unstable();
                expected.sort_unstable();
                assert_eq!(offered, expected, "eq sees each index of the hash, and no other");
            }
            Op::Migrate => drop(map.migrate()),
        }
        check(&map);
        if let (Some(before), Some(after)) = (before, left(&map)) {
            // A removal here is two operations: the pair, and the same pair once more.
            assert!(before.saturating_sub(after) <= 2 * MOVES_PER_OP, "I3: {before} to {after}");
        }
        for &(hash, index) in &oracle {
            assert_eq!(map.get(hash, |i| i == index), Some(index));
        }
    }
    let mut indices = HashSet::new();
    map.for_each(|i| assert!(indices.insert(i)));
    assert_eq!(indices, oracle.iter().map(|&(_, i)| i).collect());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mixed_hashes(ops in ops(any::<u32>())) { run(&ops); }

    #[test]
    fn all_hashes_equal(ops in ops(prop_oneof![Just(0u32)])) { run(&ops); }

    #[test]
    fn all_at_the_end_of_the_table(ops in ops(u32::MAX - 3..=u32::MAX)) { run(&ops); }

    #[test]
    fn clusters(ops in ops((0u32..5, 0u32..40).prop_map(|(c, n)| c.wrapping_mul(0x3fff_fff0) + n))) {
        run(&ops);
    }
}

#[test]
fn a_new_map_allocates_nothing() {
    let mut map = Map::new();
    assert_eq!((map.len(), map.capacity(), map.heap_bytes()), (0, 0, 0));
    assert_eq!(map.get(1, |_| panic!("nothing to compare")), None);
    assert!(!map.remove(1, 1));
    map.prefetch(u32::MAX);
    map.for_each(|_| panic!("nothing to visit"));
    map.insert(u32::MAX, 0);
    map.prefetch(u32::MAX);
    assert!(map.capacity() > 0 && map.heap_bytes() == 8 + 128);
}

/// I3 and I4: counted at each of many operations, up and down again.
#[test]
fn no_operation_moves_more_than_the_bound() {
    let mut map = Map::new();
    let mut tables = 0;
    let mut step = |map: &mut Map, f: &mut dyn FnMut(&mut Map)| {
        let (before, was) = (left(map), map.leaving.as_ref().map_or(0, |l| l.len));
        f(map);
        match (before, left(map)) {
            // More than before: one small table was left for good, and the next one begun.
            (before, Some(after)) if after > before.unwrap_or(0) => {
                tables += 1;
                assert!(after >= map.leaving.as_ref().unwrap().table.slots() - 1);
            }
            (Some(before), Some(after)) => assert!(before - after <= MOVES_PER_OP),
            (Some(_), None) => assert!(was <= MOVES_PER_OP, "{was} entries left at once"),
            (None, _) => {}
        }
    };
    let n = 100_000;
    for i in 0..n {
        step(&mut map, &mut |map| map.insert(mix(i), i));
    }
    let full = map.heap_bytes();
    for i in 0..n {
        step(&mut map, &mut |map| assert!(map.remove(mix(i), i)));
        assert_eq!(map.get(mix(i), |j| j == i), None);
    }
    assert_eq!(map.len(), 0);
    assert!(map.heap_bytes() * 1000 < full, "{} of {full} bytes kept", map.heap_bytes());
    assert!(tables > 20, "only {tables} changes of size");
    check(&map);
}

/// I5: memory comes and goes by the segment, so two tables are never both whole.
#[test]
fn memory_moves_by_the_segment() {
    let mut map = Map::new();
    let segment = SEGMENT * size_of::<u64>();
    let n = 50_000;
    let (mut bytes, mut peak) = (0, 0);
    for i in (0..2 * n).map(|i| if i < n { i } else { 2 * n - 1 - i }) {
        let (before, tables) = (map.main.slots(), map.leaving.is_some());
        match map.remove(mix(i), i) {
            true => {}
            false => map.insert(mix(i), i),
        }
        let now = map.heap_bytes();
        if map.main.slots() == before && map.leaving.is_some() == tables {
            let moved = now.abs_diff(bytes) / segment;
            assert!(moved <= 2 * MOVES_PER_OP, "{moved} segments in one operation");
        }
        (bytes, peak) = (now, peak.max(now));
    }
    assert_eq!(map.len(), 0);
    // 131,072 slots hold them, and the half of that is left at the same time.
    assert!(peak < 131_072 * 8 * 5 / 4 * 3 / 2, "{peak} bytes at the peak");
    assert!(bytes < 1024, "{bytes} bytes kept");
}

/// I6: the new table has slots where the walk has been, not wherever new entries have their homes.
#[test]
fn a_new_table_comes_with_the_walk() {
    let mut map = Map::new();
    let mut seen = 0;
    for i in 0..100_000 {
        map.insert(mix(i), i);
        let Some(leaving) = &map.leaving else { continue };
        let walked = leaving.below_stop(leaving.next) - 1;
        let due = 2 * walked / SEGMENT + 2;
        let has = map.main.heap_bytes() / (SEGMENT * size_of::<u64>());
        // The list of the segments themselves takes 8 bytes for each.
        let list = map.main.slots() / SEGMENT / SEGMENT;
        // Entries that others had pushed up, away from their homes, go some segments ahead of the walk.
        assert!(has <= due + list + 8, "{has} segments where the walk came through {due}");
        seen += usize::from(map.main.slots() > 64 * SEGMENT);
    }
    assert!(seen > 2_000, "only {seen} inserts beside a large table being left");
}

#[test]
fn a_panic_in_eq_leaves_the_map_as_it_was() {
    let mut map = Map::new();
    for i in 0..49 {
        map.insert(mix(i), i);
    }
    assert!(map.leaving.is_some(), "wanted: two tables");
    for i in 0..49 {
        let died = catch_unwind(AssertUnwindSafe(|| map.get(mix(i), |_| panic!("eq"))));
        assert!(died.is_err());
        check(&map);
        assert_eq!(map.get(mix(i), |j| j == i), Some(i));
    }
}

#[test]
fn reads_alone_need_not_keep_two_tables() {
    let mut map = Map::new();
    for i in 0..49 {
        map.insert(mix(i), i);
    }
    while map.migrate() {}
    assert!(map.leaving.is_none() && map.len() == 49);
    assert!((0..49).all(|i| map.get(mix(i), |j| j == i) == Some(i)));
}

#[test]
#[should_panic(expected = "does not fit")]
fn the_last_index_is_refused() {
    Map::new().insert(0, u32::MAX);
}

/// Any index below `u32::MAX` can be stored, and hash 0 with index 0 is not vacant.
#[test]
fn extreme_values() {
    let mut map = Map::new();
    for (hash, index) in [(0, 0), (u32::MAX, u32::MAX - 1), (0, u32::MAX - 1), (u32::MAX, 0)] {
        map.insert(hash, index);
        assert_eq!(map.get(hash, |i| i == index), Some(index));
    }
    assert_eq!(map.len(), 4);
}
