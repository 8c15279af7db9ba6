//! What a worker prints, cut into lines. Any bytes may come, without an end of line for ever: a line that is too long comes in pieces,
//! so a worker that prints gigabytes costs a buffer.

/// The longest line that is kept in one piece.
const LONGEST: usize = 64 * 1024;

/// What is not a whole line yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// More bytes; `line` gets each line that they end, without its end.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(Vec<u8>)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.piece(&bytes[..end], &mut line);
            line(std::mem::take(&mut self.rest));
            bytes = &bytes[end + 1..];
        }
        self.piece(bytes, &mut line);
    }

    fn piece(&mut self, mut bytes: &[u8], line: &mut impl FnMut(Vec<u8>)) {
        while self.rest.len() + bytes.len() > LONGEST {
            let (now, later) = bytes.split_at(LONGEST - self.rest.len());
            self.rest.extend_from_slice(now);
            line(std::mem::take(&mut self.rest));
            bytes = later;
        }
        self.rest.extend_from_slice(bytes);
    }

    /// There is no more: a last line without its end.
    pub(super) fn end(&mut self) -> Option<Vec<u8>> {
        (!self.rest.is_empty()).then(|| std::mem::take(&mut self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_pieces_the_lines_are_the_same() {
        let text = [&b"one\n\ntwo"[..], &vec![b'x'; LONGEST + 5], b"\nthr\xff\0ee"].concat();
        let mut long = b"two".to_vec();
        long.resize(LONGEST, b'x');
        let want = [b"one".to_vec(), Vec::new(), long, vec![b'x'; 8], b"thr\xff\0ee".to_vec()];
        for size in [1, 2, 7, 4_096, text.len()] {
            let (mut lines, mut got) = (Lines::default(), Vec::new());
            text.chunks(size).for_each(|chunk| lines.push(chunk, |line| got.push(line)));
            got.extend(lines.end());
            assert_eq!(got, want, "in pieces of {size}");
            assert_eq!(lines.end(), None);
        }
    }
}
