//! What each operation costs alone, in nanoseconds of one CPU.

use serde_json::{Value, json};

macro_rules! costs {
    ($($name:ident $fixed:literal $what:literal,)*) => {
        /// Nanoseconds per operation, without any other CPU.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Costs {
            $(#[doc = $what] pub $name: u64,)*
        }

        impl Costs {
            /// Round figures, the same on every machine.
            pub const FIXED: Self = Self { $($name: $fixed,)* };

            /// Each cost with its name and its meaning.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, u64, &'static str)> {
                vec![$((stringify!($name), self.$name, $what),)*]
            }
        }
    };
}

costs! {
    fault 3500 "Software of a fault that no lock covers: the trap, the page's copy, its page-table entries; half to half more. Given, not measured.",
    read 10_000 "Latency of a read from the device, in which the CPU is free for nothing else; half to half more. Given, not measured.",
    line 100 "A cache line that comes from another CPU. Given, not measured.",
    visit 1000 "Allocation of a run of slots, per cluster that it locks and looks through.",
    visit_one 70 "Allocation of a single slot, per cluster that it locks.",
    release 60 "A slot given back by itself.",
    release_next 15 "Each further slot of the same cluster in one call.",
    sweep 400 "Freeing what others left released in a cluster, at its unlocking.",
    publish 8 "A slot's word gets its content.",
    put 8 "A slot's word loses a reference, or gains one.",
    look_up 3 "A slot's word is looked at.",
    map_alloc 30 "Baseline: a slot is found in the device's map.",
    map_count 8 "Baseline: a slot's count in the map changes.",
    tree_insert 90 "Baseline: a page enters the cache's tree.",
    tree_delete 90 "Baseline: a page leaves it.",
    tree_look 50 "Baseline: a page is looked for in it.",
}

impl Costs {
    /// The costs by name.
    #[must_use]
    pub fn json(&self) -> Value {
        let rows = self.rows().into_iter();
        Value::Object(rows.map(|(name, ns, _)| (name.to_owned(), json!(ns))).collect())
    }
}
