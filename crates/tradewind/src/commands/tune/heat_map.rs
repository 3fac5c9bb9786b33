//! A heat map of throughput by request size and concurrency, updated after each probe. Measured points are marked.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use tradewind_bench::tune::ProbeResult;
use tradewind_model::store_model::Direction;
use tradewind_model::tune::{OperatingPoint, Surface};

use crate::commands::plan_output::{direction_name, format_megabytes};
use crate::settings::ByteSize;

/// Colours of a terminal's palette, from low to high throughput.
const COLOURS: [u8; 7] = [236, 54, 90, 125, 160, 208, 226];

/// A heat map on the terminal.
pub(super) struct HeatMap {
    direction: Direction,
    sizes: BTreeSet<u64>,
    parallel: BTreeSet<usize>,
    tried: BTreeSet<OperatingPoint>,
    /// The number of lines on the terminal to overwrite; `None` if nothing is shown before the end.
    drawn: Option<usize>,
}

impl HeatMap {
    pub fn new(direction: Direction, points: &[OperatingPoint], is_quiet: bool) -> Self {
        Self {
            direction,
            sizes: points.iter().map(|point| point.bytes).collect(),
            parallel: points.iter().map(|point| point.concurrency).collect(),
            tried: BTreeSet::new(),
            drawn: (!is_quiet).then_some(0),
        }
    }

    pub fn probe_started(&mut self, point: OperatingPoint) {
        if self.drawn.is_some() {
            let _ = write!(io::stdout(), "trying {} x {} ...\r", ByteSize(point.bytes), point.concurrency);
            let _ = io::stdout().flush();
        }
    }

    pub fn probe_finished(&mut self, probed: &ProbeResult, surface: &Surface) {
        if probed.sample.is_some() {
            self.tried.insert(probed.point);
        }
        if let Some(lines) = self.drawn {
            let map = self.map(surface, true);
            let _ = write!(io::stdout(), "{}\x1b[J{map}", up(lines));
            self.drawn = Some(map.lines().count());
        }
    }

    pub fn finish(&self, surface: &Surface) -> io::Result<()> {
        let lines = self.drawn.unwrap_or(0);
        let map = self.map(surface, self.drawn.is_some());
        if lines > 0 {
            write!(io::stdout(), "{}\x1b[J", up(lines))?;
        }
        writeln!(io::stdout(), "{map}")
    }

    fn map(&self, surface: &Surface, is_coloured: bool) -> String {
        let found =
            |bytes: u64, parallel: usize| surface.predict(OperatingPoint { bytes, concurrency: parallel });
        let all = self.sizes.iter().flat_map(|bytes| self.parallel.iter().map(|n| (*bytes, *n)));
        let best = all.map(|(bytes, n)| found(bytes, n).bandwidth()).fold(0.0, f64::max);
        let mut map = format!(
            "{} in MB/s, by request size and concurrency (* measured)\n",
            direction_name(self.direction)
        );
        let head = self.parallel.iter().fold(format!("{:>9}", ""), |mut head, n| {
            let _ = write!(head, "{n:>7}");
            head
        });
        let _ = writeln!(map, "{head}");
        for bytes in &self.sizes {
            let _ = write!(map, "{:>9}", ByteSize(*bytes).to_string());
            for n in &self.parallel {
                let bandwidth = found(*bytes, *n).bandwidth();
                let mark = if self.tried.contains(&OperatingPoint { bytes: *bytes, concurrency: *n }) {
                    '*'
                } else {
                    ' '
                };
                let text = format!("{:>6}{mark}", format_megabytes(bandwidth));
                if is_coloured {
                    let part = (bandwidth / best * (COLOURS.len() - 1) as f64).round() as usize;
                    let colour = COLOURS[part.min(COLOURS.len() - 1)];
                    let ink = if part > 4 { 16 } else { 231 };
                    let _ = write!(map, "\x1b[48;5;{colour};38;5;{ink}m{text}\x1b[0m");
                } else {
                    map += &text;
                }
            }
            map.push('\n');
        }
        map
    }
}

fn up(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r") }
}
