//! Results as a table for other programs: a line for each kind of request of each measurement (RFC 4180).

use super::Kept;
use crate::result::{Cell, Figures, Latency};

const HEAD: &str = "result,load,mix,sizes,parallel,rate,beside,repeat,operation,seconds,requests_per_second,bytes_per_second,\
first_byte_p50_us,latency_mean_us,latency_p50_us,latency_p90_us,latency_p99_us,latency_p999_us,latency_max_us,failures,\
cpu_us_per_request,machine_busy,ending";

/// All measurements of all results.
pub(super) fn write(results: &[Kept]) -> String {
    let mut text = String::from(HEAD) + "\r\n";
    for result in results {
        for cell in &result.cells {
            for (operation, figures) in &cell.operations {
                let fields = fields(&result.name, cell, operation.name(), figures);
                text += &fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",");
                text += "\r\n";
            }
        }
    }
    text
}

fn fields(result: &str, cell: &Cell, operation: &str, figures: &Figures) -> Vec<String> {
    let Latency { mean, p50, p90, p99, p999, max, .. } = &figures.latency_us;
    let known = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let ending = format!("{:?}", cell.ending).to_lowercase();
    vec![
        result.to_owned(),
        cell.name(),
        cell.mix.to_string(),
        cell.sizes.to_string(),
        cell.parallel.to_string(),
        known(cell.rate),
        cell.beside.join(" and "),
        cell.repeat.to_string(),
        operation.to_owned(),
        cell.seconds.to_string(),
        figures.per_second.to_string(),
        figures.bytes_per_second.to_string(),
        figures.first_byte_us.p50.to_string(),
        mean.to_string(),
        p50.to_string(),
        p90.to_string(),
        p99.to_string(),
        p999.to_string(),
        max.to_string(),
        figures.failures.values().sum::<u64>().to_string(),
        known(cell.cpu_us_per_operation()),
        cell.machine_busy.to_string(),
        ending,
    ]
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("get=1,put=2"), "\"get=1,put=2\"");
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(quoted("4KiB"), "4KiB");
    }

    #[test]
    fn every_line_has_a_field_for_each_heading() {
        let cell = crate::result::tests::cell("get", 4, 1, 100.0);
        let (operation, figures) = cell.operations.iter().next().unwrap();
        assert_eq!(fields("a", &cell, operation.name(), figures).len(), HEAD.split(',').count());
    }
}
