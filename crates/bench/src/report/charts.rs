//! Charts as SVG. Ink and grid are drawn in two reserved colours, which the style sheet of the page replaces by those
//! of the reader's light or dark theme.

use std::error::Error;
use std::ops::Range;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints as _;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Reserved colours, replaced by the style sheet of the page.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
pub(super) const GRID: RGBColor = RGBColor(2, 2, 2);
/// Colours of the series, distinguishable with colour blindness, on white and on black.
const SERIES_COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(150, 120, 90),
];
/// Width and height of a line chart without its legend, in pixels.
const PLOT_WIDTH: u32 = 640;
const CHART_HEIGHT: u32 = 360;
/// Width of a legend without its text, and of a character, in pixels.
const LEGEND_MARGIN: u32 = 52;
const CHARACTER_WIDTH: u32 = 8;
const FONT: &str = "sans-serif";

type SvgResult = Result<String, Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One line of a chart.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// The line belongs to the previous one: it has the same colour and is dashed.
    pub is_dashed: bool,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AxisScale {
    Linear,
    Logarithmic,
}

fn text(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

fn drawn(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>) -> SvgResult {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// Formats a number with few digits and an SI prefix: 0.25, 1, 30, 45.6k, 2M.
pub(super) fn format_short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        few if few >= 100.0 || few == 0.0 => 0,
        few if few >= 10.0 => 1,
        few if few >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// The range of an axis: that of the values, with a margin.
fn axis_range(values: impl Iterator<Item = f64>, axis: AxisScale) -> Range<f64> {
    let (min, max) = values
        .filter(|value| value.is_finite() && (axis == AxisScale::Linear || *value > 0.0))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)));
    match axis {
        _ if !min.is_finite() => 0.1..1.0,
        AxisScale::Linear => 0.0..(max * 1.08).max(f64::MIN_POSITIVE),
        AxisScale::Logarithmic => {
            let (low, high) = (min / 1.15, max * 1.15);
            let below = 10.0_f64.powf(high.log10().floor());
            // The range contains a power of ten, so that it has a label. The factor compensates rounding errors.
            low.min(below * 0.999)..high
        }
    }
}

/// Labels of a logarithmic axis: 1, 2 and 5 of each decade, or powers of ten if there are many decades.
fn logarithmic_ticks(range: &Range<f64>) -> Vec<f64> {
    const MAX_TICKS: usize = 12;
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    let ticks = |steps: &[f64], every: usize| -> Vec<f64> {
        let decades = (first..=last).step_by(every);
        let ticks = decades.flat_map(|decade| steps.iter().map(move |step| step * 10.0_f64.powi(decade)));
        ticks.filter(|tick| range.contains(tick)).collect()
    };
    let candidates = [ticks(&[1.0, 2.0, 5.0], 1), ticks(&[1.0], 1), ticks(&[1.0], 3)];
    let fitting = candidates.iter().find(|ticks| ticks.len() <= MAX_TICKS);
    fitting.or(candidates.last()).cloned().unwrap_or_default()
}

/// Draws a line chart. With several series it has a legend to its right.
pub(super) fn line_chart(
    (x, x_name): (AxisScale, &str),
    (y, y_name): (AxisScale, &str),
    series: &[Series],
) -> SvgResult {
    let points = || series.iter().flat_map(|series| &series.points);
    let (across, up) =
        (axis_range(points().map(|point| point.0), x), axis_range(points().map(|point| point.1), y));
    let logarithmic = |range: Range<f64>| {
        let ticks = logarithmic_ticks(&range);
        range.log_scale().with_key_points(ticks)
    };
    drawn((PLOT_WIDTH + legend_width(series), CHART_HEIGHT), |area| {
        let (area, legend) = area.split_horizontally(PLOT_WIDTH);
        if series.len() > 1 {
            draw_legend(&legend, series)?;
        }
        let names = (x_name, y_name);
        match (x, y) {
            (AxisScale::Linear, AxisScale::Linear) => plot(&area, across, up, names, series),
            (AxisScale::Linear, AxisScale::Logarithmic) => {
                plot(&area, across, logarithmic(up), names, series)
            }
            (AxisScale::Logarithmic, AxisScale::Linear) => {
                plot(&area, logarithmic(across), up, names, series)
            }
            (AxisScale::Logarithmic, AxisScale::Logarithmic) => {
                plot(&area, logarithmic(across), logarithmic(up), names, series)
            }
        }
    })
}

fn plot<X, Y>(
    area: &Area<'_>,
    x: X,
    y: Y,
    (x_name, y_name): (&str, &str),
    series: &[Series],
) -> Result<(), Box<dyn Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(13))
        .axis_desc_style(text(14))
        .x_desc(x_name)
        .y_desc(y_name)
        .x_label_formatter(&|value| format_short(*value))
        .y_label_formatter(&|value| format_short(*value))
        .draw()?;
    for (each, style) in series.iter().zip(line_styles(series)) {
        let points = each.points.iter().copied();
        if each.is_dashed {
            chart.draw_series(DashedLineSeries::new(points, 5, 4, style))?;
        } else {
            chart.draw_series(LineSeries::new(points, style))?;
        }
    }
    Ok(())
}

/// The style of each line: a dashed one has the colour of the previous one.
fn line_styles(series: &[Series]) -> Vec<ShapeStyle> {
    let mut colour = 0;
    let mut styles = Vec::with_capacity(series.len());
    for (n, each) in series.iter().enumerate() {
        if n > 0 && !each.is_dashed {
            colour += 1;
        }
        styles.push(SERIES_COLOURS[colour % SERIES_COLOURS.len()].stroke_width(2));
    }
    styles
}

fn legend_width(series: &[Series]) -> u32 {
    let characters = series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0) as u32;
    if series.len() > 1 { LEGEND_MARGIN + CHARACTER_WIDTH * characters } else { 0 }
}

/// Draws a line and the name of each series, below each other.
fn draw_legend(area: &Area<'_>, series: &[Series]) -> Result<(), Box<dyn Error>> {
    const TOP: i32 = 24;
    const LINE_HEIGHT: i32 = 20;
    for ((n, each), style) in (0..).zip(series).zip(line_styles(series)) {
        let y = TOP + n * LINE_HEIGHT;
        let line = [(8, y), (32, y)];
        if each.is_dashed {
            area.draw(&plotters::element::DashedPathElement::new(line, 5, 4, style))?;
        } else {
            area.draw(&PathElement::new(line, style))?;
        }
        area.draw(&Text::new(each.name.clone(), (40, y - 7), text(13)))?;
    }
    Ok(())
}

/// Draws a heat map, darker for higher values. `values` has a row for each name of `down`.
pub(super) fn heat_map(
    (across_name, across): (&str, &[String]),
    down: &[String],
    values: &[Vec<Option<f64>>],
) -> SvgResult {
    const TOP: i32 = 50;
    const HEIGHT: i32 = 40;
    let label_width =
        |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as i32 * 7 + 14;
    // Wide enough for the labels of rows and columns.
    let (left, wide) = (label_width(down).max(110), label_width(across).max(76));
    let (width, height) = (across.len() as i32 * wide + left + 10, down.len() as i32 * HEIGHT + TOP + 10);
    let max = values.iter().flatten().flatten().copied().fold(0.0, f64::max);
    drawn((width.unsigned_abs(), height.unsigned_abs()), |area| {
        let middle = |style: TextStyle<'static>| {
            style.pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Center,
            ))
        };
        area.draw(&Text::new(across_name.to_owned(), (left, 6), text(13)))?;
        for (n, name) in across.iter().enumerate() {
            let at = (left + n as i32 * wide + wide / 2, TOP - 14);
            area.draw(&Text::new(name.clone(), at, middle(text(13))))?;
        }
        for (row, (name, values)) in down.iter().zip(values).enumerate() {
            let y = TOP + row as i32 * HEIGHT;
            area.draw(&Text::new(name.clone(), (8, y + HEIGHT / 2 - 7), text(13)))?;
            for (column, value) in values.iter().enumerate() {
                let x = left + column as i32 * wide;
                let Some(value) = value else { continue };
                let part = if max > 0.0 { value / max } else { 0.0 };
                let style = SERIES_COLOURS[0].mix(0.06 + 0.74 * part).filled();
                area.draw(&Rectangle::new([(x + 1, y + 1), (x + wide - 1, y + HEIGHT - 1)], style))?;
                let at = (x + wide / 2, y + HEIGHT / 2);
                area.draw(&Text::new(format_short(*value), at, middle(text(14))))?;
            }
        }
        Ok(())
    })
}

/// A chart with its caption, or with an error message if it could not be drawn.
pub(super) fn figure(caption: &str, drawn: Result<String, Box<dyn std::error::Error>>) -> Markup {
    html! {
        figure {
            @match drawn {
                Ok(svg) => { (PreEscaped(svg)) }
                Err(e) => { p { "This chart cannot be drawn: " (e) } }
            }
            figcaption { (caption) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_uses_few_digits_and_prefixes() {
        let texts: Vec<String> =
            [0.0, 0.25, 1.0, 2.5, 30.0, 999.0, 1234.0, 45_600.0, 2e6, 3.21e9].map(format_short).to_vec();
        assert_eq!(texts, ["0", "0.25", "1", "2.5", "30", "999", "1234", "45.6k", "2M", "3.21G"]);
    }

    #[test]
    fn logarithmic_axes_have_labels_for_any_range() {
        for (min, max) in [(120.0, 700.0), (2.0, 8.0), (0.0012, 0.008), (15.0, 80.0), (1.0, 64.0), (3.0, 3.0)]
        {
            let line =
                Series { name: "a".to_owned(), points: vec![(min, min), (max, max)], is_dashed: false };
            let svg =
                line_chart((AxisScale::Logarithmic, "x"), (AxisScale::Logarithmic, "y"), &[line]).unwrap();
            let numbers = svg.lines().filter(|line| line.trim().parse::<f64>().is_ok()).count();
            assert!(numbers >= 4, "{min} to {max}: {numbers}");
        }
        assert_eq!(axis_range([1.0, 64.0].into_iter(), AxisScale::Logarithmic), 1.0 / 1.15..64.0 * 1.15);
    }

    #[test]
    fn legend_is_to_the_right_of_the_lines() {
        let line = |name: &str| Series {
            name: name.to_owned(),
            points: vec![(1.0, 2.0), (100.0, 9.0)],
            is_dashed: false,
        };
        let chart = |series: &[Series]| {
            line_chart((AxisScale::Linear, "x"), (AxisScale::Linear, "y"), series).unwrap()
        };
        let svg = chart(&[line("one"), line("another line")]);
        let text = &svg[..svg.find("another line").unwrap()];
        let at = &text[text.rfind(" x=\"").unwrap() + 4..];
        let x: u32 = at[..at.find('"').unwrap()].parse().unwrap();
        assert!(x > PLOT_WIDTH && svg.contains("<svg width=\"788\""), "{svg}");
        assert!(chart(&[line("one")]).contains("<svg width=\"640\""));
    }

    #[test]
    fn logarithmic_ticks_are_few_and_distinct() {
        let ticks = |min, max| logarithmic_ticks(&axis_range([min, max].into_iter(), AxisScale::Logarithmic));
        assert_eq!(ticks(1.0, 16.0), [1.0, 2.0, 5.0, 10.0]);
        for (min, max) in [(1e-3, 1e9), (1.0, 1e6), (3.0, 3.0), (0.2, 400.0)] {
            let ticks = ticks(min, max);
            assert!((2..=12).contains(&ticks.len()), "{ticks:?}");
            assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
        }
    }

    #[test]
    fn charts_are_drawn_for_any_points() {
        let line = |points: Vec<(f64, f64)>| Series { name: "<a & b>".to_owned(), points, is_dashed: false };
        for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, 3.0), (64.0, 3000.0)]] {
            for x in [AxisScale::Linear, AxisScale::Logarithmic] {
                for y in [AxisScale::Linear, AxisScale::Logarithmic] {
                    let series = [line(points.clone()), Series { is_dashed: true, ..line(points.clone()) }];
                    let svg = line_chart((x, "x"), (y, "y"), &series).unwrap();
                    assert!(svg.starts_with("<svg") && !svg.contains("<a &"), "{svg}");
                }
            }
        }
        let names = ["1".to_owned(), "2".to_owned()];
        let svg =
            heat_map(("concurrency", &names), &names, &[vec![Some(1.0), None], vec![Some(0.0), Some(5.0)]])
                .unwrap();
        assert!(svg.contains("concurrency"));
        assert!(heat_map(("none", &[]), &[], &[]).is_ok());
    }
}
