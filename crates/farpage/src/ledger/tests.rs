use farpage_core::units::PAGE_SIZE;

use super::*;
use crate::commit;
use crate::fork::take_entry;
use crate::pool::Geometry;

fn tree() -> Ledger {
    let (fd, pool) = Pool::create(&Geometry::default()).unwrap();
    Ledger::new(pool, fd, None)
}

/// A pid that no process has: that of a child that was waited for.
fn dead_pid() -> i32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id() as i32
}

/// A child once died, and its entry went to the next one, before its parent had written its pid: then the supervisor found
/// the next child's entry with a dead pid and gave its pages up. The child read zeros.
#[test]
fn an_entry_is_not_given_up_while_the_parent_is_in_fork() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let embryo = entry_state::taken_by(sys::getpid());
    let index = take_entry(&pool, embryo).unwrap();
    let entry = &pool.processes()[index];
    entry.forking.store(sys::getpid(), Ordering::Release);
    entry.pid.store(dead_pid(), Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), embryo);
    entry.pid.store(0, Ordering::Relaxed);
    entry.born_ns.store(1, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(
        entry.state.load(Ordering::Relaxed),
        embryo,
        "a parent may be stopped in fork"
    );
    entry.pid.store(dead_pid(), Ordering::Relaxed);
    entry.forking.store(0, Ordering::Release);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::FREE);
    assert_eq!(entry.pid.load(Ordering::Relaxed), 0);
}

/// A child had run another image, and the entry was free, before its parent was back from the fork and wrote its pid: the parent's next child
/// was given up for the first one's end, and stopped.
#[test]
fn an_entry_is_not_free_before_the_parent_is_back_from_fork() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    for parent in [sys::getpid(), dead_pid()] {
        let index = take_entry(&pool, entry_state::LIVE).unwrap();
        let entry = &pool.processes()[index];
        entry.forking.store(parent, Ordering::Release);
        let born_ns = entry.born_ns.load(Ordering::Relaxed);
        cleanup::return_everything(&pool, ledger.pool_fd, index, born_ns);
        let state = || entry.state.load(Ordering::Relaxed);
        assert_eq!(entry_state::left_to_whom(state()), Some(parent));
        assert!(!entry_state::is_occupied(state()) && entry_state::cleaner(state()).is_none());
        entry.pid.store(dead_pid(), Ordering::Relaxed);
        if parent == sys::getpid() {
            ledger.tick();
            assert_ne!(state(), entry_state::FREE, "the parent may be stopped in fork");
            cleanup::let_go(entry, parent);
        } else {
            ledger.tick();
        }
        assert_eq!(state(), entry_state::FREE);
        assert_eq!(entry.pid.load(Ordering::Relaxed), 0);
        assert_eq!(entry.forking.load(Ordering::Relaxed), 0);
    }
}

/// A thread was in fork, and the child had run another image, when another thread called exec: nobody comes back from that fork.
#[test]
fn an_entry_left_to_an_image_that_is_gone_is_freed_with_it() {
    let ledger = tree();
    let pool = *ledger.pool();
    let take = || take_entry(&pool, entry_state::LIVE).unwrap();
    let (parent, child, other) = (take(), take(), take());
    let entry = |index: usize| &pool.processes()[index];
    let end = |index: usize| {
        let born_ns = entry(index).born_ns.load(Ordering::Relaxed);
        cleanup::return_everything(&pool, ledger.pool_fd, index, born_ns);
    };
    let own = sys::getpid();
    entry(parent).pid.store(own, Ordering::Relaxed);
    for (left, forker) in [(child, own), (other, own + 1)] {
        entry(left).forking.store(forker, Ordering::Relaxed);
        end(left);
    }
    end(parent);
    let state = |index: usize| entry(index).state.load(Ordering::Relaxed);
    assert_eq!(state(child), entry_state::FREE);
    assert_eq!(entry_state::left_to_whom(state(other)), Some(own + 1));
    // Nobody else lets it go.
    cleanup::let_go(entry(other), own);
    assert_eq!(entry_state::left_to_whom(state(other)), Some(own + 1));
    cleanup::let_go(entry(other), own + 1);
    assert_eq!(state(other), entry_state::FREE);
}

/// A child that borrowed its parent's memory was killed in fork when its parent had been cleaned up after: the entry stayed that of
/// a process in fork, and the tree never ended.
#[test]
fn an_entry_is_given_up_when_who_was_in_fork_is_gone() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let borrower = dead_pid();
    let index = take_entry(&pool, entry_state::taken_by(borrower)).unwrap();
    let entry = &pool.processes()[index];
    entry.forking.store(borrower, Ordering::Release);
    ledger.tick();
    assert_eq!(ledger.live(), 0);
    assert_ne!(
        entry.state.load(Ordering::Relaxed),
        entry_state::FREE,
        "a child may live"
    );
    entry.born_ns.store(1, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::FREE);
    assert_eq!(entry.forking.load(Ordering::Relaxed), 0);
}

/// A parent that pays for its child's copy may be stopped between the charge and the debt, and the child be given up meanwhile: what the
/// parent then takes back was taken back already, and the tree had up to 64 pages more than its budget for good.
#[test]
fn what_was_taken_back_twice_is_made_good() {
    let ledger = tree();
    let pool = *ledger.pool();
    let embryo = entry_state::taken_by(sys::getpid());
    let index = take_entry(&pool, embryo).unwrap();
    let entry = &pool.processes()[index];
    entry.state.store(entry_state::FREE, Ordering::Release);
    entry.charge(pool.header(), -64);
    assert_eq!(pool.header().charged.load(Ordering::Relaxed), -64);
    assert_eq!(take_entry(&pool, embryo), Some(index));
    assert_eq!(entry.charged.load(Ordering::Relaxed), 0);
    assert_eq!(pool.header().charged.load(Ordering::Relaxed), 0);
}

/// Ten seconds once were enough to give up an entry, with whoever had taken it or was to live in it stopped for longer.
#[test]
fn an_entry_that_was_taken_is_given_up_only_long_after_its_takers_death() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let embryo = entry_state::taken_by(sys::getpid());
    let index = take_entry(&pool, embryo).unwrap();
    let entry = &pool.processes()[index];
    entry.born_ns.store(1, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), embryo, "its taker lives");
    let orphan = entry_state::taken_by(dead_pid());
    entry.state.store(orphan, Ordering::Relaxed);
    entry.born_ns.store(0, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), orphan, "taken a moment ago");
    entry.born_ns.store(1, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::FREE);
}

/// A thread was in fork when another one called exec: the new image, which has the number of who had taken the entry, lived on, and
/// with it all slots that the words of the child that never was name.
#[test]
fn an_entry_whose_fork_an_exec_has_ended_is_given_up() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let own = sys::getpid();
    let lives_on = |ledger: &mut Ledger, state: u32, active: u32| {
        let index = take_entry(&pool, state).unwrap();
        let entry = &pool.processes()[index];
        entry.active.store(active, Ordering::Release);
        ledger.tick();
        let is_there = || entry.state.load(Ordering::Relaxed) == state;
        assert!(is_there(), "a child may live");
        entry.born_ns.store(1, Ordering::Relaxed);
        ledger.tick();
        is_there()
    };
    assert!(!lives_on(&mut ledger, entry_state::taken_by(own), 1));
    assert!(
        lives_on(&mut ledger, entry_state::taken_over_by(own), 1),
        "a slow child"
    );
    assert!(
        lives_on(&mut ledger, entry_state::taken_by(own), 0),
        "it may join"
    );
}

/// A child that was held up takes its entry over at the moment at which the supervisor has found that nobody has.
#[test]
fn an_entry_that_was_just_taken_over_is_not_given_up() {
    let ledger = tree();
    let pool = *ledger.pool();
    let (seen, own) = (
        entry_state::taken_by(dead_pid()),
        entry_state::taken_over_by(sys::getpid()),
    );
    let index = take_entry(&pool, seen).unwrap();
    let entry = &pool.processes()[index];
    let born_ns = entry.born_ns.load(Ordering::Relaxed);
    entry.state.store(own, Ordering::Relaxed);
    cleanup::give_up(&pool, ledger.pool_fd, index, born_ns, seen);
    assert_eq!(entry.state.load(Ordering::Relaxed), own);
    cleanup::give_up(&pool, ledger.pool_fd, index, born_ns, own);
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::FREE);
}

/// The supervisor finds an image gone while the next one, after exec, takes the same entry.
#[test]
fn the_next_life_of_an_entry_is_not_given_up() {
    let ledger = tree();
    let pool = *ledger.pool();
    let index = take_entry(&pool, entry_state::LIVE).unwrap();
    let entry = &pool.processes()[index];
    let seen = entry.born_ns.load(Ordering::Relaxed);
    entry.born_ns.store(seen + 1, Ordering::Relaxed);
    cleanup::return_everything(&pool, ledger.pool_fd, index, seen);
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::LIVE);
}

/// A new image that empties the entry of the one before can be killed while it does: the entry once stayed as it was for ever.
#[test]
fn what_a_dead_cleaner_left_is_cleaned_up() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let index = take_entry(&pool, entry_state::LIVE).unwrap();
    let entry = &pool.processes()[index];
    entry.pid.store(dead_pid(), Ordering::Relaxed);
    entry.charge(pool.header(), 7);
    let cleaning = entry_state::cleaned_by(sys::getpid());
    entry.state.store(cleaning, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), cleaning, "its cleaner lives");
    entry
        .state
        .store(entry_state::cleaned_by(dead_pid()), Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::FREE);
    assert_eq!(pool.header().charged.load(Ordering::Relaxed), 0);
}

#[test]
fn a_charge_that_no_process_has_is_taken_back() {
    let mut ledger = tree();
    let header = ledger.pool().header();
    header.charged.store(3, Ordering::Relaxed);
    for _ in 1..DRIFT_TICKS {
        ledger.tick();
        assert_eq!(
            header.charged.load(Ordering::Relaxed),
            3,
            "somebody may be in between"
        );
    }
    ledger.tick();
    assert_eq!(header.charged.load(Ordering::Relaxed), 0);
}

/// Dormant processes once filled what they had mapped while the others were using all of the budget.
#[test]
fn what_dormant_processes_may_fill_is_left_free() {
    const PROMISED: i64 = 100_000;
    let mut ledger = tree();
    let pool = *ledger.pool();
    let header = pool.header();
    header.supervisor.store(sys::getpid(), Ordering::Relaxed);
    header.budget.store(10 * PROMISED, Ordering::Relaxed);
    let index = take_entry(&pool, entry_state::LIVE).unwrap();
    let entry = &pool.processes()[index];
    entry.pid.store(1, Ordering::Relaxed);
    let limit = |ledger: &mut Ledger| {
        ledger.tick();
        header.limit.load(Ordering::Relaxed)
    };
    let before = limit(&mut ledger);
    header.lower_limit(PROMISED);
    assert_eq!(header.limit.load(Ordering::Relaxed), before - PROMISED, "at once");
    entry
        .committed
        .store(PROMISED * PAGE_SIZE as i64, Ordering::Relaxed);
    let dormant = limit(&mut ledger);
    entry.active.store(1, Ordering::Relaxed);
    let active = limit(&mut ledger);
    let promised = active - dormant;
    assert!(
        promised > PROMISED / 2 && promised <= PROMISED,
        "{promised} pages were kept free"
    );
}

/// Four workers once copied 9 MiB of what they shared with their parent beside managed memory before their shares were read again:
/// one run in eight passed the hard limit.
#[test]
fn what_children_may_copy_is_left_free_up_to_a_part_of_the_limit() {
    const APART: i64 = 1000;
    let mut ledger = tree();
    let pool = *ledger.pool();
    let header = pool.header();
    header.budget.store(100 * APART, Ordering::Relaxed);
    let index = take_entry(&pool, entry_state::taken_by(sys::getpid())).unwrap();
    let entry = &pool.processes()[index];
    entry.forking.store(sys::getpid(), Ordering::Release);
    entry.active.store(1, Ordering::Relaxed);
    let limit = |ledger: &mut Ledger, apart: i64| {
        entry.apart.store(apart, Ordering::Relaxed);
        ledger.tick();
        header.limit.load(Ordering::Relaxed)
    };
    let alone = limit(&mut ledger, 0);
    let near = |limit: i64, expected: i64| (limit - expected).abs() < APART / 10;
    let shared = limit(&mut ledger, APART);
    assert!(near(shared, alone - APART), "{shared} of {alone}");
    let most = limit(&mut ledger, 90 * APART);
    assert!(near(most, alone - alone / COPIES_PART), "{most} of {alone}");
}

/// A process that mapped and unmapped a little many times once took all of that off the limit.
#[test]
fn memory_mapped_again_and_again_is_promised_once() {
    const PAGES: i64 = 1000;
    let mut ledger = tree();
    let pool = *ledger.pool();
    let header = pool.header();
    header.supervisor.store(sys::getpid(), Ordering::Relaxed);
    header.budget.store(100 * PAGES, Ordering::Relaxed);
    let index = take_entry(&pool, entry_state::LIVE).unwrap();
    let entry = &pool.processes()[index];
    entry.pid.store(1, Ordering::Relaxed);
    ledger.tick();
    let limit = || header.limit.load(Ordering::Relaxed);
    let map = |pages: i64| {
        entry
            .committed
            .fetch_add(pages * PAGE_SIZE as i64, Ordering::Relaxed);
        commit::promise(header, entry);
    };
    let before = limit();
    for _ in 0..50 {
        map(PAGES);
        map(-PAGES);
    }
    assert_eq!(limit(), before - PAGES);
    map(2 * PAGES);
    assert_eq!(limit(), before - 2 * PAGES, "more than ever");
    ledger.tick();
    let counted = limit();
    map(PAGES);
    assert_eq!(limit(), counted - PAGES, "beyond what the supervisor has seen");
}

/// A new image gave the old entry up and another process took it while the supervisor looked at the old life.
#[test]
fn a_start_time_is_that_of_one_life() {
    let mut ledger = tree();
    let pool = *ledger.pool();
    let index = take_entry(&pool, entry_state::LIVE).unwrap();
    let entry = &pool.processes()[index];
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    entry.pid.store(1, Ordering::Relaxed);
    ledger.tick();
    entry.pid.store(other.id() as i32, Ordering::Relaxed);
    entry.born_ns.fetch_add(1, Ordering::Relaxed);
    ledger.tick();
    assert_eq!(entry.state.load(Ordering::Relaxed), entry_state::LIVE);
    entry.pid.store(1, Ordering::Relaxed);
    ledger.tick();
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(
        entry.state.load(Ordering::Relaxed),
        entry_state::FREE,
        "a pid used anew"
    );
}

#[test]
fn a_parent_that_dies_leaves_its_children_what_they_owe() {
    let ledger = tree();
    let pool = *ledger.pool();
    let (parent, child) = (
        take_entry(&pool, entry_state::LIVE).unwrap(),
        take_entry(&pool, entry_state::LIVE).unwrap(),
    );
    let entry = &pool.processes()[child];
    entry.parent.store(parent as u32 + 1, Ordering::Relaxed);
    let family = pool.processes()[parent].family.load(Ordering::Relaxed);
    entry.family.store(family, Ordering::Relaxed);
    entry.owed.store(30, Ordering::Relaxed);
    entry.forking.store(sys::getpid(), Ordering::Relaxed);
    pool.processes()[parent]
        .pid
        .store(sys::getpid(), Ordering::Relaxed);
    pool.processes()[parent].charge(pool.header(), 100);
    let end = |index: usize| {
        let born_ns = pool.processes()[index].born_ns.load(Ordering::Relaxed);
        cleanup::return_everything(&pool, ledger.pool_fd, index, born_ns);
    };
    end(parent);
    assert_eq!(pool.header().charged.load(Ordering::Relaxed), 30);
    assert_eq!(entry.owed.load(Ordering::Relaxed), 0);
    assert_eq!(entry.forking.load(Ordering::Relaxed), 0);
    end(child);
    assert_eq!(pool.header().charged.load(Ordering::Relaxed), 0);
}

/// The supervisor was kept from running between its look at a process and that at its managed pages, while 32 threads filled 40 MiB:
/// what the process had beside them seemed to be gone, and the limit let as much in again (107 MiB in a budget of 96).
#[test]
fn pages_filled_between_two_looks_do_not_hide_what_is_not_managed() {
    let (known, anon, filled) = (3000, 3000 + 12_000, 10_000);
    assert_eq!(apart_of(known, anon, 12_000, 12_000), known);
    assert_eq!(apart_of(known, anon, 12_000, 12_000 + filled), known);
    assert_eq!(apart_of(known, anon + filled, 12_000, 12_000 + filled), known);
    assert_eq!(apart_of(known, anon, 12_000, 12_000 - filled), known);
    assert_eq!(
        apart_of(known, anon + 500, 12_000, 12_000),
        known + 500,
        "what grows is seen"
    );
    assert_eq!(
        apart_of(known, anon - 500, 12_000, 12_010),
        known - 500,
        "what shrinks, too"
    );
}

#[test]
fn a_job_is_not_put_off_for_what_it_waited() {
    let mut paced = Paced::default();
    let mut runs = 0;
    paced.run(100, || std::thread::sleep(std::time::Duration::from_millis(300)));
    paced.run(100 + 300 * 1_000_000 * JOB_COST / 4, || runs += 1);
    assert_eq!(runs, 1, "the CPU was another's meanwhile");
    let busy = sys::thread_ns() + 5_000_000;
    paced.run(u64::MAX / 2, || while sys::thread_ns() < busy {});
    paced.run(u64::MAX / 2 + 5_000_000 * (JOB_COST - 1), || runs += 1);
    assert_eq!(runs, 1, "it took its part of the time");
}
