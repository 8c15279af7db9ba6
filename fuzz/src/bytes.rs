//! An input, read from its front.

/// The bytes that are left. Numbers read past the end are 0.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of an input.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Two bytes, the low one first.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// Four bytes, the low one first.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Eight bytes, the low one first.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// One byte, as a number below `n`.
    pub fn below(&mut self, n: u8) -> u8 {
        self.u8() % n
    }

    /// One byte, as one of these.
    pub fn pick<V: Copy>(&mut self, of: &[V]) -> V {
        of[self.u8() as usize % of.len()]
    }

    /// Up to `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of any order of magnitude: small ones, and those next to a power of two, come often.
    pub fn magnitude(&mut self) -> u64 {
        let form = self.u8();
        let bits = form & 63;
        match form >> 6 {
            0 => u64::from(bits),
            1 => (1u64 << bits).wrapping_add(u64::from(self.u8() % 4)).wrapping_sub(2),
            2 => self.u64() >> bits,
            _ => u64::from(self.u16()) << (bits % 48),
        }
    }
}
