//! The settings of backpressure: how much may be inside, and what submitters do where there is no room.

use std::sync::Arc;

use super::Builder;

impl<K, T, S> Builder<K, T, S> {
    /// Tasks inside the engine, at most: those in groups and those in the ingress together, plus a slack of one
    /// chunk of 256 per worker. Also bounds the memory of the ingress. 64 to 2^30; default 2^20.
    pub fn capacity(mut self, tasks: usize) -> Self {
        self.draft.capacity = tasks;
        self
    }

    /// Tasks inside one group, at most. A group may exceed it by what is in the ingress of its shard when it fills up
    /// (at most 4,096 tasks, less with a small `capacity`). Submits by lane do not look at it. 1 to 2^30;
    /// default 65,536.
    pub fn group_capacity(mut self, tasks: usize) -> Self {
        self.draft.group_capacity = tasks;
        self
    }

    /// As [`group_capacity`](Self::group_capacity), exactly: never are more than `tasks` tasks inside one group, those of its
    /// batch in flight included, whatever ways they come. 1 to 2^30. It replaces `group_capacity`, and makes
    /// [`capacity`](Self::capacity) exact too.
    ///
    /// `try_submit` says [`GroupFull`](crate::SubmitReason::GroupFull) if and only if so many tasks are inside, or somebody waits
    /// for a place; who waits gets one in the order of arrival, from when the group is down to half of its capacity. A
    /// place comes back when its task has ended, one way or the other.
    ///
    /// The price: a submitter takes the lock of its shard and looks its group up, under which `Eq` of keys runs (it must not
    /// call the engine; a panic in it is [`KeyPanicked`](crate::SubmitReason::KeyPanicked)). A submit is no longer
    /// lock-free, `submit_many` is no faster than its submits, and a [`Producer`](crate::Producer) has no lanes. Use it where the
    /// number itself matters; the default costs less and lets a group exceed its capacity by what is on its way.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bgrp::{Engine, SubmitReason};
    /// let engine =
    ///     Engine::<&str, u32>::builder().exact_group_capacity(2).task_handler(|_, _| ()).build()?;
    /// engine.pause_group("merchant_1001");
    /// engine.try_submit("merchant_1001", 1)?;
    /// engine.try_submit("merchant_1001", 2)?;
    /// let error = engine.try_submit("merchant_1001", 3).unwrap_err();
    /// assert_eq!((error.task, error.reason), (3, SubmitReason::GroupFull));
    /// engine.try_submit("merchant_1002", 3)?;
    /// engine.resume_group(&"merchant_1001");
    /// assert_eq!(engine.close(Duration::from_secs(10)).done, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exact_group_capacity(mut self, tasks: usize) -> Self {
        self.draft.group_capacity = tasks;
        self.draft.exact_groups = true;
        self
    }

    /// What a task weighs, in bytes or whatever is to be bounded: asked once for each submit, before it waits. The sum over all tasks
    /// inside is in [`Stats::bytes`](crate::Stats::bytes), and bounded by [`capacity_bytes`](Self::capacity_bytes).
    ///
    /// Capacities are exact then, at the price that [`exact_group_capacity`](Self::exact_group_capacity) names, and each place in a
    /// group's queue is 4 bytes larger. Of one task no more than 2^32 - 1 are counted. The task keeps the weight that it had when it was submitted, whatever its handler does to
    /// it. A panic of `weigh` is [`WeigherPanicked`](crate::SubmitReason::WeigherPanicked), and the task comes back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bgrp::{Engine, SubmitReason};
    /// let engine = Engine::<u64, Vec<u8>>::builder()
    ///     .weigh(|_, body| body.len())
    ///     .capacity_bytes(1 << 20)
    ///     .task_handler(|_, _| ())
    ///     .build()?;
    /// engine.submit(1, vec![0; 1_000])?;
    /// let error = engine.submit(1, vec![0; 2 << 20]).unwrap_err();
    /// assert_eq!(error.reason, SubmitReason::TooLarge { bytes: 2 << 20, capacity: 1 << 20 });
    /// engine.close(Duration::from_secs(10));
    /// assert_eq!(engine.stats().bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weigh(mut self, weigh: impl Fn(&K, &T) -> usize + Send + Sync + 'static) -> Self {
        self.draft.weigher = Some(Arc::new(weigh));
        self
    }

    /// What all tasks inside the engine may weigh together, at most, as [`weigh`](Self::weigh) says. Exact: there is no slack. 1 to
    /// 2^32 - 1 (for more than 4 GiB, weigh in KiB); default no limit.
    ///
    /// A task for which there is no room waits in one line for the whole engine, first come, first served: a heavy one is passed
    /// by no lighter one behind it. One that weighs more than the capacity is refused at once. What waits in groups that are
    /// paused or halted keeps its bytes.
    pub fn capacity_bytes(mut self, bytes: usize) -> Self {
        self.draft.capacity_bytes = Some(bytes);
        self
    }

    /// What a submit does where its group is full and halted by the policy: nobody makes room there before somebody resumes or
    /// discards the group. `false`, the default: it says [`GroupHalted`](crate::SubmitReason::GroupHalted) at once. `true`: it
    /// waits as at any full group (`submit` until then, `submit_timeout` until its time is up, `try_submit` not at all).
    pub fn wait_at_halted_groups(mut self, wait: bool) -> Self {
        self.draft.wait_at_halted = wait;
        self
    }
}
