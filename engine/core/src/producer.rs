//! A producer with lanes of its own.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use crate::{
    engine::{Shared, until},
    error::{SubmitError, SubmitReason},
    front::{Front, Patience, Target},
    ingress::{lane::Lane, ring::Address},
};

/// A private way into the engine, from [`Engine::producer`](crate::Engine::producer): no read-modify-write per task.
///
/// Tasks of one producer are in order. Between two producers, or a producer and any other way in, there is none:
/// use it for keys that only this producer submits, or where another order decides.
///
/// A lane knows no group capacity (it reads no filter): the engine's capacity is its bound. Where groups have an
/// [exact capacity](crate::Builder::exact_group_capacity), or tasks are weighed, a producer has no lanes: it is another name
/// for the engine, with its order and its cost.
pub struct Producer<K, T> {
    front: Arc<Front<K, T>>,
    /// One for each shard; none where capacities are exact.
    lanes: Box<[Own<K, T>]>,
    /// Where capacities are exact: the engine.
    exact: Option<Arc<Shared<K, T>>>,
}

/// A lane, and its producer's copy of where its head is.
struct Own<K, T> {
    lane: Arc<Lane<K, T>>,
    head: u64,
}

impl<K, T> Producer<K, T> {
    pub(crate) fn new(shared: &Arc<Shared<K, T>>, lanes: Vec<Arc<Lane<K, T>>>) -> Self {
        let front = shared.front.clone();
        let exact = front.exact().is_some().then(|| shared.clone());
        let due = if exact.is_some() { 0 } else { front.doors.len() };
        assert_eq!(lanes.len(), due, "a lane for each shard");
        let lanes = lanes.into_iter().map(|lane| Own { lane, head: 0 }).collect();
        Self { front, lanes, exact }
    }
}

impl<K: Hash + Eq, T> Producer<K, T> {
    /// As [`Engine::submit`](crate::Engine::submit), in this producer's order.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    #[inline]
    pub fn submit(&mut self, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        self.send(key, task, Patience::Forever)
    }

    /// As [`Engine::try_submit`](crate::Engine::try_submit), in this producer's order.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    #[inline]
    pub fn try_submit(&mut self, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        self.send(key, task, Patience::None)
    }

    /// As [`Engine::submit_timeout`](crate::Engine::submit_timeout), in this producer's order.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    pub fn submit_timeout(
        &mut self,
        key: K,
        task: T,
        timeout: Duration,
    ) -> Result<(), SubmitError<K, T>> {
        self.send(key, task, until(timeout))
    }

    #[inline]
    fn send(&mut self, key: K, task: T, patience: Patience) -> Result<(), SubmitError<K, T>> {
        if self.exact.is_some() {
            return self.send_exactly(key, task, patience);
        }
        let (shard, hash) = self.front.hash(&key);
        match self.push(shard, hash, key, task) {
            Err(SubmitError { key, task, reason: SubmitReason::EngineFull })
                if !matches!(patience, Patience::None) =>
            {
                self.send_slowly(shard, hash, key, task, patience)
            }
            result => result,
        }
    }

    #[inline]
    fn push(&mut self, shard: usize, hash: u32, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        let front = &*self.front;
        debug_assert!(shard < self.lanes.len());
        // SAFETY: a shard that a hash names is in bounds, and there is a lane for each.
        let Own { lane, head } = unsafe { self.lanes.get_unchecked_mut(shard) };
        lane.begin();
        front.barrier.light();
        if front.status.refuses() {
            lane.end();
            return Err(SubmitError { key, task, reason: SubmitReason::Closed });
        }
        let pushed = lane.push(head, hash, key, task);
        lane.end();
        match pushed {
            Ok(()) => {
                front.pushed(front.door(shard));
                Ok(())
            }
            Err((key, task)) => Err(SubmitError { key, task, reason: SubmitReason::EngineFull }),
        }
    }

    /// As the engine itself does it: there are no lanes.
    #[cold]
    #[inline(never)]
    fn send_exactly(&self, key: K, task: T, patience: Patience) -> Result<(), SubmitError<K, T>> {
        let (shard, hash) = self.front.hash(&key);
        let target = Target { shard, hash, address: Address::Key(hash, key) };
        self.front.send(target, None, task, patience).map_err(|(address, task, reason)| {
            let Address::Key(_, key) = address else { unreachable!("submitted by key") };
            SubmitError { key, task, reason }
        })
    }

    #[cold]
    fn send_slowly(
        &mut self,
        shard: usize,
        hash: u32,
        mut key: K,
        mut task: T,
        patience: Patience,
    ) -> Result<(), SubmitError<K, T>> {
        let front = self.front.clone();
        let mut gate = front.doors[shard].gate.enter();
        loop {
            match self.push(shard, hash, key, task) {
                Err(SubmitError { key: k, task: t, reason: SubmitReason::EngineFull }) => {
                    (key, task) = (k, t);
                }
                result => return result,
            }
            if let Err(reason) = front.wait_at(&mut gate, patience, SubmitReason::EngineFull) {
                return Err(SubmitError { key, task, reason });
            }
        }
    }
}

impl<K, T> Drop for Producer<K, T> {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|own| own.lane.retire());
    }
}

impl<K, T> fmt::Debug for Producer<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::{Engine, Workers};

    #[test]
    fn lanes_of_producers_that_are_gone_go_with_the_next_one_where_no_task_comes() {
        // Only a look at a shard took them away, and nobody looks at a shard to which nothing is submitted: a producer for each
        // request that submits to few keys kept its lanes in all other shards for ever.
        let engine = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(1))
            .task_handler(|_, _| ())
            .build()
            .expect("valid settings");
        let gone: Vec<_> =
            engine.producer().lanes.iter().map(|own| Arc::downgrade(&own.lane)).collect();
        let next = engine.producer();
        assert!(gone.iter().all(|lane| lane.strong_count() == 0));
        assert!(next.lanes.iter().all(|own| Arc::strong_count(&own.lane) == 3), "its own stay");
    }
}
