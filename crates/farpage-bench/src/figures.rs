//! The figures of the runs of one side: median and spread, the ratios of two sides round by round, and where they stand in JSON.

use serde_json::{Value, json};

/// Median, lowest and highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    pub count: usize,
}

impl Spread {
    /// `None` of nothing. The median of an even number is the mean of the middle two.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Some(Self {
            median,
            lowest,
            highest,
            count,
        })
    }

    /// Of `ours` / `theirs`, in the rounds that gave both.
    #[must_use]
    pub fn of_ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs);
        Self::of(pairs.filter_map(|pair| match pair {
            (Some(ours), Some(theirs)) if *theirs != 0.0 => Some(ours / theirs),
            _ => None,
        }))
    }

    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "median": self.median,
            "lowest": self.lowest,
            "highest": self.highest,
            "count": self.count,
        })
    }
}

/// A figure by its path: `t1.p50_us` is `figures["t1"]["p50_us"]`.
#[must_use]
pub fn figure(figures: &Value, path: &str) -> Option<f64> {
    path.split('.')
        .try_fold(figures, |value, key| value.get(key))?
        .as_f64()
}

/// The elements of an array; none of anything else.
#[must_use]
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The command that a report is of, as a shell is given it.
#[must_use]
pub fn command(report: &Value) -> String {
    let words: Vec<_> = items(&report["command"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    shlex::try_join(words.iter().copied()).unwrap_or_else(|_| words.join(" "))
}

/// The text under a key, empty if there is none.
#[must_use]
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let spread = Spread::of([3.0, 1.0, 2.0]).expect("values");
        assert_eq!((spread.median, spread.lowest, spread.highest), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).expect("values").median, 2.5);
        assert_eq!(Spread::of([f64::NAN, 5.0]).expect("one").count, 1);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let ours = [Some(2.0), None, Some(9.0), Some(1.0)];
        let theirs = [Some(1.0), Some(1.0), Some(3.0), Some(0.0)];
        let spread = Spread::of_ratios(&ours, &theirs).expect("two rounds");
        assert_eq!((spread.median, spread.count), (2.5, 2));
        assert_eq!(Spread::of_ratios(&ours, &[]), None);
    }

    #[test]
    fn figures_by_path() {
        let figures = json!({"a": {"b": 2.5}, "c": 3});
        assert_eq!(figure(&figures, "a.b"), Some(2.5));
        assert_eq!(figure(&figures, "c"), Some(3.0));
        assert_eq!(figure(&figures, "a"), None);
        assert_eq!(figure(&figures, "a.x"), None);
    }
}
