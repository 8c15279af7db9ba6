//! Fills a template in.

use std::io::Write;

use super::parse::Segment;

/// The values of the fields of one record, back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    bytes: Box<[u8]>,
    ends: Box<[usize]>,
}

impl Values {
    /// The values in the order of [`super::Template::fields`].
    #[must_use]
    pub fn new<V: AsRef<[u8]>>(values: &[V]) -> Self {
        let mut bytes = Vec::with_capacity(values.iter().map(|value| value.as_ref().len()).sum());
        let ends = values
            .iter()
            .map(|value| {
                bytes.extend_from_slice(value.as_ref());
                bytes.len()
            })
            .collect();
        Self { bytes: bytes.into_boxed_slice(), ends }
    }

    /// The value of field number `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether all values are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// What placeholders stand for in one record.
#[derive(Clone, Copy, Debug)]
pub struct Filling<'a> {
    /// `{}`
    pub whole: &'a [u8],
    /// `{field}`
    pub values: &'a Values,
    /// `{key}`
    pub key: &'a [u8],
    /// `{seq}`
    pub seq: u64,
    /// `{attempt}`
    pub attempt: u32,
}

/// The bytes of one argument.
#[must_use]
pub fn argument(segments: &[Segment], filling: &Filling<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for segment in segments {
        match segment {
            Segment::Text(text) => out.extend_from_slice(text),
            Segment::Whole => out.extend_from_slice(filling.whole),
            Segment::Field(index) => out.extend_from_slice(filling.values.get(*index)),
            Segment::Key => out.extend_from_slice(filling.key),
            // Writing to a vector cannot fail.
            Segment::Seq => drop(write!(out, "{}", filling.seq)),
            Segment::Attempt => drop(write!(out, "{}", filling.attempt)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Template;
    use super::*;

    proptest! {
        /// I1: values come out byte for byte, whatever they hold, braces included.
        #[test]
        fn values_are_byte_exact(whole: Vec<u8>, a: Vec<u8>, b: Vec<u8>, key: Vec<u8>, seq: u64, attempt: u32) {
            let template = Template::parse(&["<{a}|{b}{a}>", "{}", "{key}-{seq}-{attempt}"]).unwrap();
            let values = Values::new(&[&a, &b]);
            let filling = Filling { whole: &whole, values: &values, key: &key, seq, attempt };
            let got: Vec<_> = template.args.iter().map(|arg| argument(arg, &filling)).collect();
            let first = [b"<", &a[..], b"|", &b, &a, b">"].concat();
            let last = [&key[..], format!("-{seq}-{attempt}").as_bytes()].concat();
            prop_assert_eq!(got, vec![first, whole, last]);
        }
    }
}
