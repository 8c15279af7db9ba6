use proptest::prelude::*;

use super::*;

fn settings(format: Format) -> Settings {
    Settings { format, encoding: Encoding::Utf8, header: true, limit: RECORD_LIMIT }
}

fn open(text: &[u8], settings: Settings) -> Reader {
    Reader::open(Box::new(std::io::Cursor::new(text.to_vec())), settings).unwrap()
}

/// Line and cells, or line and kind.
type Item = Result<(u64, Vec<Vec<u8>>), (u64, FaultKind)>;

fn rows(reader: Reader) -> Vec<Item> {
    reader
        .map(|item| match item {
            Ok(Row { line, body: Body::Cells(cells), .. }) => {
                Ok((line, cells.iter().map(<[u8]>::to_vec).collect()))
            }
            Ok(Row { line, raw, .. }) => Ok((line, vec![raw])),
            Err(Fault { line, kind, .. }) => Err((line, kind)),
        })
        .collect()
}

fn ok(line: u64, cells: &[&str]) -> Item {
    Ok((line, cells.iter().map(|cell| cell.as_bytes().to_vec()).collect()))
}

#[test]
fn blank_lines_of_csv_are_passed_over_and_counted() {
    let reader = open(b"\n\r\na,b\n\n1,2\r\n\n3,4", settings(Format::Csv));
    assert_eq!(reader.header().unwrap().to_string(), "a, b");
    assert_eq!(rows(reader), [ok(5, &["1", "2"]), ok(7, &["3", "4"])]);
}

#[test]
fn what_follows_a_broken_quote_is_read_with_care() {
    // Line 3 may be the inside of the value that line 2 opens: it is refused. Line 4 is beyond doubt.
    let text = b"a,b\n1,\"first\nsecond \"x\" third\",y\n2,12\" wide\n";
    let got = rows(open(text, settings(Format::Csv)));
    assert_eq!(
        got,
        [
            Err((2, FaultKind::TextAfterQuote { line: 3 })),
            Err((3, FaultKind::StrayQuote)),
            ok(4, &["2", "12\" wide"]),
        ]
    );
}

#[test]
fn records_over_the_limit_cost_themselves() {
    let mut small = settings(Format::Csv);
    small.limit = 100;
    let long = "x".repeat(70_000);
    let text = format!("a,b\n1,2\n{long},3\n4,5\n\"{}\n6,7\n", "y".repeat(20));
    let got = rows(open(text.as_bytes(), small));
    assert_eq!(got[0], ok(2, &["1", "2"]));
    assert_eq!(got[1], Err((3, FaultKind::TooLong(100))));
    assert_eq!(got[2], ok(4, &["4", "5"]));
    assert_eq!(got[3], Err((5, FaultKind::QuoteNeverClosed)));
    assert_eq!(got[4], ok(6, &["6", "7"]));
    assert_eq!(got.len(), 5);
}

#[test]
fn without_a_header_the_first_record_sets_the_width() {
    let mut plain = settings(Format::Csv);
    plain.header = false;
    let reader = open(b"1,2\n3\n", plain);
    assert_eq!(reader.header().unwrap().width(), 2);
    let got = rows(reader);
    assert_eq!(got[0], ok(1, &["1", "2"]));
    assert!(matches!(&got[1], Err((2, FaultKind::Ragged { found: 1, expected: 2, .. }))));
}

#[test]
fn an_empty_input_has_no_records() {
    for format in [Format::Csv, Format::Tsv, Format::Jsonl, Format::Lines, Format::Nul] {
        assert_eq!(rows(open(b"", settings(format))), [], "{format:?}");
    }
}

#[test]
fn a_source_that_fails_ends_in_a_fault() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("disk on fire"))
        }
    }
    let source = std::io::Read::chain(&b"one\ntwo"[..], Broken);
    let got = rows(Reader::open(Box::new(source), settings(Format::Lines)).unwrap());
    assert_eq!(got[0], ok(1, &["one"]));
    assert_eq!(got[1], Err((2, FaultKind::Read("disk on fire".into()))));
    assert_eq!(got.len(), 2);
}

fn cell() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => any::<u8>(),
        1 => Just(b'"'),
        1 => Just(b','),
        1 => Just(b'\n'),
        1 => Just(b'\r'),
    ];
    proptest::collection::vec(byte, 0..12)
}

proptest! {
    /// What a well-kept CSV writer writes is read back equal, cut at any byte.
    #[test]
    fn csv_round_trip(
        table in (1usize..5).prop_flat_map(|width| {
            proptest::collection::vec(proptest::collection::vec(cell(), width), 1..12)
        }),
        crlf: bool,
        step in 1usize..40,
    ) {
        let terminator =
            if crlf { ::csv::Terminator::CRLF } else { ::csv::Terminator::Any(b'\n') };
        let mut writer = ::csv::WriterBuilder::new()
            .terminator(terminator)
            .quote_style(::csv::QuoteStyle::Necessary)
            .from_writer(Vec::new());
        writer.write_record(vec!["head"; table[0].len()]).unwrap();
        for row in &table {
            writer.write_record(row).unwrap();
        }
        let bytes = writer.into_inner().unwrap();
        let source = Drip { bytes, at: 0, step };
        let reader = Reader::open(Box::new(source), settings(Format::Csv)).unwrap();
        let got: Vec<Vec<Vec<u8>>> = rows(reader).into_iter().map(|row| row.unwrap().1).collect();
        prop_assert_eq!(got, table);
    }

    /// Whatever comes, the scan ends, loses no line, and puts each item on a later line.
    #[test]
    fn any_bytes_end(
        bytes in proptest::collection::vec(
            prop_oneof![Just(b'"'), Just(b','), Just(b'\n'), Just(b'\r'), Just(b'x')], 0..60),
        step in 1usize..9,
    ) {
        let mut plain = settings(Format::Csv);
        plain.header = false;
        let whole = Reader::open(Box::new(std::io::Cursor::new(bytes.clone())), plain);
        let drip = Reader::open(Box::new(Drip { bytes, at: 0, step }), plain);
        match (whole, drip) {
            (Ok(whole), Ok(drip)) => {
                let (whole, drip) = (rows(whole), rows(drip));
                prop_assert_eq!(&whole, &drip);
                let lines: Vec<u64> = whole
                    .iter()
                    .map(|row| match row { Ok((line, _)) | Err((line, _)) => *line })
                    .collect();
                prop_assert!(lines.is_sorted());
            }
            (Err(whole), Err(drip)) => prop_assert_eq!(whole.kind, drip.kind),
            (whole, drip) => prop_assert!(false, "{} {}", whole.is_ok(), drip.is_ok()),
        }
    }
}

/// A source that gives few bytes at a time.
struct Drip {
    bytes: Vec<u8>,
    at: usize,
    step: usize,
}

impl Read for Drip {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.step.min(out.len()).min(self.bytes.len() - self.at);
        out[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
