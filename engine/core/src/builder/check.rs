//! The bounds of the settings: each error names the field, its value and what it may be.

use std::time::Duration;

use super::Draft;
use crate::{
    error::BuildError,
    flow::adaptive,
    topology::{CpuList, MAX_WORKERS, Snapshot, Workers},
};

impl<K, T> Draft<K, T> {
    /// Says which setting is out of its bounds. What the engine may use of the machine is settled here too.
    pub(super) fn check(&mut self) -> Result<(), BuildError> {
        let bound = |field, value: usize, least: usize, most: usize, bounds| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(BuildError::OutOfBounds { field, value: value.to_string(), bounds })
            }
        };
        if let Workers::Fixed(n) = self.workers {
            bound("workers", n, 1, MAX_WORKERS, "between 1 and 1024")?;
        }
        bound("batch_size", self.batch_size, 1, 1 << 16, "between 1 and 65536")?;
        bound("capacity", self.capacity, 64, 1 << 30, "between 64 and 1073741824")?;
        let group = if self.exact_groups { "exact_group_capacity" } else { "group_capacity" };
        bound(group, self.group_capacity, 1, 1 << 30, "between 1 and 1073741824")?;
        if let Some(bytes) = self.capacity_bytes {
            let most = u32::MAX as usize;
            bound("capacity_bytes", bytes, 1, most, "between 1 and 4294967295")?;
            if self.weigher.is_none() {
                return Err(BuildError::OutOfBounds {
                    field: "capacity_bytes",
                    value: bytes.to_string(),
                    bounds: "set together with weigh, which says what a task weighs",
                });
            }
        }
        if self.flush_interval > Duration::from_secs(3_600) {
            return Err(BuildError::OutOfBounds {
                field: "flush_interval",
                value: format!("{:?}", self.flush_interval),
                bounds: "at most one hour",
            });
        }
        if self.spin > Duration::from_secs(1) {
            return Err(BuildError::OutOfBounds {
                field: "spin",
                value: format!("{:?}", self.spin),
                bounds: "at most one second",
            });
        }
        if self.time_budget.is_zero() {
            return Err(BuildError::OutOfBounds {
                field: "time_budget",
                value: "zero".to_owned(),
                bounds: "more than zero",
            });
        }
        if self.retry.limit() == 0 {
            return Err(BuildError::OutOfBounds {
                field: "retry",
                value: "0 attempts".to_owned(),
                bounds: "at least 1 attempt (1 means no retry)",
            });
        }
        self.in_flight.map_or(Ok(()), adaptive::check)?;
        self.rate.map_or(Ok(()), |rate| rate.check("rate"))?;
        self.group_rate.map_or(Ok(()), |rate| rate.check("group_rate"))?;
        if let Some(cpus) = self.cpus.take() {
            let machine = self.machine.take().unwrap_or_else(Snapshot::read).restricted_to(&cpus);
            if machine.mask.is_empty() {
                return Err(BuildError::OutOfBounds {
                    field: "cpus",
                    value: CpuList(&cpus).to_string(),
                    bounds: "CPUs that are online and in the affinity mask of the process",
                });
            }
            self.machine = Some(machine);
        }
        Ok(())
    }
}
