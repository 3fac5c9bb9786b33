//! A heat map of throughput by request size and concurrency, updated after each probe. Measured points are marked.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use tradewind_bench::tune::ProbeResult;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::{OperatingPoint, Surface};

use crate::commands::plan_output::{direction_name, format_megabytes};
use crate::settings::ByteSize;

/// Colours of a terminal's palette, from low to high throughput.
const COLOURS: [u8; 7] = [236, 54, 90, 125, 160, 208, 226];

/// A heat map on the terminal.
pub(super) struct HeatMap {
    direction: Direction,
    sizes: BTreeSet<u64>,
    concurrencies: BTreeSet<usize>,
    measured: BTreeSet<OperatingPoint>,
    /// Number of lines on the terminal to overwrite; `None` if nothing is shown before the end.
    drawn_lines: Option<usize>,
}

impl HeatMap {
    pub fn new(direction: Direction, points: &[OperatingPoint], is_quiet: bool) -> Self {
        Self {
            direction,
            sizes: points.iter().map(|point| point.bytes).collect(),
            concurrencies: points.iter().map(|point| point.concurrency).collect(),
            measured: BTreeSet::new(),
            drawn_lines: (!is_quiet).then_some(0),
        }
    }

    pub fn probe_started(&mut self, point: OperatingPoint) {
        if self.drawn_lines.is_some() {
            let _ = write!(io::stdout(), "trying {} x {} ...\r", ByteSize(point.bytes), point.concurrency);
            let _ = io::stdout().flush();
        }
    }

    pub fn probe_finished(&mut self, probed: &ProbeResult, surface: &Surface) {
        if probed.sample.is_some() {
            self.measured.insert(probed.point);
        }
        if let Some(lines) = self.drawn_lines {
            let map = self.map(surface, true);
            let _ = write!(io::stdout(), "{}\x1b[J{map}", cursor_up(lines));
            self.drawn_lines = Some(map.lines().count());
        }
    }

    pub fn finish(&self, surface: &Surface) -> io::Result<()> {
        let lines = self.drawn_lines.unwrap_or(0);
        let map = self.map(surface, self.drawn_lines.is_some());
        if lines > 0 {
            write!(io::stdout(), "{}\x1b[J", cursor_up(lines))?;
        }
        writeln!(io::stdout(), "{map}")
    }

    fn map(&self, surface: &Surface, is_coloured: bool) -> String {
        let predict = |bytes: u64, concurrency: usize| surface.predict(OperatingPoint { bytes, concurrency });
        let all = self.sizes.iter().flat_map(|bytes| self.concurrencies.iter().map(|n| (*bytes, *n)));
        let best = all.map(|(bytes, n)| predict(bytes, n).throughput()).fold(0.0, f64::max);
        let mut map = format!(
            "{} in MB/s, by request size and concurrency (* measured)\n",
            direction_name(self.direction)
        );
        let head = self.concurrencies.iter().fold(format!("{:>9}", ""), |mut head, n| {
            let _ = write!(head, "{n:>7}");
            head
        });
        let _ = writeln!(map, "{head}");
        for bytes in &self.sizes {
            let _ = write!(map, "{:>9}", ByteSize(*bytes).to_string());
            for n in &self.concurrencies {
                let throughput = predict(*bytes, *n).throughput();
                let mark = if self.measured.contains(&OperatingPoint { bytes: *bytes, concurrency: *n }) {
                    '*'
                } else {
                    ' '
                };
                let text = format!("{:>6}{mark}", format_megabytes(throughput));
                if is_coloured {
                    let index = (throughput / best * (COLOURS.len() - 1) as f64).round() as usize;
                    let colour = COLOURS[index.min(COLOURS.len() - 1)];
                    let text_colour = if index > 4 { 16 } else { 231 };
                    let _ = write!(map, "\x1b[48;5;{colour};38;5;{text_colour}m{text}\x1b[0m");
                } else {
                    map += &text;
                }
            }
            map.push('\n');
        }
        map
    }
}

/// The escape sequence that moves the cursor up by `lines`.
fn cursor_up(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r") }
}
