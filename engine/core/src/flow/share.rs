//! Who gets more, and who goes first: weights of groups, and two classes.
//!
//! *Weights* are deficit round robin (Shreedhar and Varghese 1995) with tasks as its unit: in each round a group may run as many
//! batches as its weight says, one after the other, before it goes to the tail. A batch that its time budget cuts short counts as one.
//!
//! *Classes*: groups of the class [`Class::Bulk`] run when no interactive group is ready, and in any case every
//! [`BULK_EVERY`]th time, so that they never starve. The same holds for permits (flow/admission.rs).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::outcome::drop_quietly;

/// One of so many choices goes to the bulk class while it waits.
pub(crate) const BULK_EVERY: u32 = 8;
/// Batches of one group in a round, at most.
const MOST: u32 = 1_000;

/// The class of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Goes first. What groups are by default.
    #[default]
    Interactive,
    /// Runs when nothing interactive is ready, and one time in eight in any case.
    Bulk,
}

type Of<K, R> = Option<Arc<dyn Fn(&K) -> R + Send + Sync>>;

/// What the builder was told; asked once a dispatch.
pub(crate) struct Shares<K> {
    weight: Of<K, u32>,
    class: Of<K, Class>,
}

impl<K> Shares<K> {
    pub(crate) fn equal() -> Self {
        Self { weight: None, class: None }
    }

    pub(crate) fn set_weight(&mut self, weight: impl Fn(&K) -> u32 + Send + Sync + 'static) {
        self.weight = Some(Arc::new(weight));
    }

    pub(crate) fn set_class(&mut self, class: impl Fn(&K) -> Class + Send + Sync + 'static) {
        self.class = Some(Arc::new(class));
    }

    pub(crate) fn has_classes(&self) -> bool {
        self.class.is_some()
    }

    #[inline(always)]
    pub(crate) fn has_any(&self) -> bool {
        self.weight.is_some() || self.class.is_some()
    }

    /// Batches of the group with this key in one round.
    #[inline]
    pub(crate) fn weight(&self, key: &K) -> u32 {
        self.weight.as_ref().map_or(1, |weight| ask(|| weight(key)).unwrap_or(1).clamp(1, MOST))
    }

    #[inline]
    pub(crate) fn class(&self, key: &K) -> Class {
        self.class
            .as_ref()
            .map_or(Class::Interactive, |class| ask(|| class(key)).unwrap_or_default())
    }
}

/// A panic of the user's function counts as no answer.
fn ask<R>(question: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(question)).map_err(drop_quietly).ok()
}

impl<K> std::fmt::Debug for Shares<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares")
            .field("weight", &self.weight.is_some())
            .field("class", &self.class.is_some())
            .finish()
    }
}
