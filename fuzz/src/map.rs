//! The map of a shard against a list of pairs: hashes in clusters, doublings and halvings under way.

use std::collections::{BTreeMap, BTreeSet};

use bgrp::fuzzing::Map;

use crate::bytes::Bytes;

/// Pairs that are held at the same time, about: many of them may have one hash, and cost their number each.
const PAIRS: usize = 600;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut map = Map::new();
    // Indices by hash, and every pair by number so that one can be named.
    let mut oracle: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    let mut next = 0u32;
    while !bytes.is_empty() {
        let op = bytes.u8();
        let arg = u32::from(op >> 3);
        match op & 7 {
            0..=2 => {
                let (n, from, spread) = (arg + 1, hash(&mut bytes), bytes.below(4));
                let n = if pairs.len() < PAIRS { n } else { 0 };
                for i in 0..n {
                    let hash = match spread {
                        0 => from,
                        1 => from.wrapping_add(i),
                        2 => from.wrapping_add(i << 27),
                        _ => from.wrapping_add(i.wrapping_mul(0x9E37_79B9)),
                    };
                    map.insert(hash, next);
                    oracle.entry(hash).or_default().insert(next);
                    pairs.push((hash, next));
                    next += 1;
                }
            }
            3 | 4 => {
                // A row of pairs, from the oldest or from anywhere.
                let from = bytes.u8() as usize * bytes.below(8) as usize;
                for _ in 0..(2 * arg + 1).min(pairs.len() as u32) {
                    let (hash, index) = pairs.swap_remove(from % pairs.len());
                    assert!(map.remove(hash, index), "({hash:#x}, {index}) is there");
                    let indices = oracle.get_mut(&hash).expect("the oracle holds the pair");
                    indices.remove(&index);
                    if indices.is_empty() {
                        oracle.remove(&hash);
                    }
                }
            }
            5 => {
                let (hash, index) = (hash(&mut bytes), u32::from(bytes.u16()));
                if !oracle.get(&hash).is_some_and(|indices| indices.contains(&index)) {
                    assert!(!map.remove(hash, index), "({hash:#x}, {index}) is not there");
                }
            }
            6 => compare(&map, &oracle, hash(&mut bytes)),
            _ => {
                for _ in 0..=arg {
                    map.migrate();
                }
            }
        }
        if let Some((hash, _)) = pairs.get(arg as usize) {
            map.prefetch(*hash);
            compare(&map, &oracle, *hash);
        }
    }
    oracle.keys().for_each(|hash| compare(&map, &oracle, *hash));
    while map.migrate() {}
    for (hash, index) in pairs {
        assert_eq!(map.get(hash, |i| i == index), Some(index));
        assert!(map.remove(hash, index) && !map.remove(hash, index));
    }
    assert!(map.heap_bytes() < 4_096, "an empty map keeps {} bytes", map.heap_bytes());
}

/// A hash whose top bits, which name its home, often are those of others, or the last there are.
fn hash(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.below(4) {
        0 => u32::from(bytes.u8()),
        1 => u32::MAX - u32::from(bytes.u8()),
        2 => u32::from(bytes.u8()) << 24,
        _ => bytes.u32(),
    }
}

/// `get` offers each index of the hash once, and no other.
fn compare(map: &Map, oracle: &BTreeMap<u32, BTreeSet<u32>>, hash: u32) {
    let mut offered = Vec::new();
    let found = map.get(hash, |index| {
        offered.push(index);
        false
    });
    assert_eq!(found, None);
    offered.sort_unstable();
    let wanted: Vec<u32> = oracle.get(&hash).into_iter().flatten().copied().collect();
    assert_eq!(offered, wanted, "indices of {hash:#x}");
}
