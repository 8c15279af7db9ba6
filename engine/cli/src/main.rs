//! The `bgrp` command.
fn main() {}
