//! Checks a worker in any language against docs/reference/frames.md.
//!
//! ```text
//! cargo run -p bgrp-process --example conformance -- python3 engine/process/examples/workers/worker.py
//! ```

#[path = "../tests/conformance/mod.rs"]
mod conformance;

fn main() -> std::process::ExitCode {
    let command: Vec<String> = std::env::args().skip(1).collect();
    if command.is_empty() {
        eprintln!("usage: conformance COMMAND [ARGS...]");
        return 2.into();
    }
    let found = conformance::check(&conformance::Candidate { command: &command, env: &[] });
    let mut failed = 0;
    for (name, outcome) in found {
        match outcome {
            Ok(true) => println!("holds        {name}"),
            Ok(false) => println!("not offered  {name}"),
            Err(why) => {
                failed += 1;
                println!("FAILS        {name}: {why}");
            }
        }
    }
    println!("{failed} failed");
    u8::from(failed > 0).into()
}
