//! scratch: for callgrind
use bgrp::{Engine, Workers};
use bgrp_bench::workload::Random;
fn main() {
    let keys: u64 = std::env::args().nth(1).map_or(200, |k| k.parse().unwrap());
    let n: u64 = std::env::args().nth(2).map_or(400_000, |k| k.parse().unwrap());
    let mut sim = Engine::<u64, u32>::builder().workers(Workers::fixed(2)).idle_groups(4_000_000)
        .state(|_| (0u64, 0u64))
        .task_handler(|s: &mut (u64, u64), t| { s.0 = (s.0.rotate_left(5) ^ u64::from(**t)).wrapping_mul(0x9E37_79B9_7F4A_7C15); s.1 += 1; })
        .build_sim(1).unwrap();
    let mut r = Random::new(1);
    for i in 0..n {
        sim.submit(r.below(keys), i as u32).unwrap();
        if i % 2048 == 2047 { sim.run(); }
    }
    sim.run();
    assert_eq!(sim.stats().done, n);
}
