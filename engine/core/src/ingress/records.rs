//! What the claim holder reads, whether it came through the ring or through a lane.

/// Records by position. The claim holder reads them in order and passes each once.
///
/// A record has a mark: the hash bits of its key, or the index of the group that its handle names.
pub(crate) trait Records<K, T> {
    /// The mark of the record at `position` and whether it is by group, if it is published.
    fn peek(&self, position: u64) -> Option<(u32, bool)>;

    /// Borrows the key of a record by key.
    ///
    /// # Safety
    /// `peek(position)` returned `Some((_, false))` under this claim and the record was not taken.
    unsafe fn key(&self, position: u64) -> &K;

    /// Moves the key of a record out.
    ///
    /// # Safety
    /// As [`Records::key`]; once.
    unsafe fn take_key(&self, position: u64) -> K;

    /// Moves the task of a record out.
    ///
    /// # Safety
    /// `peek(position)` returned `Some` under this claim; once.
    unsafe fn take_task(&self, position: u64) -> T;
}
