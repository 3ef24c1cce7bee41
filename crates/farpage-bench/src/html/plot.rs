//! Plots as SVG text. Sizes are in its own units; the page scales them.

use crate::report::number;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 130.0;
const COLOURS: [&str; 6] = ["#8a8f98", "#0f8b8d", "#d9822b", "#6c5ce7", "#c0392b", "#2d6cdf"];

/// A figure with its spread.
#[derive(Clone, Copy, Debug)]
pub struct Bar<'a> {
    pub name: &'a str,
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// Values at the ticks; some may be missing.
pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<Option<f64>>,
}

fn svg(title: &str, height: f64, inner: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{title}\"><text x=\"0\" y=\"14\" font-weight=\"600\">{title}</text>\n{inner}</svg>\n"
    )
}

/// The kernel is grey wherever it appears.
fn colour(name: &str, at: usize) -> &'static str {
    if name == "kernel" {
        COLOURS[0]
    } else {
        COLOURS[1 + at % (COLOURS.len() - 1)]
    }
}

/// Horizontal bars of medians, with a line from the lowest to the highest.
pub fn bars(title: &str, bars: &[Bar<'_>]) -> String {
    let most = bars
        .iter()
        .map(|bar| bar.highest)
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = |value: f64| value / most * (WIDTH - LEFT - RIGHT);
    let mut inner = String::new();
    for (at, bar) in bars.iter().enumerate() {
        let y = 24.0 + 26.0 * at as f64;
        let (name, fill) = (bar.name, colour(bar.name, at));
        let (from, to) = (LEFT + scale(bar.lowest), LEFT + scale(bar.highest));
        inner.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{fill}\"/>\
             <path d=\"M{from:.1} {m:.1}H{to:.1}M{from:.1} {a:.1}v8M{to:.1} {a:.1}v8\" stroke=\"currentColor\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LEFT - 8.0,
            y + 13.0,
            scale(bar.median),
            to + 8.0,
            y + 13.0,
            number(bar.median),
            m = y + 9.0,
            a = y + 5.0,
        ));
    }
    svg(title, 34.0 + 26.0 * bars.len() as f64, &inner)
}

/// Lines over equally spaced ticks; the vertical axis is logarithmic, with a line for each power of ten.
pub fn lines(title: &str, ticks: &[String], lines: &[Line<'_>]) -> String {
    let (top, bottom) = (30.0, 270.0);
    let values = lines
        .iter()
        .flat_map(|line| line.points.iter().flatten())
        .filter(|value| **value > 0.0);
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    let (first, last) = (
        low.min(high).log10().floor(),
        high.log10().ceil().max(low.min(high).log10().floor() + 1.0),
    );
    let y = |value: f64| bottom - (value.log10() - first) / (last - first) * (bottom - top);
    let step = (WIDTH - 60.0 - RIGHT) / (ticks.len().max(2) - 1) as f64;
    let x = |at: usize| 60.0 + step * at as f64;
    let mut inner = String::new();
    for power in first as i32..=last as i32 {
        let at = y(10f64.powi(power));
        inner.push_str(&format!(
            "<path d=\"M60 {at:.1}H{:.1}\" stroke=\"#8886\"/><text x=\"52\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            at + 4.0,
            10f64.powi(power)
        ));
    }
    for (at, tick) in ticks.iter().enumerate() {
        let x = x(at);
        inner.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>\n",
            bottom + 18.0
        ));
    }
    for (number, line) in lines.iter().enumerate() {
        let stroke = colour(line.name, number);
        let points = line.points.iter().enumerate();
        let points = points.filter_map(|(at, value)| Some((x(at), y(value.filter(|value| *value > 0.0)?))));
        let path: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let legend = top + 18.0 * number as f64;
        inner.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\"/>\
             <path d=\"M{a:.1} {legend:.1}h18\" stroke=\"{stroke}\" stroke-width=\"3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            path.join(" "),
            WIDTH - RIGHT + 34.0,
            legend + 4.0,
            line.name,
            a = WIDTH - RIGHT + 12.0,
        ));
    }
    svg(title, bottom + 28.0, &inner)
}

/// Upright bars for counts of 1, 2, 4, 8 and so on.
pub fn histogram(title: &str, counts: &[u64]) -> String {
    let (top, bottom, wide) = (40.0, 150.0, 44.0);
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut inner = String::new();
    for (at, count) in counts.iter().enumerate() {
        let height = *count as f64 / most * (bottom - top);
        let middle = 30.0 + wide * at as f64 + wide / 2.0;
        inner.push_str(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{count}</text>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            middle - wide / 2.0 + 3.0,
            bottom - height,
            wide - 6.0,
            COLOURS[1],
            bottom - height - 4.0,
            bottom + 16.0,
            1u64 << at.min(63)
        ));
    }
    svg(title, bottom + 26.0, &inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fits() {
        let bar = Bar {
            name: "kernel",
            median: 5.0,
            lowest: 4.0,
            highest: 10.0,
        };
        let plot = bars("t", &[bar]);
        assert!(plot.contains("width=\"240.0\""), "{plot}");
        assert!(plot.contains("H630.0"), "{plot}");
    }

    #[test]
    fn a_line_with_gaps_and_one_value() {
        let ticks = ["50".to_owned(), "99".to_owned()];
        let line = Line {
            name: "farpage",
            points: vec![Some(10.0), None],
        };
        let plot = lines("t", &ticks, &[line]);
        assert!(
            plot.contains("points=\"60.0,270.0\"") && !plot.contains("NaN"),
            "{plot}"
        );
    }

    #[test]
    fn nothing_to_plot_is_no_nonsense() {
        for plot in [bars("t", &[]), lines("t", &[], &[]), histogram("t", &[0, 0])] {
            assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
    }
}
