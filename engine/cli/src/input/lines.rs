//! Cuts at a terminator byte: lines, NUL-separated names, JSON Lines.

use std::io;

use memchr::memchr;

use super::window::Window;

/// How much of a piece that is too long is kept for the message and the dead letter.
const HEAD: usize = 1024;

/// What stands before the next terminator.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole piece.
    Whole(Vec<u8>),
    /// The last piece; the input ends without a terminator.
    Last(Vec<u8>),
    /// A piece over the limit, passed over; its beginning.
    TooLong(Vec<u8>),
}

/// The next piece, or `None` at the end.
///
/// # Errors
/// What reading answers.
pub fn next(window: &mut Window, terminator: u8, limit: usize) -> io::Result<Option<Piece>> {
    let mut looked = 0;
    loop {
        let data = window.data();
        if let Some(at) = memchr(terminator, &data[looked..]) {
            let length = looked + at;
            let piece = if length > limit {
                Piece::TooLong(head(&data[..length]))
            } else {
                Piece::Whole(data[..length].to_vec())
            };
            window.consume(length + 1);
            return Ok(Some(piece));
        }
        looked = data.len();
        if looked > limit {
            let head = head(data);
            skip(window, terminator)?;
            return Ok(Some(Piece::TooLong(head)));
        }
        if window.at_end() {
            let last = data.to_vec();
            window.consume(looked);
            return Ok(if last.is_empty() { None } else { Some(Piece::Last(last)) });
        }
        window.fill()?;
    }
}

fn head(data: &[u8]) -> Vec<u8> {
    data[..data.len().min(HEAD)].to_vec()
}

/// Consumes up to and including the next terminator, keeping nothing.
fn skip(window: &mut Window, terminator: u8) -> io::Result<()> {
    loop {
        let data = window.data();
        if let Some(at) = memchr(terminator, data) {
            window.consume(at + 1);
            return Ok(());
        }
        let all = data.len();
        window.consume(all);
        if window.at_end() {
            return Ok(());
        }
        window.fill()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &'static [u8], limit: usize) -> Vec<Piece> {
        let mut window = Window::new(Box::new(text));
        std::iter::from_fn(|| next(&mut window, b'\n', limit).unwrap()).collect()
    }

    #[test]
    fn empty_lines_are_pieces_and_the_end_is_none() {
        let got = pieces(b"a\n\nb", 100);
        assert_eq!(
            got,
            [Piece::Whole(b"a".to_vec()), Piece::Whole(vec![]), Piece::Last(b"b".to_vec())]
        );
        assert_eq!(pieces(b"a\n", 100), [Piece::Whole(b"a".to_vec())]);
        assert_eq!(pieces(b"", 100), []);
    }

    #[test]
    fn a_piece_over_the_limit_costs_itself_only() {
        let long: &'static [u8] = Vec::leak([vec![b'x'; 5000], b"\nok\n".to_vec()].concat());
        let got = pieces(long, 2000);
        assert_eq!(got, [Piece::TooLong(vec![b'x'; HEAD]), Piece::Whole(b"ok".to_vec())]);
    }
}
