//! What the tasks of a group weigh, where tasks are weighed: a number beside each slot (group/segment.rs), written once, by who
//! submits the task, and read by who holds the group's token when tasks leave.
//!
//! The weight stays with its slot. A dispatch takes tasks away in any order, so what it gives back is the difference: the sum
//! over the tasks that it was offered, less the sum over those of them that are still there.

use super::{
    ring::End,
    segment::{Pool, Segment},
};

impl<T> End<T> {
    /// Claim holder, at the tail of a group whose tasks are weighed: what the task that was pushed last weighs.
    pub(crate) fn set_last_weight(self, pool: &Pool<T>, weight: u32) {
        debug_assert!(pool.is_weighed());
        let (segment, index) = self.last_slot();
        // SAFETY: the slot was pushed and is not counted yet: its weight is the producer's, as the slot is.
        unsafe { Segment::weight(segment, index).write(weight) };
    }

    /// Token holder, at the head: the places of the weights of the first `n` tasks, all counted.
    fn each_weight(mut self, mut n: u32, mut see: impl FnMut(*mut u32)) {
        while n > 0 {
            let (_, run) = self.peek(n);
            let (segment, first) = self.place_of_run();
            // SAFETY: the run's slots are counted, so they were written with their weights.
            (first..first + run).for_each(|index| see(unsafe { Segment::weight(segment, index) }));
            self.pass(run);
            n -= run;
        }
    }

    /// Token holder, at the head: what the first `n` tasks weigh together; nothing where tasks are not weighed.
    pub(crate) fn weight_of(self, pool: &Pool<T>, n: u32) -> u64 {
        let mut sum = 0;
        if pool.is_weighed() {
            // SAFETY: counted, and the token is ours.
            self.each_weight(n, |weight| sum += u64::from(unsafe { *weight }));
        }
        sum
    }

    /// Token holder, at the head: tasks that stay are moved to the end of the first `n`, the last of `stay` to the last
    /// place; their weights go along. `stay` are their places, from the first on.
    pub(crate) fn move_weights(self, n: u32, stay: impl DoubleEndedIterator<Item = usize>) {
        let mut weights = Vec::with_capacity(n as usize);
        self.each_weight(n, |weight| weights.push(weight));
        for (to, from) in (0..n as usize).rev().zip(stay.rev()) {
            // SAFETY: both are weights of counted slots; a weight moves to the right or stays, so none is read after it was
            // written over.
            unsafe { *weights[to] = *weights[from] };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{group::segment::SharedPool, topology::memory::Home};

    #[test]
    fn each_task_keeps_its_weight_over_segments_and_moves() {
        let mut pool = Pool::<[u8; 3]>::new(SharedPool::of_nodes(vec![Home::anywhere()], true));
        let mut tail = End::attached(&mut pool);
        let mut head = tail;
        for n in 0..100u8 {
            tail.push(&mut pool, [n; 3]);
            tail.set_last_weight(&pool, u32::from(n) << 20);
        }
        let sum = |from: u64, to: u64| (from..to).sum::<u64>() << 20;
        assert_eq!(head.weight_of(&pool, 100), sum(0, 100));
        for _ in 0..20 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        assert_eq!(head.weight_of(&pool, 30), sum(20, 50));
        // Of the next thirty, three stay: at the end of the thirty, in order.
        head.move_weights(30, [0usize, 7, 29].into_iter());
        for _ in 0..27 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        assert_eq!(head.weight_of(&pool, 1), 20 << 20);
        assert_eq!(head.weight_of(&pool, 2), (20 + 27) << 20);
        assert_eq!(head.weight_of(&pool, 3), (20 + 27 + 49) << 20);
        assert_eq!(head.weight_of(&pool, 53), ((20 + 27 + 49) << 20) + sum(50, 100));
        for _ in 0..53 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        End::detach(&mut tail, &mut head, &mut pool);
    }

    #[test]
    fn tasks_without_a_size_and_wide_ones_have_weights() {
        #[derive(Clone, Copy)]
        #[repr(align(64))]
        struct Wide(#[expect(dead_code)] u8);
        fn check<T: Copy>(task: T) {
            let mut pool = Pool::<T>::new(SharedPool::of_nodes(vec![Home::anywhere()], true));
            let mut tail = End::attached(&mut pool);
            let mut head = tail;
            for n in 0..40 {
                tail.push(&mut pool, task);
                tail.set_last_weight(&pool, n);
            }
            assert_eq!(head.weight_of(&pool, 40), 780);
            for _ in 0..40 {
                head.run(&mut pool, 1);
                head.pass(1);
            }
            End::detach(&mut tail, &mut head, &mut pool);
        }
        check(());
        check(Wide(1));
        check([1u64; 9]);
    }
}
