//! The subset of XML that S3's responses need: the text of elements by name.

/// The raw contents of every `<name>` element, in order. Elements of the same name do not nest in S3.
pub fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = xml;
    while let Some(start) = rest.find(&open) {
        let inside = &rest[start + open.len()..];
        let Some(end) = inside.find(&close) else { break };
        found.push(&inside[..end]);
        rest = &inside[end + close.len()..];
    }
    found
}

/// The text of the first `<name>` element.
pub fn text(xml: &str, name: &str) -> Option<String> {
    elements(xml, name).first().map(|raw| unescape(raw))
}

fn unescape(raw: &str) -> String {
    raw.replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Decodes `encoding-type=url`.
pub fn decode_url(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).expect("keys are UTF-8")
}
