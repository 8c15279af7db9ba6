//! See `bgrp_fuzz::flow`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::flow::run(input));
