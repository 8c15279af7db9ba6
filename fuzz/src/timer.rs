//! The timing wheel against a sorted map: nothing early, nothing lost, by deadline, and in the order of insertion
//! where deadlines are equal.

use std::collections::BTreeMap;

use bgrp::fuzzing::Wheel;

use crate::{
    bytes::Bytes,
    witness::{self, Witness},
};

/// Entries by deadline and number.
type Oracle = BTreeMap<(u64, u32), ()>;

/// Runs one input.
pub fn run(input: &[u8]) {
    witness::start();
    drive(&mut Bytes::new(input));
    witness::all_gone();
}

fn drive(bytes: &mut Bytes<'_>) {
    let start = bytes.magnitude();
    let mut now = if bytes.below(2) == 0 { start } else { u64::MAX - start };
    let mut wheel: Wheel<Witness> = Wheel::new(now);
    let mut oracle = Oracle::new();
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let op = bytes.u8();
        let arg = u64::from(op >> 4);
        let mut insert = |deadline| {
            let entry = Witness::new();
            oracle.insert((deadline, entry.id()), ());
            wheel.insert(deadline, entry);
        };
        let to = match op & 15 {
            0..=4 => {
                insert(now.saturating_add(bytes.magnitude()));
                continue;
            }
            5 => {
                // A row of neighbours: ties, and the edges of slots.
                let from = now.saturating_add(bytes.magnitude());
                (0..=arg).for_each(|i| insert(from.saturating_add(i / 2)));
                continue;
            }
            6 => {
                insert(now.saturating_sub(bytes.magnitude()));
                continue;
            }
            7 => {
                insert(if arg == 0 { u64::MAX } else { bytes.u64() });
                continue;
            }
            8 => now.saturating_add(arg),
            9 => now.saturating_add(bytes.magnitude()),
            // A sleeper that keeps the time: to the very next deadline, and just before it.
            10 | 11 => wheel.next_deadline().unwrap_or(now),
            12 => wheel.next_deadline().map_or(now, |next| next.saturating_sub(1)),
            // A clock that went back.
            13 => now.saturating_sub(bytes.magnitude()),
            14 if arg == 7 => {
                let drained: Vec<u32> = wheel.drain().iter().map(Witness::id).collect();
                let wanted = std::mem::take(&mut oracle);
                assert!(drained.into_iter().eq(wanted.into_keys().map(|(_, id)| id)), "drained");
                continue;
            }
            _ => now.saturating_add(1 << (4 * arg).min(63)),
        };
        let least = oracle.first_key_value().map(|((deadline, _), ())| *deadline);
        assert_eq!(wheel.next_deadline(), least, "the next deadline at {now}");
        out.clear();
        wheel.advance(to, &mut out);
        now = now.max(to);
        let later = now.checked_add(1).map(|after| oracle.split_off(&(after, 0)));
        let due = std::mem::replace(&mut oracle, later.unwrap_or_default());
        let wanted = due.into_keys().map(|(_, id)| id);
        assert!(out.iter().map(Witness::id).eq(wanted), "what fires at {now}");
        assert!(wheel.next_deadline().is_none_or(|next| next > now), "due and not fired at {now}");
    }
    // The far future comes too.
    out.clear();
    wheel.advance(u64::MAX, &mut out);
    assert!(out.iter().map(Witness::id).eq(oracle.into_keys().map(|(_, id)| id)), "the rest");
    assert_eq!(wheel.next_deadline(), None);
}
