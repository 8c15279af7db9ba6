//! Values between JSON text and MessagePack.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    MAX_DEPTH,
    json::{Json, Visit},
    mutant,
    pack::{Head, Pack},
    source::{Read, Source},
    write::raw,
};

/// Appends `text` as MessagePack; `false`, and nothing, when some number would not come back as it was, or the text is
/// no JSON.
pub(crate) fn to_pack(text: &str, out: &mut Vec<u8>) -> bool {
    let from = out.len();
    let mut writer = Writer { out, exact: true };
    let mut json = Json::over(text);
    let good = json.walk(MAX_DEPTH, &mut writer).is_ok() && json.end().is_ok() && writer.exact;
    if !good {
        out.truncate(from);
    }
    good
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    exact: bool,
}

impl Visit for Writer<'_> {
    fn text(&mut self, text: &str) {
        raw::text(self.out, text);
    }

    fn number(&mut self, number: &str) {
        if let Ok(n) = number.parse::<u64>() {
            raw::uint(self.out, n);
        } else if let (Ok(n), false) = (number.parse::<i64>(), number == "-0") {
            raw::int(self.out, n);
        } else {
            // 15 digits come back from a double as they were, whatever they are.
            let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
            let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
            let float = number.parse::<f64>().unwrap_or(f64::INFINITY);
            let whole = !number.contains(['.', 'e', 'E']);
            let many = digits > 15 && !mutant("frames-digits-lost");
            if many || whole || !(float.is_normal() || digits_are_zero(mantissa)) {
                self.exact = false;
            } else {
                self.out.push(0xcb);
                self.out.extend_from_slice(&float.to_be_bytes());
            }
        }
    }

    fn word(&mut self, byte: u8) {
        self.out.push(byte);
    }

    fn open(&mut self, object: bool) -> usize {
        self.out.push(if object { 0xdf } else { 0xdd });
        self.out.extend_from_slice(&[0; 4]);
        self.out.len() - 4
    }

    fn close(&mut self, mark: usize, count: usize) {
        if count == 0 {
            // One byte for what is empty.
            let empty = if self.out[mark - 1] == 0xdf { 0x80 } else { 0x90 };
            self.out.truncate(mark - 1);
            self.out.push(empty);
        } else {
            self.out[mark..mark + 4].copy_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

fn digits_are_zero(mantissa: &str) -> bool {
    mantissa.bytes().all(|byte| matches!(byte, b'0' | b'.' | b'-'))
}

/// Reads a value and appends it as JSON. Bytes inside become base64, and a float that is no number null.
pub(crate) fn to_json(pack: &mut Pack<'_>, depth: usize, out: &mut String) -> Read<()> {
    if depth == 0 {
        return Err(pack.fault(format!("nested deeper than {MAX_DEPTH}")));
    }
    match pack.head()? {
        Head::Uint(n) => drop(write!(out, "{n}")),
        Head::Int(n) => drop(write!(out, "{n}")),
        Head::Float(n) => out.push_str(&serde_json::to_string(&n).unwrap_or_default()),
        Head::Nil => out.push_str("null"),
        Head::Bool(is) => out.push_str(if is { "true" } else { "false" }),
        Head::Text(n) => quote(pack.utf8(n)?, out),
        Head::Bin(n) => quote(&BASE64_STANDARD.encode(pack.take(n)?), out),
        Head::Array(n) => {
            out.push('[');
            for i in 0..n {
                if i > 0 {
                    out.push(',');
                }
                to_json(pack, depth - 1, out)?;
            }
            out.push(']');
        }
        Head::Map(n) => {
            out.push('{');
            for i in 0..n {
                if i > 0 {
                    out.push(',');
                }
                match pack.head()? {
                    Head::Text(n) => quote(pack.utf8(n)?, out),
                    Head::Uint(n) => drop(write!(out, "\"{n}\"")),
                    Head::Int(n) => drop(write!(out, "\"{n}\"")),
                    found => {
                        return Err(pack.fault(format!("{found:?} cannot be the name of a field")));
                    }
                }
                out.push(':');
                to_json(pack, depth - 1, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}
