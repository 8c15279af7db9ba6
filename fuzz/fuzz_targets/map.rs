//! See `bgrp_fuzz::map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::map::run(input));
