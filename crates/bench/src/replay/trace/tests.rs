use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn read(text: &[u8]) -> Result<(Vec<TraceEntry>, Vec<InvalidLine>), InvalidLine> {
    let trace = Trace::open(Box::new(Cursor::new(text.to_vec())), 100).unwrap()?;
    let (mut entries, mut broken) = (Vec::new(), Vec::new());
    for each in trace {
        match each.unwrap() {
            Ok(entry) => entries.push(entry),
            Err(bad) => broken.push(bad),
        }
    }
    Ok((entries, broken))
}

fn entry(
    line: u64,
    millis: u64,
    operation: Operation,
    key: &str,
    (offset, length): (u64, Option<u64>),
) -> TraceEntry {
    TraceEntry { line, time: Duration::from_millis(millis), operation, key: key.to_owned(), offset, length }
}

#[test]
fn csv_accepts_columns_in_any_order_and_quoted_fields() {
    let text = "\u{feff}Key,length,\"op\",other,time\r\n\r\n\
        \"a,\"\"b\"\"\",5,PUT,x,1700000000.25\r\n\
        \u{e4}/\u{2603},,get,,1700000000.5\r\n\
        ,,\"list\",,1700000001\n";
    let (entries, broken) = read(text.as_bytes()).unwrap();
    assert_eq!(broken, []);
    let base = 1_700_000_000_000;
    let expected = [
        entry(3, base + 250, Operation::Put, "a,\"b\"", (0, Some(5))),
        entry(4, base + 500, Operation::Get, "\u{e4}/\u{2603}", (0, None)),
        entry(5, base + 1000, Operation::List, "", (0, None)),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn json_lines_are_parsed() {
    let text = r#"{"time":0.5,"op":"get","key":"a\n\"","offset":7,"length":3,"other":[1]}

{"time":1,"op":"Head","key":"b"}
"#;
    let (entries, broken) = read(text.as_bytes()).unwrap();
    let expected = [
        entry(1, 500, Operation::Get, "a\n\"", (7, Some(3))),
        entry(3, 1000, Operation::Head, "b", (0, None)),
    ];
    assert_eq!((entries.as_slice(), broken.as_slice()), (expected.as_slice(), [].as_slice()));
}

#[test]
fn offset_and_length_are_ignored_where_they_do_not_apply() {
    let csv = "time,op,key,offset,length\n0,head,k,-,-\n0,list,k,1,x\n0,delete,k,,-1\n0,delete,k,18446744073709551615,1\n";
    let json = r#"{"time":0,"op":"head","key":"k","offset":"-","length":"-"}
{"time":0,"op":"list","key":"k","offset":1,"length":null}
{"time":0,"op":"delete","key":"k","length":-1}
{"time":0,"op":"delete","key":"k","offset":1e400,"length":{}}
"#;
    for (text, first) in [(csv, 2), (json, 1)] {
        let (entries, broken) = read(text.as_bytes()).unwrap();
        let operations = [Operation::Head, Operation::List, Operation::Delete, Operation::Delete];
        let expected = operations.into_iter().zip(first..);
        let expected: Vec<TraceEntry> =
            expected.map(|(operation, line)| entry(line, 0, operation, "k", (0, None))).collect();
        assert_eq!((entries, broken), (expected, vec![]));
    }
}

#[test]
fn invalid_lines_are_reported_with_the_reason() {
    let long = "x".repeat(101);
    let long_key = "x".repeat(70_000);
    let bad: Vec<(Vec<u8>, &str)> = vec![
        (b"1,get,a,0".to_vec(), "4 fields, the header has 5"),
        (b"1,get,a,0,1,2".to_vec(), "6 fields"),
        (b"-1,get,a,,".to_vec(), "time \"-1\" is not a number of seconds"),
        (b"1e3,get,a,,".to_vec(), "time \"1e3\""),
        (b".,get,a,,".to_vec(), "time \".\""),
        (b"1000000000000,get,a,,".to_vec(), "time"),
        (b"1,take,a,,".to_vec(), "op \"take\" is not an operation: use put, get, head, list or delete"),
        (b"1,get,,,".to_vec(), "a get needs a key"),
        (format!("1,get,{long},,").into_bytes(), "the key has 101 bytes"),
        (b"1,put,a,,".to_vec(), "a put needs a length"),
        (b"1,put,a,1,1".to_vec(), "cannot have an offset"),
        (b"1,get,a,0,0".to_vec(), "a get cannot request 0 bytes"),
        (b"1,get,a,-1,1".to_vec(), "offset \"-1\" is not a number of bytes"),
        (b"1,get,a,1,4.5".to_vec(), "length \"4.5\" is not a number of bytes"),
        (b"1,get,a,18446744073709551615,1".to_vec(), "exceeds 64 bits"),
        (b"1,get,\"a,,".to_vec(), "field 3 opens a quote and does not close it"),
        (b"1,get,\"a\"b,,".to_vec(), "field 3 continues after its closing quote"),
        (b"1,get,a\"b,,".to_vec(), "field 3 contains a quote"),
        (b"1,get,\xff,,".to_vec(), "not UTF-8 from byte 6 on"),
        (format!("1,get,{long_key},,").into_bytes(), "longer than 65536 bytes"),
    ];
    for (line, why) in bad {
        let text = [b"time,op,key,offset,length\n0,get,a,,\n".as_slice(), &line, b"\n2,head,b,,"].concat();
        let (entries, broken) = read(&text).unwrap();
        let lines: Vec<u64> = entries.iter().map(|entry| entry.line).collect();
        assert_eq!((lines.as_slice(), broken.len(), broken[0].line), ([2, 4].as_slice(), 1, 3), "{why}");
        assert!(broken[0].to_string().contains(why), "{why}: {}", broken[0]);
    }
    let json = "{\"time\":1,\"op\":\"get\",\"key\":\"a\"}\n";
    for (line, why) in [
        ("{\"time\":1,\"op\":\"get\"}", "missing field `key`"),
        ("{\"time\":-1,\"op\":\"get\",\"key\":\"a\"}", "time -1 is not a number"),
        ("{\"time\":1,\"op\":\"get\",\"key\":\"a\",\"offset\":-5}", "invalid value"),
        ("1,get,a", "expected an object with time, op and key"),
        ("{\"time\":1", "EOF while parsing"),
    ] {
        let (entries, broken) = read(format!("{json}{line}\n{json}").as_bytes()).unwrap();
        assert_eq!((entries.len(), broken.len(), broken[0].line), (2, 1, 2), "{line}");
        assert!(broken[0].reason.contains(why), "{line}: {}", broken[0]);
        assert!(!broken[0].reason.contains("at line"), "{}", broken[0]);
    }
}

#[test]
fn open_rejects_an_invalid_header() {
    for (text, line, why) in [
        ("", 1, "the trace is empty"),
        ("\n\n0.1,get,a\n", 3, "the header has no \"time\""),
        ("time,op\n", 1, "the header has no \"key\""),
        ("time,op,key,Time\n", 1, "the header has \"time\" twice"),
        ("time,op,\"key\n", 1, "the header: field 3 opens a quote"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.line == line && error.reason.contains(why), "{text:?}: {error}");
    }
}

#[test]
fn requests_are_sorted_within_the_window_only() {
    let (entries, broken) = read(b"time,op,key\n3,get,a\n1,get,b\n2,get,c\n2,get,d\n").unwrap();
    let keys: String = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!((&*keys, broken.len()), ("bcda", 0));
    let mut text = "time,op,key\n".to_owned();
    (0..=SORT_WINDOW_LINES + 5).for_each(|n| text += &format!("{},get,a\n", n + 10));
    text += "1,get,late\n";
    let (entries, broken) = read(text.as_bytes()).unwrap();
    assert_eq!(
        (entries.len(), broken.len(), broken[0].line),
        (SORT_WINDOW_LINES + 6, 1, SORT_WINDOW_LINES as u64 + 8)
    );
    assert!(broken[0].reason.contains("sort the trace by time"), "{}", broken[0]);
}

proptest! {
    /// For arbitrary bytes, each nonempty line is either a request or invalid, and has its line number.
    #[test]
    fn every_line_is_accounted_for(
        lines in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..40),
                "[0-9.]{1,4},(get|put|head|del|list|delete),[ab\",]{0,4},[0-9]{0,2},[0-9]{0,2}"
                    .prop_map(String::into_bytes),
                "\\{\"time\":[0-9],\"op\":\"get\",\"key\":\"[a-c]{0,2}\"\\}".prop_map(String::into_bytes),
            ],
            0..30,
        ),
        is_json: bool,
    ) {
        let head: &[u8] =
            if is_json { b"{\"time\":0,\"op\":\"list\",\"key\":\"\"}" } else { b"time,op,key,offset,length" };
        let text = [head, b"\n", &lines.join(&b'\n')].concat();
        let (entries, broken) = read(&text).unwrap();
        let mut seen: Vec<u64> =
            entries.iter().map(|entry| entry.line).chain(broken.iter().map(|bad| bad.line)).collect();
        seen.sort_unstable();
        let there = text.split(|byte| *byte == b'\n').zip(1_u64..);
        let mut expected: Vec<u64> =
            there.filter(|(line, _)| !line.trim_ascii().is_empty()).map(|(_, number)| number).collect();
        if !is_json {
            expected.remove(0);
        }
        prop_assert_eq!(seen, expected);
        prop_assert!(entries.is_sorted_by_key(|entry| (entry.time, entry.line)));
    }
}
