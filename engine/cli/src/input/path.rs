//! The parts of a record that is a path: `{dir}`, `{base}`, `{stem}`, `{ext}`.
//!
//! | record | dir | base | stem | ext |
//! |---|---|---|---|---|
//! | `/a/b.tar.gz` | `/a` | `b.tar.gz` | `b.tar` | `gz` |
//! | `b` | `.` | `b` | `b` | |
//! | `/b` | `/` | `b` | `b` | |
//! | `a/.rc` | `a` | `.rc` | `.rc` | |

use memchr::memrchr;

/// A part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// Everything before the last slash; `.` without one, `/` for the root.
    Dir,
    /// Everything behind the last slash.
    Base,
    /// The base without its extension.
    Stem,
    /// What follows the last dot of the base; empty without one, or if the base starts with it.
    Ext,
}

/// The names of the parts, as placeholders.
pub const NAMES: &str = "{dir}, {base}, {stem}, {ext}";

impl PathPart {
    /// The part called `name`.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Option<Self> {
        match name {
            b"dir" => Some(Self::Dir),
            b"base" => Some(Self::Base),
            b"stem" => Some(Self::Stem),
            b"ext" => Some(Self::Ext),
            _ => None,
        }
    }

    /// This part of `path`.
    #[must_use]
    pub fn of(self, path: &[u8]) -> &[u8] {
        let slash = memrchr(b'/', path);
        let base = slash.map_or(path, |at| &path[at + 1..]);
        let dot = memrchr(b'.', base).filter(|&at| at > 0);
        match self {
            Self::Dir => match slash {
                None => b".",
                Some(at) => {
                    let end = path[..at].iter().rposition(|&byte| byte != b'/');
                    end.map_or(b"/", |end| &path[..=end])
                }
            },
            Self::Base => base,
            Self::Stem => dot.map_or(base, |at| &base[..at]),
            Self::Ext => dot.map_or(b"", |at| &base[at + 1..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        for (path, dir, base, stem, ext) in [
            ("/a/b.tar.gz", "/a", "b.tar.gz", "b.tar", "gz"),
            ("b", ".", "b", "b", ""),
            ("/b", "/", "b", "b", ""),
            ("a/.rc", "a", ".rc", ".rc", ""),
            ("a//b.c", "a", "b.c", "b", "c"),
            ("//b", "/", "b", "b", ""),
            ("", ".", "", "", ""),
            ("a/", "a", "", "", ""),
        ] {
            let got = [PathPart::Dir, PathPart::Base, PathPart::Stem, PathPart::Ext]
                .map(|part| String::from_utf8(part.of(path.as_bytes()).to_vec()).unwrap());
            assert_eq!(got, [dir, base, stem, ext], "{path:?}");
        }
    }
}
