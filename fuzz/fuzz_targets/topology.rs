//! See `bgrp_fuzz::topology`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::topology::run(input));
