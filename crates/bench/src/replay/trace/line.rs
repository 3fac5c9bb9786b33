//! Parses one line of a trace. Errors are messages for the user.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::TraceEntry;
use crate::operation::Operation;

/// The known columns. Others are ignored.
const COLUMNS: [&str; 5] = ["time", "op", "key", "offset", "length"];
/// Number of required columns, which come first in [`COLUMNS`].
const REQUIRED_COLUMNS: usize = 3;
/// Exclusive upper bound of times, in seconds: thirty thousand years.
const TIME_BOUND_SECONDS: u64 = 1_000_000_000_000;

/// The format of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineFormat {
    /// CSV, with the index of each of [`COLUMNS`] and the number of fields.
    Csv { columns: [Option<usize>; COLUMNS.len()], count: usize },
    /// A JSON object.
    Json,
}

/// The fields of every JSON line.
#[derive(Deserialize)]
#[serde(expecting = "an object with time, op and key")]
struct JsonLine<'a> {
    time: f64,
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// The byte range of a JSON line. Parsed only for operations that have one.
#[derive(Default, Deserialize)]
struct JsonRange {
    offset: Option<u64>,
    length: Option<u64>,
}

impl LineFormat {
    /// The format of a CSV file with the given header.
    pub fn from_header(line: &str) -> Result<Self, String> {
        let names = fields(line).map_err(|reason| format!("the header: {reason}"))?;
        let mut columns = [None; COLUMNS.len()];
        for (n, name) in names.iter().enumerate() {
            let name = name.trim().to_ascii_lowercase();
            let Some(column) = COLUMNS.iter().position(|column| *column == name) else { continue };
            if columns[column].replace(n).is_some() {
                return Err(format!("the header has {name:?} twice"));
            }
        }
        match COLUMNS.iter().zip(columns).take(REQUIRED_COLUMNS).find(|(_, index)| index.is_none()) {
            Some((missing, _)) => Err(format!(
                "the header has no {missing:?}; columns are time, op, key and, optionally, offset and length"
            )),
            None => Ok(Self::Csv { columns, count: names.len() }),
        }
    }

    /// Parses a line.
    pub fn parse(&self, text: &str, line: u64, max_key_bytes: usize) -> Result<TraceEntry, String> {
        let entry = match self {
            Self::Csv { columns, count } => {
                let fields = fields(text)?;
                if fields.len() != *count {
                    return Err(format!("{} fields, the header has {count}", fields.len()));
                }
                let [time, op, key, offset, length] = columns.map(|index| index.map_or("", |n| &*fields[n]));
                let (time, operation) = (seconds(time.trim())?, operation(op)?);
                let (offset, length) = if has_extent(operation) { (offset, length) } else { ("", "") };
                let number = |name: &str, text: &str| match text.trim() {
                    "" => Ok(None),
                    text => text
                        .parse()
                        .map(Some)
                        .map_err(|_| format!("{name} {text:?} is not a number of bytes")),
                };
                let (offset, length) = (number("offset", offset)?, number("length", length)?);
                TraceEntry { line, time, operation, key: key.to_owned(), offset: offset.unwrap_or(0), length }
            }
            Self::Json => {
                let JsonLine { time, op, key } = serde_json::from_str(text).map_err(json_error)?;
                let duration = Duration::try_from_secs_f64(time);
                let duration = duration.ok().filter(|time| time.as_secs() < TIME_BOUND_SECONDS);
                let time = duration.ok_or_else(|| format!("time {time} is not a number of seconds"))?;
                let (operation, key) = (operation(&op)?, key.into_owned());
                let JsonRange { offset, length } = if has_extent(operation) {
                    serde_json::from_str(text).map_err(json_error)?
                } else {
                    JsonRange::default()
                };
                TraceEntry { line, time, operation, key, offset: offset.unwrap_or(0), length }
            }
        };
        check(&entry, max_key_bytes)?;
        Ok(entry)
    }
}

/// The message of a JSON error, with the column instead of serde's line number, which is always 1 here.
fn json_error(e: serde_json::Error) -> String {
    let text = e.to_string();
    match text.rsplit_once(" at line ") {
        Some((message, _)) if e.column() > 0 => format!("{message} (column {})", e.column()),
        _ => text,
    }
}

/// Returns true if offset and length apply to the operation.
const fn has_extent(operation: Operation) -> bool {
    matches!(operation, Operation::Put | Operation::Get)
}

fn operation(text: &str) -> Result<Operation, String> {
    text.trim().to_ascii_lowercase().parse().map_err(|reason| format!("op {reason}"))
}

/// Parses decimal seconds exactly, to the nanosecond. A binary fraction would round times that count from 1970.
fn seconds(text: &str) -> Result<Duration, String> {
    let error = || format!("time {text:?} is not a number of seconds, for example 12.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let has_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !has_digits(whole) || !has_digits(part) {
        return Err(error());
    }
    let whole = whole.parse().ok().filter(|whole| *whole < TIME_BOUND_SECONDS).ok_or_else(error)?;
    let nanos = part.bytes().chain(std::iter::repeat(b'0')).take(9);
    Ok(Duration::new(whole, nanos.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'))))
}

fn check(entry: &TraceEntry, max_key_bytes: usize) -> Result<(), String> {
    let TraceEntry { operation, key, offset, length, .. } = entry;
    if key.is_empty() && *operation != Operation::List {
        return Err(format!("a {operation} needs a key"));
    }
    if key.len() > max_key_bytes {
        return Err(format!(
            "the key has {} bytes; the maximum below the prefix of a run is {max_key_bytes}",
            key.len()
        ));
    }
    match (operation, length) {
        (Operation::Put, None) => Err("a put needs a length".to_owned()),
        (Operation::Put, Some(_)) if *offset > 0 => {
            Err("a put writes a whole object and cannot have an offset".to_owned())
        }
        (Operation::Get, Some(0)) => {
            Err("a get cannot request 0 bytes; omit the length to read the whole object".to_owned())
        }
        (Operation::Get, _) if offset.checked_add(length.unwrap_or(1)).is_none() => {
            Err("the sum of offset and length exceeds 64 bits".to_owned())
        }
        _ => Ok(()),
    }
}

/// Splits a line of CSV (RFC 4180). Fields cannot span lines.
fn fields(line: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let (mut fields, mut rest) = (Vec::new(), line);
    loop {
        let number = fields.len() + 1;
        let Some(quoted) = rest.strip_prefix('"') else {
            let (field, tail) =
                rest.split_once(',').map_or((rest, None), |(field, rest)| (field, Some(rest)));
            if field.contains('"') {
                return Err(format!(
                    "field {number} contains a quote: quote the whole field and write the quote as \"\""
                ));
            }
            fields.push(Cow::Borrowed(field));
            match tail {
                Some(tail) => rest = tail,
                None => return Ok(fields),
            }
            continue;
        };
        let end = end_of_quoted(quoted)
            .ok_or_else(|| format!("field {number} opens a quote and does not close it"))?;
        let inside = &quoted[..end];
        fields.push(if inside.contains('"') {
            Cow::Owned(inside.replace("\"\"", "\""))
        } else {
            Cow::Borrowed(inside)
        });
        let tail = &quoted[end + 1..];
        if tail.is_empty() {
            return Ok(fields);
        }
        rest = tail
            .strip_prefix(',')
            .ok_or_else(|| format!("field {number} continues after its closing quote"))?;
    }
}

/// The index of the closing quote. A doubled quote is an escaped one.
fn end_of_quoted(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut index = 0;
    loop {
        index += bytes[index..].iter().position(|byte| *byte == b'"')?;
        if bytes.get(index + 1) != Some(&b'"') {
            return Some(index);
        }
        index += 2;
    }
}
