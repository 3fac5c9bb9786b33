//! Opaque tokens that stand for numbers. Clients in languages with loose types read a token of digits, or one such as
//! `1e5`, as a number and send back another one, so tokens consist of the letters `a` to `p`, four bits each.

/// Letters of a token: 64 bits.
const TOKEN_LETTERS: usize = 16;

/// The token of a number. Tokens order like their numbers.
#[must_use]
pub fn letters(number: u64) -> String {
    (0..TOKEN_LETTERS)
        .rev()
        .map(|index| {
            let nibble = u8::try_from(number >> (4 * index) & 15).unwrap_or_default();
            char::from(b'a' + nibble)
        })
        .collect()
}

/// The number of a token; `None` if it is not one.
#[must_use]
pub fn number_of_letters(token: &str) -> Option<u64> {
    if token.len() != TOKEN_LETTERS {
        return None;
    }
    token.bytes().try_fold(0, |number: u64, letter| {
        (b'a'..=b'p').contains(&letter).then(|| number << 4 | u64::from(letter - b'a'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_are_no_numbers() {
        for number in [0, 5, 16, 1 << 40, u64::MAX] {
            let token = letters(number);
            assert_eq!(number_of_letters(&token), Some(number));
            assert!(token.parse::<f64>().is_err() && token.parse::<i128>().is_err());
        }
        for bad in ["", "a", "aaaaaaaaaaaaaaaq", "000000000000000a", "aaaaaaaaaaaaaaaaa"] {
            assert_eq!(number_of_letters(bad), None);
        }
    }
}
