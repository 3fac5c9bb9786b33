//! The one date format of signatures, `YYYYMMDDThhmmssZ`, in UTC.

use tradewind_core::Timestamp;

/// A time in whole seconds, with its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmzDate {
    text: [u8; 16],
    seconds: i64,
}

impl AmzDate {
    /// Parses the text. `None` if the time does not exist in the calendar.
    #[inline]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: [u8; 16] = text.try_into().ok()?;
        if text[8] != b'T' || text[15] != b'Z' {
            return None;
        }
        let number = |from: usize, to: usize| {
            text[from..to]
                .iter()
                .try_fold(0_i64, |n, c| c.is_ascii_digit().then(|| n * 10 + i64::from(c - b'0')))
        };
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
        if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
            return None;
        }
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Self { text, seconds })
    }

    /// From a time given in another form (a `Date` header).
    pub fn from_timestamp(time: Timestamp) -> Option<Self> {
        let seconds = time.seconds();
        let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
        let rest = seconds.rem_euclid(86_400);
        if !(0..10_000).contains(&year) {
            return None;
        }
        let mut text = *b"YYYYMMDDThhmmssZ";
        let pairs = [year / 100, year % 100, month, day, rest / 3600, rest / 60 % 60, rest % 60];
        // Written for each request: without the formatting machinery.
        for (number, at) in pairs.into_iter().zip([0, 2, 4, 6, 9, 11, 13]) {
            let digit = |n: i64| u8::try_from(n % 10).map_or(b'?', |digit| b'0' + digit);
            text[at..at + 2].copy_from_slice(&[digit(number / 10), digit(number)]);
        }
        Some(Self { text, seconds })
    }

    /// The text.
    #[inline]
    pub const fn text(&self) -> &[u8; 16] {
        &self.text
    }

    /// The day, `YYYYMMDD`.
    #[inline]
    pub fn day(&self) -> &[u8] {
        &self.text[..8]
    }

    /// Seconds since 1970.
    #[inline]
    pub const fn seconds(&self) -> i64 {
        self.seconds
    }
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 of a date of the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last of its year and months have a linear formula.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_year = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_before_month = (153 * month + 2) / 5;
    days_before_year + days_before_month + day - 1 - 719_468
}

/// The inverse of [`days_from_civil`], by eras of 400 years.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = year_of_era + era * 400;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_moments() {
        assert_eq!(AmzDate::parse(b"19700101T000000Z").unwrap().seconds(), 0);
        assert_eq!(AmzDate::parse(b"20130524T000000Z").unwrap().seconds(), 1_369_353_600);
        assert_eq!(AmzDate::parse(b"20240229T235959Z").unwrap().seconds(), 1_709_251_199);
        for bad in
            ["20230229T000000Z", "20231301T000000Z", "20230101T240000Z", "20230101 000000Z", "2023", ""]
        {
            assert_eq!(AmzDate::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn years_of_four_digits() {
        let at = |seconds: i64| AmzDate::from_timestamp(Timestamp::from_millis(seconds * 1000));
        assert_eq!(at(253_402_300_799).unwrap().text(), b"99991231T235959Z");
        assert_eq!(at(253_402_300_800), None);
    }

    proptest! {
        #[test]
        fn written_and_read_back(seconds in 0_i64..253_402_300_799) {
            let date = AmzDate::from_timestamp(Timestamp::from_millis(seconds * 1000)).unwrap();
            prop_assert_eq!(AmzDate::parse(date.text()), Some(date));
            prop_assert_eq!(date.seconds(), seconds);
        }

        #[test]
        fn any_bytes(text in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = AmzDate::parse(&text);
        }
    }
}
