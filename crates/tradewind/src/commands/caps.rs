//! How long requests may take, as it stands in flags and in what programs read.

use tradewind_model::tune::{Cap, Statistic};

use crate::settings::Span;

const NAMES: [(&str, Statistic); 3] =
    [("mean", Statistic::Mean), ("p95", Statistic::P95), ("p99", Statistic::P99)];

/// Reads `100ms`, the mean, or `p99=100ms`, what 99 of a hundred keep to.
pub(super) fn parse(text: &str) -> Result<Cap, String> {
    let (of, time) = match text.split_once('=') {
        None => (Statistic::Mean, text),
        Some((name, time)) => {
            let known = NAMES.iter().find(|(known, _)| *known == name);
            let (_, of) = known.ok_or("write it as 100ms, p95=100ms or p99=100ms")?;
            (*of, time)
        }
    };
    let seconds = Span::parse(time)?.0.as_secs_f64();
    if seconds > 0.0 { Ok(Cap { of, seconds }) } else { Err("nothing takes no time".to_owned()) }
}

/// For programs.
pub(super) fn name(of: Statistic) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == of).map_or("mean", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_read() {
        assert_eq!(parse("100ms"), Ok(Cap::mean(0.1)));
        assert_eq!(parse("p99=2s"), Ok(Cap { of: Statistic::P99, seconds: 2.0 }));
        assert_eq!(name(parse("p95=100ms").unwrap().of), "p95");
        for wrong in ["p98=1s", "0s", "p99", "=1s", "p99=0s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
