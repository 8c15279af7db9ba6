//! C1: what is read, what is refused, with which message, and what happens then.

mod common;

use common::Place;

/// Prints each argument in brackets, then a newline.
const SHOW: [&str; 5] = ["--", "sh", "-c", r#"for a; do printf '[%s]' "$a"; done; echo"#, "x"];

fn show<'a>(options: &[&'a str], placeholders: &[&'a str]) -> Vec<&'a str> {
    [options, &SHOW, placeholders].concat()
}

#[test]
fn byte_order_mark_and_crlf_leave_no_trace() {
    let place = Place::new();
    let args = show(&["-i", "bom_crlf.csv", "-k", "merchant_id"], &["{merchant_id}", "{amt}"]);
    let ran = place.input("bom_crlf.csv").run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.sorted(), ["[007][1]", "[7][2]"]);
    assert_eq!(ran.count("groups"), 2);
}

#[test]
fn a_newline_in_quotes_is_part_of_the_value() {
    let place = Place::new();
    let ran = place
        .input("quoted_newline.csv")
        .run(&show(&["-i", "quoted_newline.csv", "-j1"], &["{id}", "{note}"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, b"[1][a\nb]\n[2][say \"hi\"]\n");
}

#[test]
fn a_column_that_stands_twice_is_named() {
    let place = Place::new();
    place.input("duplicate_header.csv");
    for key in [&["-k", "k"][..], &["-k", "v"], &[]] {
        let ran = place.run(&show(&[&["-i", "duplicate_header.csv"], key].concat(), &["{v}"]));
        assert_eq!(ran.code, 4);
        assert_eq!(ran.counts(), [1, 0, 0, 1]);
        ran.assert_says(&[
            "duplicate_header.csv, line 1",
            "column \"k\"",
            "columns 1 and 2",
            "'#1'",
        ]);
    }
    let by_position = ["-i", "duplicate_header.csv", "-k", "#1"];
    let ran = place.run(&show(&by_position, &["{#1}", "{#2}", "{v}", "{key}"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.sorted(), ["[1][2][3][1]"]);
    let ran = place.run(&show(&by_position, &["{k}"]));
    assert_eq!(ran.code, 2, "a name that stands twice is no guess");
    ran.assert_says(&["{k}", "#1 or #2"]);
}

#[test]
fn ragged_rows_are_errors_with_their_line() {
    let place = Place::new();
    place.input("ragged.csv");
    let args = ["-i", "ragged.csv", "--dead-letter", "dead.jsonl"];
    let ran = place.run(&show(&args, &["{a}", "{b}", "{c}"]));
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [3, 1, 0, 2]);
    assert_eq!(ran.sorted(), ["[7][8][9]"]);
    ran.assert_says(&[
        "ragged.csv, line 2: 2 cells, but 3 expected (a, b, c)",
        "[1,2]",
        "ragged.csv, line 3: 4 cells",
        "[3,4,5,6]",
    ]);
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[1]["record"], "3,4,5,6");
    assert_eq!(letters[1]["line"], 3);
    assert_eq!(letters[1]["seq"], 2);
    assert_eq!(letters[1]["outcome"], "input_error");
}

#[test]
fn the_policy_stop_ends_the_reading() {
    let place = Place::new();
    place.write("a.csv", "k,v\n1,x\n2\n3,z\n");
    let ran = place.run(&show(&["-i", "a.csv", "--on-input-error", "stop"], &["{v}"]));
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [2, 1, 0, 1]);
    assert_eq!(ran.sorted(), ["[x]"]);
}

#[test]
fn a_broken_quote_costs_its_line_and_not_the_rest_of_the_file() {
    let place = Place::new();
    let ran =
        place.input("broken_quote.csv").run(&show(&["-i", "broken_quote.csv"], &["{k}", "{v}"]));
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [3, 2, 0, 1]);
    assert_eq!(ran.sorted(), ["[2][y]", "[3][z]"]);
    ran.assert_says(&["broken_quote.csv, line 2: the quote opened on this line is never closed"]);
    let args = show(&["-i", "broken_quote.csv", "--on-input-error", "stop"], &["{k}"]);
    assert_eq!(place.run(&args).counts(), [1, 0, 0, 1]);
}

#[test]
fn a_torn_tail_is_an_error_with_its_line() {
    let place = Place::new();
    let args = show(&["-i", "torn_tail.jsonl", "-k", "/n/m"], &["{k}", "{/n/m}"]);
    let ran = place.input("torn_tail.jsonl").run(&args);
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [3, 2, 0, 1]);
    assert_eq!(ran.sorted(), ["[a][x]", "[b][y]"]);
    ran.assert_says(&["torn_tail.jsonl, line 3: the last line is torn"]);
}

#[test]
fn broken_json_costs_its_line() {
    let place = Place::new();
    let text = b"{\"a\":1}\n{'a':2}\n\n\"\xff\"\n[3,4]\r\n{\"b\":5}\n";
    let ran = place.write("a.jsonl", text).run(&show(&["-i", "a.jsonl", "-j1"], &["{}"]));
    assert_eq!(ran.counts(), [5, 3, 0, 2]);
    assert_eq!(ran.stdout, b"[{\"a\":1}]\n[[3,4]]\n[{\"b\":5}]\n");
    ran.assert_says(&["a.jsonl, line 2: not JSON", "a.jsonl, line 4: not JSON"]);
    let ran = place.run(&show(&["-i", "a.jsonl"], &["{a}"]));
    assert_eq!(ran.counts(), [5, 1, 0, 4], "a record without the member is an input error");
    ran.assert_says(&["line 6: no member \"a\""]);
}

#[test]
fn a_nul_in_a_line_cannot_be_an_argument_and_passes_on_standard_input() {
    let place = Place::new();
    place.input("nul_in_line.txt");
    let args = ["-i", "nul_in_line.txt", "--retries", "3", "--dead-letter", "dead.jsonl"];
    let ran = place.run(&show(&args, &["{}"]));
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [2, 1, 0, 1]);
    assert_eq!(ran.count("retried"), 0);
    ran.assert_says(&["nul_in_line.txt, line 1", "NUL byte", "--stdin"]);
    assert_eq!(place.letters("dead.jsonl")[0]["record"], "a\0b");
    for key in [&[][..], &["--key-template", "{}"]] {
        let args = [&["-i", "nul_in_line.txt", "-j1", "--stdin"], key, &["--", "cat"]].concat();
        let ran = place.run(&args);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(ran.stdout, b"a\0bc");
    }
}

#[test]
fn nul_separated_names_may_hold_newlines() {
    let place = Place::new();
    let args = show(&["-i", "nul_separated.bin", "-f", "nul", "-j1"], &["{}"]);
    let ran = place.input("nul_separated.bin").run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, b"[one]\n[two\nlines]\n[three]\n");
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    let place = Place::new();
    place.input("mixed_encoding.txt");
    let args = show(&["-i", "mixed_encoding.txt", "--key-template", "{}", "-j1"], &["{}"]);
    let ran = place.run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.count("groups"), 3);
    let mut lines: Vec<&[u8]> = ran.stdout.trim_ascii_end().split(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    assert_eq!(lines, [&b"[cafe\xcc\x81]"[..], b"[caf\xc3\xa9]", b"[caf\xe9]"]);
}

#[test]
fn utf16_is_decoded_on_request_and_else_refused_with_the_flag() {
    let place = Place::new();
    place.input("utf16le.csv");
    let ran = place.run(&show(&["-i", "utf16le.csv"], &["{id}"]));
    assert_eq!(ran.code, 4);
    assert_eq!(ran.counts(), [1, 0, 0, 1]);
    ran.assert_says(&["utf16le.csv", "--encoding utf-16"]);
    let args = show(&["-i", "utf16le.csv", "--encoding", "utf-16"], &["{id}", "{v}"]);
    let ran = place.run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.sorted(), ["[1][x]", "[2][y]"]);
    // Half a surrogate pair in the second record.
    let bytes = [b"a\0\n\0".as_slice(), &[0x3D, 0xD8], b"\n\0b\0"].concat();
    let args = show(&["-i", "half.txt", "--encoding", "utf-16"], &["{}"]);
    let ran = place.write("half.txt", bytes).run(&args);
    assert_eq!(ran.counts(), [3, 2, 0, 1]);
    ran.assert_says(&["half.txt, line 2", "no valid UTF-16"]);
}

#[test]
fn several_inputs_of_several_formats_are_one_run() {
    let place = Place::new();
    place.write("a.csv", "v,w\n1,2\n").write("b.tsv", "w\tv\n3\t\"4\t5\"\n");
    place.write("c.ndjson", "{\"v\":6}\n");
    let args = ["-j1", "-i", "a.csv", "-i", "b.tsv", "-i", "c.ndjson"];
    let ran = place.run(&show(&args, &["{v}", "{seq}"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, b"[1][1]\n[4\t5][2]\n[6][3]\n");
    let ran = place.run_with(&show(&["-f", "csv", "-i", "-"], &["{v}"]), b"v\n7\n");
    assert_eq!(ran.sorted(), ["[7]"]);
    let args = show(&["-f", "csv", "--no-header", "-k", "#2"], &["{#1}", "{key}"]);
    assert_eq!(place.run_with(&args, b"8,9\n").sorted(), ["[8][9]"]);
}

#[test]
fn a_file_that_is_not_there_is_wrong_use() {
    let place = Place::new();
    let ran = place.run(&show(&["-i", "none.csv"], &["{}"]));
    assert_eq!(ran.code, 2);
    ran.assert_says(&["none.csv", "--input"]);
    let ran = place.run(&show(&["-i", "."], &["{}"]));
    assert_eq!(ran.code, 2);
}

#[test]
fn an_input_is_never_overwritten() {
    let place = Place::new();
    place.write("a.txt", "x\n");
    for option in ["--dead-letter", "--summary"] {
        let status =
            place.command(&["-i", "a.txt", option, "a.txt", "--", "true"]).output().unwrap();
        assert_eq!(status.status.code(), Some(2));
        assert_eq!(place.text("a.txt"), "x\n");
    }
}

/// Records together are much larger than what may be in flight; each is a large argument.
#[test]
fn much_input_passes_through_little_memory() {
    use std::io::Write;
    use std::process::Stdio;
    let place = Place::new();
    let args = ["-f", "lines", "-j2", "-q", "--stdin", "--", "sh", "-c", "head -c 1 >/dev/null"];
    let mut child = place.command(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let record = [vec![b'x'; 2_000_000], b"\n".to_vec()].concat();
    for _ in 0..100 {
        pipe.write_all(&record).unwrap();
    }
    // The peak so far: 200 MB went in.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert!(peak < 150_000, "{peak} kB");
}
