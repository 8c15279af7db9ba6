//! Bgrp: the engine that runs keyed tasks.
#![allow(dead_code)]

mod shard;
