//! Lists of CPU numbers, as the kernel writes them: `0-3,8,10-11`.

use std::fmt;

/// Numbers above this are a mistake, not a machine: it is twice the CPUs that a Linux kernel can be built for. Each CPU
/// of a range costs a dozen looks for files. Fewer in fuzz targets, which write such ranges all the time.
pub(super) const MAX_ID: usize = if cfg!(fuzzing) { 1 << 8 } else { 1 << 14 };

/// The numbers of a list: sorted, each once, at least one.
///
/// ```
/// use bgrp::topology::parse_cpu_list;
///
/// assert_eq!(parse_cpu_list("8,0-3"), Ok(vec![0, 1, 2, 3, 8]));
/// assert!(parse_cpu_list("3-1").is_err());
/// ```
///
/// # Errors
/// Says which part is no CPU and no range of CPUs.
pub fn parse_cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let mut ids = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last <= MAX_ID => ids.extend(first..=last),
            _ => return Err(format!("{part:?} is no CPU or range of CPUs")),
        }
        if ids.len() > 2 * MAX_ID {
            return Err("more CPUs than a machine has".to_owned());
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Writes sorted numbers as the kernel does.
///
/// ```
/// use bgrp::topology::CpuList;
///
/// assert_eq!(CpuList(&[0, 1, 2, 3, 8, 10, 11]).to_string(), "0-3,8,10-11");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CpuList<'a>(pub &'a [usize]);

impl fmt::Display for CpuList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let follows = |a: &usize, b: &usize| a.checked_add(1) == Some(*b);
        for (n, run) in self.0.chunk_by(follows).enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}
