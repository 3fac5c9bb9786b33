//! The vocabulary: words and phrases that stand for a standard term of the field, counted per crate and per document.
//!
//! `docs/GLOSSARY.md` has the terms. The counts in `vocabulary.tsv` may only fall: a test fails where one rises, and where one
//! fell without the file being updated (`TIDY_UPDATE=1 cargo test -p tradewind --test tidy` does that).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::{files, is_test_file, relative, root, rust_files};

/// Phrases that do not appear in comments, messages and documents. Matched at word boundaries, in any case.
const PHRASES: &[&str] = &[
    // Quantities.
    "at a time",
    "at the most",
    "at the least",
    "at most so",
    "so many",
    "so much",
    "as many again",
    "as much again",
    "in the mean",
    "in the median",
    "in nine of ten",
    "nine of ten",
    "a twentieth",
    "a hundredth",
    "a tenth",
    "tenth of a second",
    "tenths of a second",
    "requests a second",
    "bytes a second",
    "times a second",
    "per cent",
    // Requests, clients and callers.
    "under way",
    "is told",
    "are told",
    "was told",
    "told of",
    "tells of",
    "tell of",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "who asks",
    "who is",
    "who are",
    "who was",
    "who has",
    "who waits",
    "asked again",
    "asked for again",
    "asked a second time",
    "broken off",
    "breaks off",
    "broke off",
    "given up",
    "gives up",
    "gave up",
    "left off",
    "passed over",
    "left out",
    "goes before",
    "go before",
    "goes first",
    "of which nobody",
    // Networks and machines.
    "behind a ms",
    "one behind the other",
    "behind the knee",
    "beside each other",
    "beside it",
    "beside them",
    "on the way",
    "way back",
    "far away",
    "next door",
    "processor time",
    "processors",
    // Time.
    "anew",
    "again from the beginning",
    "of late",
    "by now",
    "for good",
    "in vain",
    "as it is",
    "as it was",
    // Patterns.
    "the same, but",
    "where nothing is known",
    "where there is none",
    "where it is",
    "is to be",
    "are to be",
    "what is left",
    "what came",
    "not so for",
    "looked at",
    "looks at",
    "is looked",
    "this way",
];

/// First words of a documentation comment that announce a clause instead of naming the thing.
const OPENERS: &[&str] = &[
    "What ", "Who ", "Whose ", "Whether ", "The same", "So many", "So much", "How ", "As many", "As much",
    "As ",
];

/// Identifiers, and parts of identifiers in `snake_case` and `UPPER_CASE`, that are not used.
const NAME_PARTS: &[&str] = &[
    "most",
    "least",
    "longest",
    "fewest",
    "at_a_time",
    "at_once",
    "under_way",
    "give_back",
    "retold",
    "told",
    "asked",
    "befall",
    "begun",
    "beside",
    "nobody",
    "remembered",
    "meanwhile",
    "anew",
    "learnt",
    "carries",
    "carried",
    "steered",
    "purse",
    "zipped",
    "processors",
];

/// Types that have a standard name.
const TYPES: &[&str] = &[
    "Lack", "Law", "Belief", "Carrier", "Steering", "Shelter", "Told", "Ends", "Hope", "Bed", "Ground",
    "Hand", "Seats", "Crew", "Foreman", "Course", "Survey", "Site", "Stock", "Feign", "Unsaid", "Alike",
    "Waking", "Doubt", "UnderWay", "AtATime", "Begun", "Coming", "Whole", "Planned", "Observed", "Ahead",
    "Ended", "Waiting", "Held", "Counted", "Look", "Looked", "Found", "Seen", "Line", "Share",
];

/// Functions whose name says nothing of what they do.
const FUNCTIONS: &[&str] = &[
    "of", "at", "over", "within", "look", "looked", "told", "tell", "say", "says", "said", "settle", "weigh",
];

/// Offences by the part of the text they stand in.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counts {
    names: usize,
    messages: usize,
    comments: usize,
    /// Lines of comments in all, or of the document.
    lines: usize,
}

/// The parts of a line of Rust.
#[derive(Default)]
struct Parts {
    code: String,
    strings: String,
    comment: Option<String>,
}

/// Splits Rust text into lines of code, string literals and comments. Block comments are not used here.
fn split(text: &str) -> Vec<Parts> {
    enum In {
        Code,
        String { hashes: Option<usize> },
    }
    let mut lines = Vec::new();
    let mut state = In::Code;
    for line in text.lines() {
        let mut parts = Parts::default();
        let chars: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            let rest = &chars[at..];
            match state {
                In::Code => {
                    let raw = raw_string(rest);
                    if rest.starts_with(&['/', '/']) {
                        parts.comment = Some(rest.iter().collect());
                        break;
                    } else if let Some((length, hashes)) = raw {
                        state = In::String { hashes: Some(hashes) };
                        at += length;
                        continue;
                    } else if rest[0] == '"' {
                        state = In::String { hashes: None };
                    } else if rest.len() > 2 && rest[0] == '\'' && (rest[1] == '\\' || rest[2] == '\'') {
                        let end = rest.iter().skip(2).position(|c| *c == '\'').unwrap_or(0);
                        at += end + 2;
                    } else {
                        parts.code.push(rest[0]);
                    }
                }
                In::String { hashes: None } => match rest[0] {
                    '\\' => at += 1,
                    '"' => {
                        state = In::Code;
                        parts.strings.push('\u{1}');
                    }
                    c => parts.strings.push(c),
                },
                In::String { hashes: Some(hashes) } => {
                    let closes =
                        rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#');
                    if closes {
                        state = In::Code;
                        parts.strings.push('\u{1}');
                        at += hashes;
                    } else {
                        parts.strings.push(rest[0]);
                    }
                }
            }
            at += 1;
        }
        lines.push(parts);
    }
    lines
}

/// Characters and hashes of the opening of a raw string.
fn raw_string(rest: &[char]) -> Option<(usize, usize)> {
    if rest[0] != 'r' {
        return None;
    }
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    (rest.get(1 + hashes) == Some(&'"')).then_some((2 + hashes, hashes))
}

/// Phrases found in a text.
fn phrases(text: &str) -> Vec<&'static str> {
    let text = format!(" {} ", text.to_lowercase());
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    PHRASES
        .iter()
        .filter(|phrase| {
            text.match_indices(**phrase).any(|(at, found)| {
                !is_word(text[..at].chars().next_back()) && !is_word(text[at + found.len()..].chars().next())
            })
        })
        .copied()
        .collect()
}

/// Identifiers declared in a line of code that are on a list.
fn names(code: &str) -> Vec<String> {
    let words: Vec<&str> =
        code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let before = index.checked_sub(1).map_or("", |before| words[before]);
        // An indented `type` belongs to a trait, which may be foreign.
        let is_type = (["struct", "enum", "trait"].contains(&before)
            || before == "type" && !code.starts_with(' '))
            && TYPES.contains(word);
        let is_function = before == "fn" && FUNCTIONS.contains(word);
        let is_declared =
            ["fn", "const", "static", "mod", "struct", "enum", "trait", "type", "let", "mut", "pub"]
                .contains(&before)
                || code.trim_start().starts_with(&format!("{word}:"))
                || code.contains(&format!(" {word}: "));
        // "At most" and "at least" are standard in names of tests.
        let lower = word.to_lowercase().replace("at_most", "").replace("at_least", "");
        let has_part =
            is_declared && NAME_PARTS.iter().any(|part| format!("_{lower}_").contains(&format!("_{part}_")));
        if is_type || is_function || has_part {
            found.push((*word).to_owned());
        }
    }
    found
}

/// Counts each crate and each document, and lists the offences.
fn survey() -> (BTreeMap<String, Counts>, Vec<String>) {
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    let mut offences = Vec::new();
    for (path, text) in rust_files() {
        let name = relative(&path);
        if name.contains("tests/tidy") {
            continue;
        }
        let scope = name.split('/').take(2).collect::<Vec<_>>().join("/");
        let count = counts.entry(scope).or_default();
        let is_test = is_test_file(&path);
        let mut is_first = true;
        for (number, parts) in split(&text).iter().enumerate() {
            let mut offend =
                |kind: &str, what: &str| offences.push(format!("{name}:{}: {kind}: {what}", number + 1));
            if let Some(comment) = &parts.comment {
                count.lines += 1;
                let mut found = phrases(comment);
                let opener = comment.strip_prefix("/// ").or_else(|| comment.strip_prefix("//! "));
                if is_first && let Some(opener) = opener {
                    found.extend(OPENERS.iter().filter(|word| opener.starts_with(**word)).take(1));
                }
                count.comments += usize::from(!found.is_empty());
                found.iter().for_each(|what| offend("comment", what));
            }
            is_first = parts.comment.is_none();
            if !is_test {
                let found = phrases(&parts.strings);
                count.messages += found.len();
                found.iter().for_each(|what| offend("message", what));
            }
            let found = names(&parts.code);
            count.names += found.len();
            found.iter().for_each(|what| offend("name", what));
        }
    }
    let mut paths = Vec::new();
    files(&root(), &mut paths);
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let name = relative(&path);
        // The glossary names the words that are not used.
        if name == "docs/GLOSSARY.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let count = counts.entry(name.clone()).or_default();
        for (number, line) in text.lines().enumerate() {
            let found = phrases(line);
            count.lines += 1;
            count.comments += usize::from(!found.is_empty());
            found.iter().for_each(|what| offences.push(format!("{name}:{}: text: {what}", number + 1)));
        }
    }
    (counts, offences)
}

fn recorded_path() -> PathBuf {
    root().join("crates/tradewind/tests/tidy/vocabulary.tsv")
}

fn write(counts: &BTreeMap<String, Counts>) -> String {
    let mut out = String::from("scope\tnames\tmessages\tlines with a phrase\tlines of text\n");
    for (scope, count) in counts {
        let Counts { names, messages, comments, lines } = count;
        writeln!(out, "{scope}\t{names}\t{messages}\t{comments}\t{lines}").unwrap();
    }
    out
}

fn read(text: &str) -> BTreeMap<String, Counts> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |index: usize| fields[index].parse().unwrap();
        let counts = Counts { names: number(1), messages: number(2), comments: number(3), lines: number(4) };
        (fields[0].to_owned(), counts)
    };
    text.lines().skip(1).map(parse).collect()
}

#[test]
fn banned_words_only_become_fewer() {
    let (counts, offences) = survey();
    if let Some(scope) = std::env::var_os("TIDY_LIST") {
        let scope = scope.to_string_lossy().into_owned();
        offences
            .iter()
            .filter(|offence| offence.starts_with(&scope))
            .for_each(|offence| println!("{offence}"));
    }
    if std::env::var_os("TIDY_UPDATE").is_some() {
        fs::write(recorded_path(), write(&counts)).unwrap();
        return;
    }
    let recorded = read(&fs::read_to_string(recorded_path()).unwrap());
    let mut changed = Vec::new();
    for (scope, count) in &counts {
        let before = recorded.get(scope).cloned().unwrap_or_default();
        for (kind, is, was) in [
            ("names", count.names, before.names),
            ("messages", count.messages, before.messages),
            ("lines with a phrase", count.comments, before.comments),
        ] {
            if is > was {
                changed
                    .push(format!("{scope}: {kind} rose from {was} to {is}; TIDY_LIST={scope} lists them"));
            } else if is < was {
                changed
                    .push(format!("{scope}: {kind} fell from {was} to {is}; record that with TIDY_UPDATE=1"));
            }
        }
    }
    super::assert_none("docs/GLOSSARY.md has the terms to use", &changed);
}

#[test]
fn rust_is_split_into_code_strings_and_comments() {
    let parts = split("let a = \"b // c\"; // d\nlet e = r#\"f \"g\"#; 'h' + '\"' // i\n\"j\nk\"");
    let of = |index: usize| {
        let parts: &Parts = &parts[index];
        (parts.code.trim().to_owned(), parts.strings.replace('\u{1}', ""), parts.comment.clone())
    };
    assert_eq!(of(0), ("let a = ;".to_owned(), "b // c".to_owned(), Some("// d".to_owned())));
    assert_eq!(of(1).1, "f \"g");
    assert_eq!(of(1).2.as_deref(), Some("// i"));
    assert_eq!((of(2).1, of(3).1), ("j".to_owned(), "k".to_owned()));
}

#[test]
fn phrases_match_whole_words() {
    assert_eq!(phrases("Requests at a time."), ["at a time"]);
    assert_eq!(phrases("what a timer"), Vec::<&str>::new());
    assert_eq!(names("const MOST_PARTS: u64 = 1;"), ["MOST_PARTS"]);
    assert_eq!(names("pub fn of(a: u8) {"), ["of"]);
    assert_eq!(names("almost(a)"), Vec::<String>::new());
}
