//! What `scale` comes to: how far the cost of a fault depends on the size of RAM and data. Made from the comparisons of `--json`.

use farpage_core::units::format_size;
use serde_json::Value;

use crate::figures::{figure, items, text};
use crate::report::number;

/// The dearest fault costs at most so many times the cheapest.
const FLAT: f64 = 1.2;

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub ram_bytes: u64,
    pub data_bytes: u64,
    pub start_ms: Option<f64>,
    pub fault_us: f64,
    pub fault_p50_us: f64,
    pub engine_mib: f64,
    pub engine_bytes_per_page: f64,
}

/// The sizes on one kind of swap, the least RAM first.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub backing: String,
    pub steps: Vec<Step>,
}

/// Of every kind of swap that was measured in more than one size.
#[must_use]
pub fn scales(comparisons: &[Value]) -> Vec<Scale> {
    let mut scales: Vec<Scale> = Vec::new();
    for one in comparisons.iter().filter(|one| text(one, "workload") == "faults") {
        let Some(step) = step(one, comparisons) else {
            continue;
        };
        match scales
            .iter_mut()
            .find(|scale| scale.backing == text(one, "backing"))
        {
            Some(scale) => scale.steps.push(step),
            None => scales.push(Scale {
                backing: text(one, "backing").to_owned(),
                steps: vec![step],
            }),
        }
    }
    scales.retain(|scale| scale.steps.len() > 1);
    scales
}

fn step(of: &Value, comparisons: &[Value]) -> Option<Step> {
    let ours = |of: &Value, measure: &str| {
        let is_it = |row: &&Value| text(row, "measure") == measure && text(row, "side") == "farpage";
        figure(items(&of["rows"]).iter().find(is_it)?, "ours.median")
    };
    let starts = comparisons
        .iter()
        .find(|one| text(one, "workload") == "startup" && one["ram_bytes"] == of["ram_bytes"]);
    Some(Step {
        ram_bytes: of["ram_bytes"].as_u64()?,
        data_bytes: of["data_bytes"].as_u64()?,
        start_ms: starts.and_then(|one| ours(one, "start_ms")),
        fault_us: ours(of, "fault.mean_us")?,
        fault_p50_us: ours(of, "fault.p50_us")?,
        engine_mib: ours(of, "engine_mib")?,
        engine_bytes_per_page: ours(of, "engine_bytes_per_page")?,
    })
}

pub const HEAD: [&str; 7] = [
    "RAM",
    "data",
    "start, ms",
    "a fault, us",
    "50th, us",
    "farpage's own, MiB",
    "bytes per page of data",
];

impl Step {
    /// What stands under `HEAD`.
    #[must_use]
    pub fn cells(&self) -> [String; 7] {
        [
            format_size(self.ram_bytes).to_string(),
            format_size(self.data_bytes).to_string(),
            self.start_ms.map_or("-".to_owned(), number),
            number(self.fault_us),
            number(self.fault_p50_us),
            number(self.engine_mib),
            number(self.engine_bytes_per_page),
        ]
    }
}

impl Scale {
    /// The dearest mean fault / the cheapest, the fault in the most RAM / that in the least, and whether that is flat.
    #[must_use]
    pub fn verdict(&self) -> String {
        let (ends, spread) = self.spread(|step| step.fault_us);
        let met = if spread <= FLAT { "met" } else { "MISSED" };
        format!(
            "a fault in the most RAM costs {} of one in the least; dearest / cheapest {} (at the median {}), own <= {FLAT}: {met}",
            number(ends),
            number(spread),
            number(self.spread(|step| step.fault_p50_us).1)
        )
    }

    /// Last / first, and highest / lowest.
    fn spread(&self, of: impl Fn(&Step) -> f64) -> (f64, f64) {
        let costs: Vec<f64> = self.steps.iter().map(of).collect();
        let (low, high) = costs.iter().fold((f64::MAX, 0.0), |(low, high), cost| {
            (cost.min(low), cost.max(high))
        });
        match (costs.first(), costs.last()) {
            (Some(first), Some(last)) => (last / first, high / low),
            _ => (1.0, 1.0),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let row = |cells: &[String]| cells.iter().map(|cell| format!("{cell:>24}")).collect::<String>();
        let head = HEAD.map(str::to_owned);
        let mut text = format!("\nscale, {}: {}\n{}\n", self.backing, self.verdict(), row(&head));
        for step in &self.steps {
            text.push_str(&format!("{}\n", row(&step.cells())));
        }
        text
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    pub fn comparisons(costs: &[f64]) -> Vec<Value> {
        let row = |measure: &str, value: f64| json!({"measure": measure, "side": "farpage", "ours": {"median": value}});
        let sizes = costs.iter().enumerate();
        let both = sizes.map(|(at, cost)| {
            let ram = (16_u64 << 20) << (2 * at);
            let rows = json!([
                row("fault.mean_us", *cost),
                row("fault.p50_us", cost / 2.0),
                row("engine_mib", 1.5),
                row("engine_bytes_per_page", 20.0)
            ]);
            [
                json!({"workload": "startup", "ram_bytes": ram, "rows": [row("start_ms", 4.5)]}),
                json!({"workload": "faults", "backing": "file", "ram_bytes": ram, "data_bytes": 4 * ram, "rows": rows}),
            ]
        });
        both.flatten().collect()
    }

    #[test]
    fn flat_is_told_of_the_dearest_and_the_cheapest() {
        let scales = scales(&comparisons(&[50.0, 45.0, 52.0]));
        let text = scales[0].text();
        assert!(
            text.contains(
                "in the most RAM costs 1.04 of one in the least; dearest / cheapest 1.16 (at the median 1.16), own <= 1.2: met"
            ),
            "{text}"
        );
        let row = text.lines().last().expect("a row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            ["256", "MiB", "1", "GiB", "4.50", "52.0", "26.0", "1.50", "20.0"]
        );
        assert!(
            super::scales(&comparisons(&[50.0, 61.0]))[0]
                .verdict()
                .ends_with("MISSED")
        );
    }

    #[test]
    fn one_size_is_no_scale() {
        assert_eq!(scales(&comparisons(&[50.0])), []);
    }
}
