//! Reads `{}`, `{field}`, `{key}`, `{seq}`, `{attempt}`, `{{` and `}}`.

use bstr::ByteSlice;
use memchr::memchr2;

/// A piece of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Bytes that stand for themselves.
    Text(Vec<u8>),
    /// `{}`: the whole record.
    Whole,
    /// `{name}`: the field with this number in [`Template::fields`].
    Field(usize),
    /// `{key}`: the key of the group.
    Key,
    /// `{seq}`: the number of the record, from 1.
    Seq,
    /// `{attempt}`: the number of the attempt, from 1.
    Attempt,
}

/// A list of arguments with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The arguments.
    pub args: Vec<Vec<Segment>>,
    /// The names of the fields that they use, each once.
    pub fields: Vec<Vec<u8>>,
}

/// An argument that is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` without `}`.
    #[error(
        "argument {arg:?}: the brace opened at byte {at} is not closed; write {{{{ for a brace that is meant as it stands"
    )]
    Open {
        /// The argument.
        arg: String,
        /// Where, from 1.
        at: usize,
    },
    /// `}` without `{`.
    #[error(
        "argument {arg:?}: nothing is open for the brace at byte {at} to close; write }}}} for a brace that is meant as it stands"
    )]
    Close {
        /// The argument.
        arg: String,
        /// Where, from 1.
        at: usize,
    },
}

impl Template {
    /// Reads each argument.
    ///
    /// # Errors
    /// A brace that is neither doubled nor part of a placeholder.
    pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<Self, TemplateError> {
        let mut template = Self::default();
        for arg in args {
            let segments = template.argument(arg.as_ref())?;
            template.args.push(segments);
        }
        Ok(template)
    }

    /// Whether any argument holds `wanted`.
    #[must_use]
    pub fn uses(&self, wanted: &Segment) -> bool {
        self.args.iter().flatten().any(|segment| segment == wanted)
    }

    /// Whether any argument holds a placeholder.
    #[must_use]
    pub fn has_placeholder(&self) -> bool {
        self.args.iter().any(|arg| holds_placeholder(arg))
    }

    fn argument(&mut self, arg: &[u8]) -> Result<Vec<Segment>, TemplateError> {
        let shown = || arg.to_str_lossy().into_owned();
        let mut segments = Vec::new();
        let mut text = Vec::new();
        let mut at = 0;
        while let Some(offset) = memchr2(b'{', b'}', &arg[at..]) {
            text.extend_from_slice(&arg[at..at + offset]);
            at += offset;
            let brace = arg[at];
            if arg.get(at + 1) == Some(&brace) {
                text.push(brace);
                at += 2;
                continue;
            }
            if brace == b'}' {
                return Err(TemplateError::Close { arg: shown(), at: at + 1 });
            }
            let Some(length) = arg[at + 1..].find_byte(b'}') else {
                return Err(TemplateError::Open { arg: shown(), at: at + 1 });
            };
            if !text.is_empty() {
                segments.push(Segment::Text(std::mem::take(&mut text)));
            }
            segments.push(self.placeholder(&arg[at + 1..at + 1 + length]));
            at += length + 2;
        }
        text.extend_from_slice(&arg[at..]);
        if !text.is_empty() {
            segments.push(Segment::Text(text));
        }
        Ok(segments)
    }

    fn placeholder(&mut self, name: &[u8]) -> Segment {
        match name {
            b"" => Segment::Whole,
            b"key" => Segment::Key,
            b"seq" => Segment::Seq,
            b"attempt" => Segment::Attempt,
            _ => {
                let known = self.fields.iter().position(|field| field == name);
                Segment::Field(known.unwrap_or_else(|| {
                    self.fields.push(name.to_vec());
                    self.fields.len() - 1
                }))
            }
        }
    }
}

/// Whether an argument changes with the record.
#[must_use]
pub fn holds_placeholder(arg: &[Segment]) -> bool {
    arg.iter().any(|segment| !matches!(segment, Segment::Text(_)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Segment {
        Segment::Text(text.into())
    }

    #[test]
    fn placeholders_and_doubled_braces() {
        let template = Template::parse(&[
            "a{}b",
            "{title}{seq}",
            "{{}}",
            "{title}/{/a/b}",
            "",
            "{key}{attempt}",
        ])
        .unwrap();
        assert_eq!(template.fields, [b"title".to_vec(), b"/a/b".to_vec()]);
        assert_eq!(
            template.args,
            [
                vec![text("a"), Segment::Whole, text("b")],
                vec![Segment::Field(0), Segment::Seq],
                vec![text("{}")],
                vec![Segment::Field(0), text("/"), Segment::Field(1)],
                vec![],
                vec![Segment::Key, Segment::Attempt],
            ]
        );
    }

    #[test]
    fn lone_braces_are_refused_with_their_place() {
        let open = Template::parse(&["ab{c"]).unwrap_err();
        assert_eq!(open, TemplateError::Open { arg: "ab{c".into(), at: 3 });
        assert!(open.to_string().contains("write {{ for"), "{open}");
        let close = Template::parse(&["ab}c"]).unwrap_err();
        assert_eq!(close, TemplateError::Close { arg: "ab}c".into(), at: 3 });
        assert!(Template::parse(&["{{}"]).is_err());
    }

    proptest! {
        /// Any bytes can be written literally.
        #[test]
        fn doubled_braces_say_anything(bytes: Vec<u8>) {
            let arg = bytes.replace("{", "{{").replace("}", "}}");
            let template = Template::parse(&[arg]).unwrap();
            prop_assert!(!template.has_placeholder());
            let got: Vec<u8> = template.args[0].iter().flat_map(|segment| match segment {
                Segment::Text(text) => text.clone(),
                other => panic!("{other:?}"),
            }).collect();
            prop_assert_eq!(got, bytes);
        }

        /// Parsing ends without a panic, whatever the argument.
        #[test]
        fn any_argument_is_read_or_refused(arg in "[{}a]{0,12}") {
            let _ = Template::parse(&[arg]);
        }
    }
}
