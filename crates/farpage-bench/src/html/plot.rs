//! Plots as SVG text. Sizes are in its own units; the page scales them.

use crate::report::number;

const WIDTH: f64 = 880.0;
/// Room for the longest name of a side, beside bars and in a legend.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 200.0;
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
         aria-label=\"{title}\"><text x=\"0\" y=\"14\" class=\"title\">{title}</text>\n{inner}</svg>\n"
    )
}

/// The kernel and farpage have the same colours wherever they appear; others by their place.
fn colour(name: &str, at: usize) -> &'static str {
    match name {
        "kernel" => COLOURS[0],
        "farpage" => COLOURS[1],
        _ => COLOURS[2 + at % (COLOURS.len() - 2)],
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
        inner.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\"/>\n",
            path.join(" ")
        ));
        inner.push_str(&legend(number, line.name, stroke, ""));
    }
    svg(title, legend_height(lines.len()).max(bottom + 28.0), &inner)
}

/// Values over time, in seconds; both axes begin at 0.
pub struct Curve<'a> {
    pub name: &'a str,
    /// Of the side, for its colour.
    pub side: &'a str,
    pub number: usize,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// A round step that makes at most six lines up to `most`.
fn round_step(most: f64) -> f64 {
    let rough = (most / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}

/// A round number, without the digits that say nothing.
fn tick(value: f64) -> String {
    let text = number(value);
    match text.split_once('.') {
        Some((_, digits)) if digits.chars().all(|digit| digit == '0') => format!("{value:.0}"),
        _ => text,
    }
}

pub fn curves(title: &str, curves: &[Curve<'_>]) -> String {
    let (top, bottom, left) = (30.0, 200.0, 70.0);
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let most_x = all().map(|point| point.0).fold(0.1, f64::max);
    let most_y = all().map(|point| point.1).fold(1.0, f64::max);
    let x = |value: f64| left + value / most_x * (WIDTH - left - RIGHT);
    let y = |value: f64| bottom - value / most_y * (bottom - top);
    let mut inner = String::new();
    let (step_x, step_y) = (round_step(most_x), round_step(most_y));
    for nth in 0..=(most_y / step_y) as u32 {
        let value = step_y * f64::from(nth);
        let at = y(value);
        inner.push_str(&format!(
            "<path d=\"M{left} {at:.1}H{:.1}\" stroke=\"#8886\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            left - 8.0,
            at + 4.0,
            tick(value)
        ));
    }
    for nth in 0..=(most_x / step_x) as u32 {
        let value = step_x * f64::from(nth);
        let unit = if nth == 0 { " s" } else { "" };
        inner.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}{unit}</text>\n",
            x(value),
            bottom + 18.0,
            tick(value)
        ));
    }
    for (nth, curve) in curves.iter().enumerate() {
        let stroke = colour(curve.side, curve.number);
        let dashes = if curve.dashed {
            " stroke-dasharray=\"5 3\""
        } else {
            ""
        };
        let path: Vec<_> = curve
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        inner.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.5\"{dashes}/>\n",
            path.join(" ")
        ));
        inner.push_str(&legend(nth, curve.name, stroke, dashes));
    }
    svg(title, legend_height(curves.len()).max(bottom + 28.0), &inner)
}

/// What a legend of so many lines needs.
fn legend_height(lines: usize) -> f64 {
    36.0 + 18.0 * lines as f64
}

/// A line's name, at the right.
fn legend(nth: usize, name: &str, stroke: &str, dashes: &str) -> String {
    let (y, from) = (30.0 + 18.0 * nth as f64, WIDTH - RIGHT + 12.0);
    format!(
        "<path d=\"M{from:.1} {y:.1}h18\" stroke=\"{stroke}\" stroke-width=\"3\"{dashes}/><text x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
        from + 22.0,
        y + 4.0
    )
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
        assert!(plot.contains("width=\"245.0\""), "{plot}");
        assert!(plot.contains("H680.0"), "{plot}");
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
    fn steps_are_round() {
        assert_eq!(
            [1.0, 7.0, 42.0, 99_000.0].map(round_step),
            [0.2, 2.0, 10.0, 20_000.0]
        );
        assert!(round_step(0.0).is_finite());
    }

    #[test]
    fn a_curve_fills_its_box() {
        let curve = Curve {
            name: "kernel in",
            side: "kernel",
            number: 0,
            dashed: true,
            points: vec![(0.0, 0.0), (2.0, 50.0)],
        };
        let plot = curves("t", &[curve]);
        assert!(plot.contains("points=\"70.0,200.0 680.0,30.0\""), "{plot}");
        assert!(
            plot.contains(">50</text>") && plot.contains(">0 s</text>") && plot.contains(">0.500</text>"),
            "{plot}"
        );
    }

    #[test]
    fn nothing_to_plot_is_no_nonsense() {
        for plot in [
            bars("t", &[]),
            lines("t", &[], &[]),
            histogram("t", &[0, 0]),
            curves("t", &[]),
        ] {
            assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
    }
}
