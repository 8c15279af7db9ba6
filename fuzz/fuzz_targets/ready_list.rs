//! See `bgrp_fuzz::ready_list`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bgrp_fuzz::ready_list::run(input));
