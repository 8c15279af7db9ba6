//! See `bgrp_fuzz::timer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::timer::run(input));
