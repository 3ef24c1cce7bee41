use super::*;

pub fn able() -> Abilities {
    Abilities {
        cgroup: Ok(()),
        swap_file: Ok(()),
        zram: Ok(()),
        memory: Ok(()),
        room: Room {
            ram: 1 << 50,
            disk: 1 << 50,
        },
        tools: vec!["redis-server"],
    }
}

pub fn config(names: &[&str]) -> Config {
    Config {
        subjects: names
            .iter()
            .map(|name| Subject::parse(name).expect("a name"))
            .collect(),
        baseline: Vec::new(),
        against: Vec::new(),
        ram_bytes: None,
        factor: None,
        pairs: None,
        directory: "/var/tmp".into(),
        run_args: Vec::new(),
        incompressible: false,
        json: None,
        html: None,
        markdown: None,
        build: None,
        program: "farpage".into(),
        command: vec!["farpage".to_owned(), "bench".to_owned()],
    }
}

/// The tour where all can be run.
pub fn tour() -> Plan {
    plan(&config(&[]), &able()).expect("a plan")
}

#[test]
fn the_tour_is_everything_on_both_backings() {
    let plan = tour();
    // startup, fit and solve once, huge on three kinds of swap, the others on two.
    assert_eq!(plan.comparisons.len(), 22);
    assert_eq!((plan.rounds, plan.within_seconds), (3, Some(TOUR_SECONDS)));
    let exactly = Config {
        pairs: Some(2),
        ..config(&[])
    };
    let exactly = super::plan(&exactly, &able()).expect("a plan");
    assert_eq!((exactly.rounds, exactly.within_seconds), (2, None));
    assert!(
        plan.comparisons
            .iter()
            .all(|one| (RAM_MIN..=TOUR.0).contains(&one.ram_bytes))
    );
    assert!(plan.notes[0].ends_with(
        "by name: threads, faults, chase, usemem-random, usemem-threads, usemem-read, build, redis"
    ));
    assert!(plan.notes[1].starts_with("solve: left out"));
}

/// Programs with data of their own once took `--incompressible`, and did as ever.
#[test]
fn data_that_does_not_compress_is_not_for_programs_with_their_own() {
    let asked = |names: &[&str]| {
        let config = Config {
            incompressible: true,
            ..config(names)
        };
        plan(&config, &able())
    };
    for name in ["usemem", "usemem-threads", "solve"] {
        let refused = asked(&[name]).expect_err("its data is its own");
        assert!(refused.starts_with(name), "{refused}");
    }
    assert!(asked(&["fill"]).expect("a plan").notes.is_empty());
    let told = asked(&[]).expect("a plan").notes;
    assert!(
        told.iter()
            .any(|note| note == "--incompressible: not of solve, usemem"),
        "{told:?}"
    );
}

#[test]
fn what_is_not_installed_is_refused_by_name() {
    let redis = plan(&config(&["redis"]), &able()).expect("a plan");
    assert_eq!(redis.comparisons.len(), 2);
    let refused = plan(&config(&["build"]), &able());
    assert_eq!(refused, Err("build: gcc is not in PATH; install it".to_owned()));
}

#[test]
fn a_mapped_file_stands_beside_a_swap_file() {
    let mut config = config(&["seq", "usemem"]);
    config.against = vec![Against::Memmap];
    let alone = plan(&config, &able()).expect("a plan");
    let sides: Vec<_> = alone
        .comparisons
        .iter()
        .map(|one| (one.backing, one.sides.clone()))
        .collect();
    assert_eq!(sides, [(Backing::File, vec![Side::Mapped, FARPAGE])]);
    assert!(
        alone
            .notes
            .contains(&"usemem: memmap left out, its data is no mapping".to_owned())
    );
    config.against.push(Against::KernelZram);
    let both = plan(&config, &able()).expect("a plan");
    assert_eq!(both.comparisons.len(), 3);
}

#[test]
fn an_ordinary_user_measures_farpage_alone_and_is_told() {
    let not_root = Err("not root".to_owned());
    let able = Abilities {
        cgroup: not_root.clone(),
        swap_file: not_root.clone(),
        zram: not_root,
        tools: Vec::new(),
        ..able()
    };
    let mut config = config(&["seq"]);
    let alone = plan(&config, &able).expect("a plan");
    assert_eq!(alone.comparisons.len(), 2);
    assert!(alone.comparisons.iter().all(|one| one.sides == [FARPAGE]));
    assert_eq!(
        alone.notes,
        [
            "no hard limit around farpage: not root",
            "kernel-file left out: not root",
            "kernel-zram left out: not root"
        ]
    );
    config.against = vec![Against::KernelFile];
    assert_eq!(
        plan(&config, &able),
        Err("--against kernel-file: not root".to_owned())
    );
}

#[test]
fn sides_follow_against() {
    let mut config = config(&["fill"]);
    config.against = vec![Against::KernelZram, Against::Ram];
    let plan = plan(&config, &able()).expect("a plan");
    assert_eq!(plan.comparisons.len(), 1);
    assert_eq!(plan.comparisons[0].backing, Backing::Compressed);
    assert_eq!(plan.comparisons[0].sides, [Side::Ram, Side::Kernel, FARPAGE]);
    assert_eq!(plan.comparisons[0].data_bytes, 4 * plan.comparisons[0].ram_bytes);
}

#[test]
fn readahead_has_a_row_for_each_policy() {
    let plan = plan(&config(&["readahead"]), &able()).expect("a plan");
    let names: Vec<_> = plan.comparisons[0].sides.iter().map(|side| side.name()).collect();
    assert_eq!(
        names,
        [
            "kernel",
            "farpage none",
            "farpage cluster",
            "farpage vma",
            "farpage adaptive"
        ]
    );
    assert_eq!(plan.comparisons[1].workload, Workload::Solve);
    let none = Side::Farpage(Way::Readahead("none"));
    let random: Vec<_> = plan.comparisons[2..]
        .iter()
        .map(|one| (one.workload, one.backing, one.sides[1]))
        .collect();
    let on = |backing| (Workload::Random, backing, none);
    assert_eq!(random, [on(Backing::File), on(Backing::Compressed)]);
}

#[test]
fn a_baseline_is_farpage_with_a_system_and_without() {
    let mut config = config(&[]);
    config.baseline = System::ALL.to_vec();
    let plan = plan(&config, &able()).expect("a plan");
    let sides: Vec<_> = plan.comparisons.iter().map(|one| one.sides.clone()).collect();
    let names: Vec<_> = sides.iter().map(|both| both[1].name()).collect();
    let huge = "farpage huge split-early";
    let emptied = "farpage cluster counted";
    let core = ["farpage lock per device", "farpage cache tree"];
    assert_eq!(names, ["farpage cluster", huge, huge, emptied, core[0], core[1]]);
    let slots = &plan.comparisons[4];
    assert!(slots.title().starts_with("what C is worth: slots: the core's"));
    assert_eq!((slots.ram_bytes, slots.data_bytes), (0, 0));
    assert!(slots.sides[0].is_aimed() && !slots.sides[1].is_aimed());
    assert!(plan.comparisons[0].title().starts_with("what V is worth: mixed"));
    assert_eq!(plan.rounds, 5);
    config.ram_bytes = Some(64 << 20);
    let notes = super::plan(&config, &able()).expect("a plan").notes;
    assert!(notes[0].contains("no huge pages in 64 MiB"), "{notes:?}");
}

#[test]
fn swapoff_and_huge_have_a_side_for_each_way() {
    let plan = |names: &[&str]| plan(&config(names), &able()).expect("a plan").comparisons;
    let emptied = plan(&["swapoff"]);
    let shape =
        |all: &[Comparison]| -> Vec<_> { all.iter().map(|one| (one.backing, one.sides.len())).collect() };
    assert_eq!(shape(&emptied), [(Backing::File, 8), (Backing::Compressed, 2)]);
    assert!(emptied[0].sides[1].is_aimed() && !emptied[0].sides[2].is_aimed());
    let huge = plan(&["huge"]);
    let each = [Backing::File, Backing::Compressed, Backing::Memory].map(|backing| (backing, 5));
    assert_eq!(shape(&huge), each);
    assert!(huge[0].sides[1].is_aimed() && !huge[0].sides[2].is_aimed());
    let mut small = config(&["huge"]);
    small.ram_bytes = Some(64 << 20);
    let notes = super::plan(&small, &able()).expect("a plan").notes;
    assert!(notes[0].contains("no huge pages in 64 MiB"), "{notes:?}");
}

#[test]
fn sizes_that_cannot_work_are_refused() {
    let mut config = config(&["fill"]);
    config.ram_bytes = Some(1 << 20);
    assert!(plan(&config, &able()).is_err());
    config.ram_bytes = None;
    for factor in [0.5, f64::NAN, 100.0] {
        config.factor = Some(factor);
        assert!(plan(&config, &able()).is_err(), "{factor}");
    }
}

#[test]
fn usemem_shares_the_data_out() {
    let plan = plan(&config(&["usemem", "usemem-threads", "seq"]), &able()).expect("a plan");
    let words = plan
        .comparisons
        .iter()
        .map(|one| one.usemem_words().map(|words| words.join(" ")));
    let words: Vec<_> = words.step_by(2).collect();
    let expected = [
        "--init-time -O -y -x -n 4 134217728",
        "--init-time -O -y -x -n 1 -t 4 134217728",
    ];
    assert_eq!(
        words,
        [Some(expected[0].to_owned()), Some(expected[1].to_owned()), None]
    );
}
