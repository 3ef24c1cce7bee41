//! How many rounds there is time for.

use std::time::Instant;

use crate::plan::{Comparison, Plan};

/// Rounds are run until the plan's are done or its time is up: each comparison has an equal share of that, and what those before it left.
pub struct Pace {
    started: Instant,
    within: Option<f64>,
    rounds: u32,
    comparisons: usize,
    /// What had fewer rounds than there were to be.
    fewer: Vec<(u32, String)>,
}

impl Pace {
    pub fn new(plan: &Plan) -> Self {
        Self {
            started: Instant::now(),
            within: plan.within_seconds,
            rounds: plan.rounds,
            comparisons: plan.comparisons.len(),
            fewer: Vec::new(),
        }
    }

    /// Rounds that are still to be, after so many.
    pub fn left(&self, rounds: u32) -> u32 {
        self.rounds - rounds
    }

    /// Whether the `nth` comparison, from 0, has one more round after so many, of which the last took so many seconds.
    pub fn goes_on(&mut self, (nth, comparison): (usize, &Comparison), rounds: u32, last: f64) -> bool {
        if rounds >= self.rounds {
            return false;
        }
        let is_time = self.within.is_none_or(|within| {
            let share = within * (nth + 1) as f64 / self.comparisons as f64;
            self.started.elapsed().as_secs_f64() + last <= share
        });
        if !is_time {
            let (name, backing) = (comparison.workload.name(), comparison.backing.name());
            self.fewer.push((rounds, format!("{name} ({backing})")));
        }
        is_time
    }

    /// What is to be told of it.
    pub fn note(&self) -> Option<String> {
        let within = self.within.filter(|_| !self.fewer.is_empty())?;
        let with = |rounds: u32| {
            let names = self.fewer.iter().filter(|(had, _)| *had == rounds);
            let names: Vec<_> = names.map(|(_, name)| name.as_str()).collect();
            (!names.is_empty()).then(|| format!("{rounds} of {}", names.join(", ")))
        };
        let told: Vec<_> = (1..self.rounds).filter_map(with).collect();
        Some(format!(
            "fewer than {} rounds, to end within {:.0} minutes (--pairs N: that many of all): {}",
            self.rounds,
            within / 60.0,
            told.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Backing, Workload};
    use crate::plan::tests::tour;

    #[test]
    fn what_takes_long_has_fewer_rounds() {
        let plan = tour();
        let [mut pace, mut unbounded] = [plan.within_seconds, None].map(|within_seconds| {
            Pace::new(&Plan {
                within_seconds,
                ..plan.clone()
            })
        });
        let (short, long) = (&plan.comparisons[0], &plan.comparisons[1]);
        assert_eq!((long.workload, long.backing), (Workload::Fill, Backing::File));
        assert!(pace.goes_on((0, short), 1, 2.0) && pace.goes_on((0, short), 2, 2.0));
        assert!(!pace.goes_on((0, short), 3, 2.0), "all that were to be");
        assert_eq!(pace.note(), None);
        assert!(pace.goes_on((1, long), 1, 10.0), "the first has left some");
        assert!(!pace.goes_on((1, long), 2, 20.0));
        let note = pace.note().expect("one had fewer");
        assert!(
            note.starts_with("fewer than 3 rounds, to end within 3 minutes"),
            "{note}"
        );
        assert!(note.ends_with(": 2 of fill (file)"), "{note}");
        assert!(unbounded.goes_on((1, long), 2, 1000.0) && unbounded.note().is_none());
    }
}
