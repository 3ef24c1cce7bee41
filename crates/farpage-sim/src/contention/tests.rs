use super::report::{P13_SHARE, p13};
use super::*;

fn config(cpus: &[usize], devices: &[usize], pages: usize) -> Config {
    Config {
        pages,
        cpus: cpus.to_vec(),
        devices: devices.to_vec(),
        faults: 3000,
        seed: 7,
        costs: Costs::FIXED,
    }
}

fn of(rows: &[Row], stage: Stage, cpus: usize) -> Row {
    let found = rows.iter().find(|row| row.stage == stage && row.cpus == cpus);
    *found.expect("simulated")
}

#[test]
fn a_seed_repeats_the_run_exactly() {
    let config = config(&[5], &[2], 4096);
    let rows = run(&config).expect("runs");
    assert_eq!(rows, run(&config).expect("runs"));
    let other = Config { seed: 8, ..config };
    assert_ne!(rows, run(&other).expect("runs"));
}

#[test]
fn one_cpu_waits_for_nobody() {
    for row in run(&config(&[1], &[1, 3], 4096)).expect("runs") {
        assert_eq!((row.lock_share, row.locks_per_1000[1]), (0.0, 0.0), "{row:?}");
    }
}

#[test]
fn the_baseline_waits_most_and_the_table_least() {
    let rows = run(&config(&[8, 32], &[1], 32_768)).expect("runs");
    for cpus in [8, 32] {
        let [first, clusters, percpu, last] = Stage::ALL.map(|stage| of(&rows, stage, cpus));
        for between in [clusters, percpu] {
            assert!(first.lock_share > between.lock_share, "{rows:?}");
            assert!(between.lock_share > last.lock_share, "{rows:?}");
        }
        assert!(first.fault_ns[0] > last.fault_ns[0], "{rows:?}");
    }
    let missed = |stage| of(&rows, stage, 32).locks_per_1000[1];
    assert!(
        missed(Stage::ClusterLocks) > missed(Stage::PercpuSlots),
        "{rows:?}"
    );
}

#[test]
fn more_devices_help_the_baseline() {
    let rows = run(&config(&[16], &[1, 8], 8192)).expect("runs");
    let baseline: Vec<_> = rows.iter().filter(|r| r.stage == Stage::Baseline).collect();
    assert!(baseline[1].lock_share < baseline[0].lock_share);
}

#[test]
fn with_96_cpus_lock_waiting_is_below_the_target() {
    let rows = run(&config(&[96], &[1], 32_768)).expect("runs");
    assert_eq!(p13(&rows), Some(true), "{rows:?}");
    assert!(of(&rows, Stage::Baseline, 96).lock_share > 10.0 * P13_SHARE);
    assert_eq!(p13(&rows[..3]), None);
}

#[test]
fn no_slot_is_lost_and_none_had_twice() {
    for stage in Stage::ALL {
        let shape = Shape {
            cpus: 12,
            devices: 2,
            pages: 4096,
            seed: 3,
        };
        let mut machine = Machine::new(stage, &shape, Costs::FIXED).expect("room");
        machine.run(0, 3000).expect("runs");
        let (taken, known) = machine.slots_used();
        assert_eq!(taken, known, "{stage:?}");
    }
}

#[test]
fn what_is_out_of_range_is_refused() {
    let refused = |change: fn(&mut Config)| {
        let mut config = config(&[4], &[1], 4096);
        change(&mut config);
        run(&config).expect_err("refused")
    };
    refused(|c| c.cpus = vec![0]);
    refused(|c| c.cpus = vec![257]);
    refused(|c| c.devices = vec![0]);
    refused(|c| c.pages = 100);
    refused(|c| c.faults = 0);
}

#[test]
fn measured_costs_are_costs() {
    let costs = measure::measure().expect("measures");
    assert!(costs.rows().iter().all(|(_, ns, _)| *ns > 0));
    assert_eq!(costs.fault, Costs::FIXED.fault, "given, not measured");
}
