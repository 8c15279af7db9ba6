//! The rings of the ingress and of the groups, each against a queue: positions that start near every wrap, cells that
//! are published out of order, values that count their drops.

use std::collections::{BTreeMap, VecDeque};

use bgrp::fuzzing::{Lane, Pools, Refused, Ring, Segments};

use crate::{
    bytes::Bytes,
    witness::{self, Witness},
};

/// Runs one input.
pub fn run(input: &[u8]) {
    witness::start();
    let mut bytes = Bytes::new(input);
    match bytes.below(4) {
        0 | 1 => ingress(&mut bytes),
        2 => segments(&mut bytes),
        _ => lane(&mut bytes),
    }
    witness::all_gone();
}

/// What a record is: its mark, its key if it is by key, its task.
type Record = (u32, Option<u32>, u32);

/// The ring with many producers and one consumer.
fn ingress(bytes: &mut Bytes<'_>) {
    let capacity = 1u64 << bytes.below(6);
    // Near 0, the wraps of the 31 bits of a turn, and the largest positions before the CLOSED bit.
    let near = bytes.pick(&[0, 1 << 30, 1 << 31, 1 << 32, 1 << 33, 1 << 62]);
    let start = (near + u64::from(bytes.below(16))).saturating_sub(8);
    let ring: Ring<Witness, Witness> = Ring::new(capacity as usize, start);
    let (mut tail, mut head, mut given, mut closed) = (start, start, start, false);
    // Reserved and not filled yet, in any order; published, by position.
    let mut open: Vec<u64> = Vec::new();
    let mut published: BTreeMap<u64, Record> = BTreeMap::new();
    while !bytes.is_empty() {
        let op = bytes.u8();
        let arg = u64::from(op >> 3);
        match op & 7 {
            0 | 1 => {
                let want = arg as u32 + 1;
                let free = capacity - (tail - given);
                let wanted = match (closed, free) {
                    (true, _) => Err(Refused::Closed),
                    (_, 0) => Err(Refused::Full),
                    _ => Ok((tail, free.min(u64::from(want)) as u32)),
                };
                assert_eq!(ring.reserve(want), wanted, "reserve {want} with {free} free");
                if let Ok((at, n)) = wanted {
                    tail = at + u64::from(n);
                    open.extend(at..tail);
                }
            }
            2 | 3 if !open.is_empty() => {
                let position = open.swap_remove(arg as usize % open.len());
                let mark = bytes.u8().into();
                let key = (op & 1 == 0).then(Witness::new);
                let task = Witness::new();
                published.insert(position, (mark, key.as_ref().map(Witness::id), task.id()));
                // SAFETY: reserved above, and taken out of the list of those that are open.
                unsafe { ring.fill(position, mark, key, task) };
            }
            4 => {
                // The consumer looks ahead as well: at cells of this lap and of the next one.
                let position = head + arg;
                if position < given + capacity {
                    let wanted =
                        published.get(&position).map(|(mark, key, _)| (*mark, key.is_none()));
                    assert_eq!(ring.peek(position), wanted, "peek {arg} ahead of {head}");
                }
            }
            5 => {
                for _ in 0..=arg {
                    let Some((mark, by_group)) = ring.peek(head) else {
                        assert!(!published.contains_key(&head), "a published record is hidden");
                        break;
                    };
                    let record = published.remove(&head);
                    // SAFETY: shown by `peek`, and passed by the head.
                    let (key, task) = unsafe { ring.take(head, by_group) };
                    let taken = (mark, key.as_ref().map(Witness::id), task.id());
                    assert_eq!(Some(taken), record, "position {head}");
                    head += 1;
                }
            }
            6 => {
                given = head;
                ring.give_back(head);
                assert_eq!(ring.head(), given);
            }
            7 if arg == 31 => {
                closed = true;
                ring.close();
            }
            _ => assert_eq!(ring.tail(), (tail, closed)),
        }
    }
    // A producer cannot die between reserve and publish: those that are on their way come through.
    for position in open {
        // SAFETY: reserved, and not filled.
        unsafe { ring.fill(position, 0, None, Witness::new()) };
    }
    ring.give_back(head);
}

/// The rings of two groups that share their segments.
fn segments(bytes: &mut Bytes<'_>) {
    let pools = Pools::new();
    let mut groups: Vec<(Segments<Witness>, VecDeque<u32>)> =
        (0..2).map(|_| (Segments::new(&pools), VecDeque::new())).collect();
    let mut made = 0u32;
    while !bytes.is_empty() && made < 20_000 {
        let op = bytes.u8();
        let (group, oracle) = &mut groups[usize::from(op & 1)];
        let arg = u32::from(op >> 4);
        match op >> 1 & 7 {
            0..=2 => {
                let n = if arg == 15 { u32::from(bytes.u8()) * 4 } else { arg + 1 };
                for _ in 0..n {
                    let task = Witness::new();
                    oracle.push_back(task.id());
                    group.push(task);
                }
                made += n;
            }
            3 | 4 => {
                let n = if arg == 15 { u32::from(bytes.u8()) * 4 } else { arg + 1 };
                let taken: Vec<u32> = group.take(n).iter().map(Witness::id).collect();
                let n = oracle.len().min(n as usize);
                assert!(taken.into_iter().eq(oracle.drain(..n)), "taken");
            }
            5 => {
                let mut seen = Vec::new();
                group.look(arg * 20, |task| seen.push(task.id()));
                assert!(seen.iter().eq(oracle.iter().take(arg as usize * 20)), "looked at");
            }
            6 => group.rewind(),
            _ => group.detach(),
        }
        assert_eq!(group.len() as usize, oracle.len());
    }
}

/// The ring with one producer and one consumer.
fn lane(bytes: &mut Bytes<'_>) {
    let capacity = 1usize << bytes.below(5);
    let mut lane: Lane<Witness, Witness> = Lane::new(capacity);
    let mut oracle: VecDeque<Record> = VecDeque::new();
    let (mut head, mut given, mut tail, mut retired) = (0, 0, 0, false);
    while !bytes.is_empty() {
        let op = bytes.u8();
        let arg = usize::from(op >> 3);
        match op & 7 {
            0..=3 if !retired => {
                let (key, task) = (Witness::new(), Witness::new());
                let record = (arg as u32, Some(key.id()), task.id());
                match lane.push(arg as u32, key, task) {
                    Ok(()) => {
                        assert!(tail - given < capacity as u64, "pushed into a full lane");
                        tail += 1;
                        oracle.push_back(record);
                    }
                    Err((key, task)) => {
                        assert_eq!((Some(key.id()), task.id()), (record.1, record.2));
                        assert_eq!(tail - given, capacity as u64, "refused with room");
                    }
                }
            }
            4 | 5 => {
                for _ in 0..(arg + 1).min((lane.tail() - head) as usize) {
                    let mark = lane.hash(head);
                    // SAFETY: below the tail, and passed by the head.
                    let (key, task) = unsafe { lane.take(head) };
                    assert_eq!(Some((mark, Some(key.id()), task.id())), oracle.pop_front());
                    head += 1;
                }
            }
            6 => {
                given = head;
                lane.give_back(head);
            }
            7 if arg == 31 => {
                retired = true;
                lane.retire();
            }
            _ => {}
        }
        assert_eq!((lane.tail(), lane.head()), (tail, given));
        assert_eq!(lane.is_spent(), retired && given == tail);
    }
    lane.give_back(head);
}
