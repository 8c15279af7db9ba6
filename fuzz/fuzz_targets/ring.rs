//! See `bgrp_fuzz::ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::ring::run(input));
