//! Latency targets in flags and in JSON output.

use tradewind_model::tune::{LatencyTarget, Statistic};

use crate::settings::TimeSpan;

const NAMES: [(&str, Statistic); 3] =
    [("mean", Statistic::Mean), ("p95", Statistic::P95), ("p99", Statistic::P99)];

/// Parses a latency target: `100ms` for the mean, `p99=100ms` for the 99th percentile.
pub(super) fn parse_latency_target(text: &str) -> Result<LatencyTarget, String> {
    let (of, time) = match text.split_once('=') {
        None => (Statistic::Mean, text),
        Some((name, time)) => {
            let found = NAMES.iter().find(|(known, _)| *known == name);
            let (_, of) = found.ok_or("write it as 100ms, p95=100ms or p99=100ms")?;
            (*of, time)
        }
    };
    let seconds = TimeSpan::parse(time)?.0.as_secs_f64();
    if seconds > 0.0 {
        Ok(LatencyTarget { statistic: of, max_seconds: seconds })
    } else {
        Err("the latency limit must be greater than 0".to_owned())
    }
}

/// The name of a statistic in JSON output.
pub(super) fn statistic_name(statistic: Statistic) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == statistic).map_or("mean", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_targets_are_parsed() {
        assert_eq!(parse_latency_target("100ms"), Ok(LatencyTarget::mean(0.1)));
        assert_eq!(
            parse_latency_target("p99=2s"),
            Ok(LatencyTarget { statistic: Statistic::P99, max_seconds: 2.0 })
        );
        assert_eq!(statistic_name(parse_latency_target("p95=100ms").unwrap().statistic), "p95");
        for wrong in ["p98=1s", "0s", "p99", "=1s", "p99=0s"] {
            assert!(parse_latency_target(wrong).is_err(), "{wrong}");
        }
    }
}
