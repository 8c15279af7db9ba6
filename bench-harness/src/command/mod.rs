//! The commands of the harness, one a file.

pub mod compare;
pub mod experiment;
pub mod growth;
pub mod isolation;
pub mod latency;
pub mod memory;
pub mod model;
pub mod runner;
pub mod scale;
pub mod throughput;

use std::error::Error;

use crate::{
    system::{self, System},
    workload::{self, Workload},
};

/// The systems that a command is asked for. Those that cannot run here are left out, with a line that says why.
///
/// # Errors
/// There is none of that name; the error lists those that are.
pub fn systems(name: Option<&str>) -> Result<Vec<Box<dyn System>>, Box<dyn Error>> {
    let mut chosen = choose(system::all(), name, |system| system.name(), "system")?;
    chosen.retain(|system| match system.missing() {
        None => true,
        Some(why) => {
            eprintln!("bgrp-bench: skipped {}: {why}", system.name());
            false
        }
    });
    if chosen.is_empty() { Err("none of these systems can run here".into()) } else { Ok(chosen) }
}

/// The workloads that a command is asked for.
///
/// # Errors
/// There is none of that name; the error lists those that are.
pub fn workloads(name: Option<&str>, scale: f64) -> Result<Vec<Workload>, Box<dyn Error>> {
    let all = choose(workload::all(), name, |workload| workload.name, "workload")?;
    Ok(all.into_iter().map(|workload| workload.scaled(scale)).collect())
}

fn choose<X>(
    all: Vec<X>,
    name: Option<&str>,
    name_of: impl Fn(&X) -> &'static str,
    kind: &str,
) -> Result<Vec<X>, Box<dyn Error>> {
    let Some(wanted) = name else { return Ok(all) };
    let known: Vec<&str> = all.iter().map(&name_of).collect();
    let known = known.join(", ");
    let chosen: Vec<X> =
        all.into_iter().filter(|one| wanted.split(',').any(|w| w == name_of(one))).collect();
    if chosen.is_empty() {
        return Err(format!("there is no {kind} {wanted:?} in this build; known: {known}").into());
    }
    Ok(chosen)
}
