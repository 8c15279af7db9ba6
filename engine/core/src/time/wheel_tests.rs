//! The wheel against a sorted map of lists.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What a wheel must do, done simply.
struct Oracle {
    now: u64,
    entries: BTreeMap<(u64, u64), u64>,
    came: u64,
}

impl Oracle {
    fn new(now: u64) -> Self {
        Self { now, entries: BTreeMap::new(), came: 0 }
    }

    fn insert(&mut self, deadline: u64) -> u64 {
        self.came += 1;
        self.entries.insert((deadline, self.came), self.came);
        self.came
    }

    fn advance(&mut self, now: u64) -> Vec<u64> {
        self.now = self.now.max(now);
        let due: Vec<_> = self.entries.range(..=(self.now, u64::MAX)).map(|(k, _)| *k).collect();
        due.iter().map(|k| self.entries.remove(k).unwrap()).collect()
    }
}

/// I1, I3 and I4, and that counts and bits say what the lists hold.
fn check<E>(wheel: &Wheel<E>) {
    let mut len = wheel.due.entries.len();
    assert!(wheel.due.entries.iter().all(|(d, _)| *d <= wheel.elapsed), "I3: due");
    let blocks = wheel.beyond.iter().map(|(key, slot)| (LEVELS, *key as usize, slot));
    let slots = wheel.slots.iter().enumerate().flat_map(|(level, slots)| {
        slots.iter().enumerate().map(move |(number, slot)| (level, number, slot))
    });
    for (level, number, slot) in slots.chain(blocks) {
        let min = slot.entries.iter().map(|(d, _)| *d).min();
        assert_eq!(slot.min, min.unwrap_or(u64::MAX), "I4");
        assert!(min.is_none_or(|min| min > wheel.elapsed), "I3");
        if level < LEVELS {
            let bit = wheel.occupied[level] >> number & 1 == 1;
            assert_eq!(bit, min.is_some(), "bit of level {level}, slot {number}");
            let here = (wheel.elapsed >> (level * BITS)) as usize % SLOTS;
            assert!(min.is_none() || number > here, "I1");
        }
        len += slot.entries.len();
    }
    assert_eq!(len, wheel.len());
}

#[derive(Clone, Debug)]
enum Op {
    /// Ahead of now by this.
    After(u64),
    /// Behind now by this.
    Before(u64),
    At(u64),
    /// Moves on by this.
    Advance(u64),
    /// Moves on to what `next_deadline` says.
    AdvanceToNext,
    /// A clock that went back.
    Back(u64),
    Drain,
}

/// Distances of every order of magnitude, and those next to the edges of levels.
fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..130,
        3 => (0u32..64, any::<u64>()).prop_map(|(bits, x)| x >> bits),
        3 => (0u32..7, 0u64..3).prop_map(|(level, by)| (1u64 << (6 * level)) + by - 1),
        1 => 0u64..100_000_000,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => distance().prop_map(Op::After),
        2 => (0u64..200).prop_map(Op::Before),
        1 => prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)].prop_map(Op::At),
        5 => distance().prop_map(Op::Advance),
        4 => Just(Op::AdvanceToNext),
        1 => distance().prop_map(Op::Back),
        1 => prop_oneof![20 => Just(Op::Back(1)), 1 => Just(Op::Drain)],
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0u64..10_000, any::<u64>(), (0u64..100_000).prop_map(|x| u64::MAX - x)]
}

fn run(start: u64, ops: &[Op]) {
    let mut wheel = Wheel::new(start);
    let mut oracle = Oracle::new(start);
    let mut out = Vec::new();
    for op in ops {
        let now = oracle.now;
        let mut insert = |deadline| wheel.insert(deadline, oracle.insert(deadline));
        let to = match *op {
            Op::After(by) => {
                insert(now.saturating_add(by));
                continue;
            }
            Op::Before(by) => {
                insert(now.saturating_sub(by));
                continue;
            }
            Op::At(deadline) => {
                insert(deadline);
                continue;
            }
            Op::Advance(by) => now.saturating_add(by),
            Op::AdvanceToNext => wheel.next_deadline().unwrap_or(now),
            Op::Back(by) => now.saturating_sub(by),
            Op::Drain => {
                let drained: Vec<u64> = wheel.drain().collect();
                let expected: Vec<u64> = mem::take(&mut oracle.entries).into_values().collect();
                assert_eq!(drained, expected);
                check(&wheel);
                continue;
            }
        };
        let least = oracle.entries.first_key_value().map(|((deadline, _), _)| *deadline);
        assert_eq!(wheel.next_deadline(), least);
        out.clear();
        wheel.advance(to, &mut out);
        assert_eq!(out, oracle.advance(to), "at {to}");
        if matches!(op, Op::AdvanceToNext) {
            assert!(least.is_none() || !out.is_empty(), "a sleeper made no progress");
        }
        assert!(wheel.next_deadline().is_none_or(|next| next > oracle.now));
        assert_eq!(wheel.len(), oracle.entries.len());
        check(&wheel);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn like_a_sorted_map(start in start(), ops in prop::collection::vec(op(), 0..120)) {
        run(start, &ops);
    }

    /// Near in time and thick: ties, and neighbours in one slot.
    #[test]
    fn ties(ops in prop::collection::vec(prop_oneof![
        8 => (0u64..6).prop_map(|n| Op::After(n * 63)),
        2 => (0u64..4).prop_map(Op::Before),
        2 => (0u64..100).prop_map(Op::Advance),
    ], 0..200)) {
        run(60, &ops);
    }
}

#[test]
fn ties_keep_the_order_of_insertion_across_levels() {
    let mut wheel = Wheel::new(0);
    let mut out = Vec::new();
    let deadline = 5_000;
    for (entry, now) in [0, 1, 900, 4_095, 4_096, 4_990, 4_999].into_iter().enumerate() {
        wheel.advance(now, &mut out);
        wheel.insert(deadline, entry);
    }
    wheel.advance(4_999, &mut out);
    assert!(out.is_empty());
    wheel.advance(5_000, &mut out);
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_deadline_in_the_past_fires_next_and_in_order() {
    let mut wheel = Wheel::new(100);
    for deadline in [90, 100, 10, 101, 90] {
        wheel.insert(deadline, deadline);
    }
    assert_eq!(wheel.next_deadline(), Some(10));
    let mut out = vec![0];
    wheel.advance(100, &mut out);
    assert_eq!(out, [0, 10, 90, 90, 100]);
    assert_eq!((wheel.next_deadline(), wheel.len()), (Some(101), 1));
}

/// A wheel that stepped through ticks would need hours for this.
#[test]
fn far_jumps_cost_what_is_there_and_not_the_distance() {
    let mut wheel = Wheel::new(0);
    let mut out = Vec::new();
    for round in 0..1000u64 {
        let now = round << 53;
        for by in [1, 1 << 20, 1 << 40, 1 << 52] {
            wheel.insert(now + by, round);
        }
        wheel.advance((round + 1) << 53, &mut out);
        assert_eq!(out.len() as u64, 4 * (round + 1));
    }
}

#[test]
fn the_end_of_time() {
    let mut wheel = Wheel::new(u64::MAX - 1);
    let mut out = Vec::new();
    wheel.insert(u64::MAX, 'b');
    wheel.insert(u64::MAX - 1, 'a');
    wheel.advance(u64::MAX - 1, &mut out);
    assert_eq!((out.as_slice(), wheel.next_deadline()), (&['a'][..], Some(u64::MAX)));
    wheel.advance(u64::MAX, &mut out);
    wheel.insert(u64::MAX, 'c');
    wheel.advance(0, &mut out);
    assert_eq!(out, ['a', 'b', 'c']);
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn drain_keeps_the_time() {
    let mut wheel = Wheel::new(50);
    for deadline in [60, 40, u64::MAX, 55, 1 << 40] {
        wheel.insert(deadline, deadline);
    }
    assert_eq!(wheel.drain().collect::<Vec<_>>(), [40, 55, 60, 1 << 40, u64::MAX]);
    assert_eq!((wheel.len(), wheel.next_deadline()), (0, None));
    wheel.insert(51, 51);
    let mut out = Vec::new();
    wheel.advance(50, &mut out);
    assert!(out.is_empty(), "the time went on");
    wheel.advance(51, &mut out);
    assert_eq!(out, [51]);
}

/// After one revolution the lists are as large as they get.
#[test]
fn lists_keep_their_capacity() {
    let mut wheel = Wheel::new(0);
    let mut out = Vec::new();
    let mut turn = |wheel: &mut Wheel<u64>| {
        let from = wheel.elapsed;
        for now in from..from + 4096 {
            wheel.insert(now + 1, now);
            wheel.insert(now + 100, now);
            out.clear();
            wheel.advance(now, &mut out);
        }
        let slots = wheel.slots.iter().flatten();
        slots.map(|s| (s.entries.as_ptr() as usize, s.entries.capacity())).collect::<Vec<_>>()
    };
    turn(&mut wheel);
    let once = turn(&mut wheel);
    let twice = turn(&mut wheel);
    // Level 0 and 1 are where these entries wait.
    assert_eq!(once[..2 * SLOTS], twice[..2 * SLOTS]);
}
