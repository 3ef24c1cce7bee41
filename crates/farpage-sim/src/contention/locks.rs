//! Locks and cache lines in virtual time.

/// A lock that CPUs wait for in the order of their coming.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lock {
    free_ns: u64,
    last: Option<u32>,
}

/// What an operation under a lock took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Until the lock was free.
    pub waited_ns: u64,
    /// From then on.
    pub worked_ns: u64,
}

impl Lock {
    /// CPU `cpu` comes at `now_ns` and works `work_ns` under the lock. What the lock guards has to come to its cache, as
    /// the lock's own line has, if another CPU was there last: two lines.
    pub fn hold(&mut self, cpu: u32, now_ns: u64, work_ns: u64, line_ns: u64) -> Held {
        let waited_ns = self.free_ns.saturating_sub(now_ns);
        let lines = if self.last == Some(cpu) { 0 } else { 2 };
        let worked_ns = work_ns + lines * line_ns;
        self.free_ns = now_ns + waited_ns + worked_ns;
        self.last = Some(cpu);
        Held { waited_ns, worked_ns }
    }
}

/// A line that CPUs change with single instructions, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line(Lock);

impl Line {
    /// The time until CPU `cpu`, which comes at `now_ns`, has the line and has changed it.
    pub fn touch_ns(&mut self, cpu: u32, now_ns: u64, line_ns: u64) -> u64 {
        let comes_ns = if self.0.last == Some(cpu) { 0 } else { line_ns };
        let ns = self.0.free_ns.saturating_sub(now_ns) + comes_ns;
        self.0.free_ns = now_ns + ns;
        self.0.last = Some(cpu);
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_waits_for_those_before() {
        let mut lock = Lock::default();
        let held = |waited_ns, worked_ns| Held { waited_ns, worked_ns };
        assert_eq!(lock.hold(0, 100, 50, 10), held(0, 70));
        assert_eq!(
            lock.hold(0, 200, 50, 10),
            held(0, 50),
            "its lines are there still"
        );
        assert_eq!(lock.hold(1, 210, 50, 10), held(40, 70));
        assert_eq!(lock.hold(2, 210, 50, 10), held(110, 70));
        assert_eq!(lock.hold(2, 1000, 50, 10), held(0, 50));
    }

    #[test]
    fn a_line_goes_from_one_to_the_next() {
        let mut line = Line::default();
        assert_eq!(line.touch_ns(0, 0, 100), 100);
        assert_eq!(line.touch_ns(0, 100, 100), 0);
        assert_eq!(line.touch_ns(1, 100, 100), 100);
        assert_eq!(line.touch_ns(2, 100, 100), 200);
    }
}
