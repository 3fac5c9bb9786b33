//! External upload ids: the number of the upload's creation as a token of letters. Ids that earlier versions gave out are
//! the number in hexadecimal; they stay known.

use tradewind_core::error::{Error, Result};
use tradewind_core::multipart::UploadId;
use tradewind_core::token;

use super::record::UploadSeq;

/// The id visible to clients.
pub(crate) fn format_id(upload: UploadSeq) -> String {
    token::letters(upload)
}

/// The number in an id; any other text identifies no upload.
pub(crate) fn parse_id(id: &UploadId) -> Result<UploadSeq> {
    let text = &id.0;
    // Hexadecimal ids begin with zeros, because no store has used a number above 2^60: they are no tokens.
    let number = token::number_of_letters(text).or_else(|| parse_hexadecimal(text));
    number.ok_or_else(|| Error::no_such_upload(text))
}

fn parse_hexadecimal(text: &str) -> Option<UploadSeq> {
    let is_canonical = text.len() == 16
        && text.starts_with('0')
        && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_canonical.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_no_numbers_and_earlier_ids_stay_known() {
        let parse = |text: &str| parse_id(&UploadId(text.to_owned())).ok();
        for number in [1, 0x1b, 1 << 40] {
            let id = format_id(number);
            assert!(id.parse::<f64>().is_err(), "{id}");
            assert_eq!(parse(&id), Some(number));
            assert_eq!(parse(&format!("{number:016x}")), Some(number));
        }
        for bad in ["", "1b", "000000000000001B", "aaaaaaaaaaaaaaaz", "f00000000000001b"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
