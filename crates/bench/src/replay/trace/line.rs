//! One line of a trace: what it says, or what is wrong with it in words.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::Entry;
use crate::operation::Operation;

/// The columns that are read. Others are passed over.
const COLUMNS: [&str; 5] = ["time", "op", "key", "offset", "length"];
/// Of those: without them a line is no request.
const NEEDED: usize = 3;
/// Times are less than this, in seconds: thirty thousand years.
const MOST_SECONDS: u64 = 1_000_000_000_000;

/// How lines are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// Fields between commas: where each of [`COLUMNS`] stands, and how many there are.
    Csv { places: [Option<usize>; COLUMNS.len()], count: usize },
    /// A JSON object.
    Json,
}

/// A line as JSON.
#[derive(Deserialize)]
#[serde(expecting = "an object with time, op and key")]
struct Object<'a> {
    time: f64,
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// What bytes of an object it is about, of a line of which they are read.
#[derive(Default, Deserialize)]
struct Extent {
    offset: Option<u64>,
    length: Option<u64>,
}

impl Form {
    /// That of a CSV with this header.
    pub fn of_header(line: &str) -> Result<Self, String> {
        let names = fields(line).map_err(|why| format!("the header: {why}"))?;
        let mut places = [None; COLUMNS.len()];
        for (n, name) in names.iter().enumerate() {
            let name = name.trim().to_ascii_lowercase();
            let Some(column) = COLUMNS.iter().position(|column| *column == name) else { continue };
            if places[column].replace(n).is_some() {
                return Err(format!("the header has {name:?} twice"));
            }
        }
        match COLUMNS.iter().zip(places).take(NEEDED).find(|(_, place)| place.is_none()) {
            Some((missing, _)) => Err(format!(
                "the header has no {missing:?}: it names the columns time, op, key and, where there are, offset and length"
            )),
            None => Ok(Self::Csv { places, count: names.len() }),
        }
    }

    /// What a line says.
    pub fn entry(&self, text: &str, line: u64, most_key_bytes: usize) -> Result<Entry, String> {
        let entry = match self {
            Self::Csv { places, count } => {
                let fields = fields(text)?;
                if fields.len() != *count {
                    return Err(format!("it has {} fields, the header {count}", fields.len()));
                }
                let [time, op, key, offset, length] = places.map(|place| place.map_or("", |n| &*fields[n]));
                let (at, operation) = (seconds(time.trim())?, operation(op)?);
                let (offset, length) = if has_extent(operation) { (offset, length) } else { ("", "") };
                let number = |name: &str, text: &str| match text.trim() {
                    "" => Ok(None),
                    text => {
                        text.parse().map(Some).map_err(|_| format!("{name} {text:?} is no number of bytes"))
                    }
                };
                let (offset, length) = (number("offset", offset)?, number("length", length)?);
                Entry { line, at, operation, key: key.to_owned(), offset: offset.unwrap_or(0), length }
            }
            Self::Json => {
                let Object { time, op, key } = serde_json::from_str(text).map_err(in_one_line)?;
                let at = Duration::try_from_secs_f64(time).ok().filter(|at| at.as_secs() < MOST_SECONDS);
                let at = at.ok_or_else(|| format!("time {time} is no number of seconds"))?;
                let (operation, key) = (operation(&op)?, key.into_owned());
                let Extent { offset, length } = if has_extent(operation) {
                    serde_json::from_str(text).map_err(in_one_line)?
                } else {
                    Extent::default()
                };
                Entry { line, at, operation, key, offset: offset.unwrap_or(0), length }
            }
        };
        check(&entry, most_key_bytes)?;
        Ok(entry)
    }
}

/// What JSON is missing, without the place that serde adds: a line has one line.
fn in_one_line(e: serde_json::Error) -> String {
    let said = e.to_string();
    match said.rsplit_once(" at line ") {
        Some((what, _)) if e.column() > 0 => format!("{what} (column {})", e.column()),
        _ => said,
    }
}

/// Whether offset and length are read of it.
const fn has_extent(operation: Operation) -> bool {
    matches!(operation, Operation::Put | Operation::Get)
}

fn operation(text: &str) -> Result<Operation, String> {
    text.trim().to_ascii_lowercase().parse().map_err(|why| format!("op {why}"))
}

/// Seconds as digits with a point among them, to the nanosecond: a binary fraction would round those that are counted from
/// 1970 on.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("time {text:?} is no number of seconds, as 12.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let has_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !has_digits(whole) || !has_digits(part) {
        return Err(wrong());
    }
    let whole = whole.parse().ok().filter(|whole| *whole < MOST_SECONDS).ok_or_else(wrong)?;
    let nanos = part.bytes().chain(std::iter::repeat(b'0')).take(9);
    Ok(Duration::new(whole, nanos.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'))))
}

fn check(entry: &Entry, most_key_bytes: usize) -> Result<(), String> {
    let Entry { operation, key, offset, length, .. } = entry;
    if key.is_empty() && *operation != Operation::List {
        return Err(format!("a {operation} needs a key"));
    }
    if key.len() > most_key_bytes {
        return Err(format!(
            "the key has {} bytes; below the prefix of a run there is room for {most_key_bytes}",
            key.len()
        ));
    }
    match (operation, length) {
        (Operation::Put, None) => Err("a put needs a length".to_owned()),
        (Operation::Put, Some(_)) if *offset > 0 => {
            Err("a put writes a whole object: it has no offset".to_owned())
        }
        (Operation::Get, Some(0)) => {
            Err("a get of no bytes cannot be asked for; leave the length out for the whole object".to_owned())
        }
        (Operation::Get, _) if offset.checked_add(length.unwrap_or(1)).is_none() => {
            Err("offset and length are more than a number can hold".to_owned())
        }
        _ => Ok(()),
    }
}

/// The fields of a line of CSV (RFC 4180), of which none goes over several lines.
fn fields(line: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let (mut fields, mut rest) = (Vec::new(), line);
    loop {
        let number = fields.len() + 1;
        let Some(quoted) = rest.strip_prefix('"') else {
            let (field, behind) =
                rest.split_once(',').map_or((rest, None), |(field, rest)| (field, Some(rest)));
            if field.contains('"') {
                return Err(format!(
                    "field {number} has a quote in it: put all of it into quotes, and \"\" for one"
                ));
            }
            fields.push(Cow::Borrowed(field));
            match behind {
                Some(behind) => rest = behind,
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
        let behind = &quoted[end + 1..];
        if behind.is_empty() {
            return Ok(fields);
        }
        rest = behind
            .strip_prefix(',')
            .ok_or_else(|| format!("field {number} goes on behind the quote that closes it"))?;
    }
}

/// Where the quote is that closes; two of them are one that is meant.
fn end_of_quoted(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == b'"')?;
        if bytes.get(at + 1) != Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}
