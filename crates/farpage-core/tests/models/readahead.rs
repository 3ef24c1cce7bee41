//! What every readahead policy promises of its windows, whatever the faults.

use farpage_core::readahead::{
    Cluster, Fault, History, Memory, Order, Policy, Recall, Slot, Streams, Window,
};
use farpage_core::sync::{AtomicU32, AtomicU64};

use super::Input;

pub const LO: u64 = 1 << 20;
pub const PAGES: u64 = 1 << 16;

/// A page, the thread, and whether readahead had brought it.
pub type Touch = (u64, u32, bool);

/// Limits of the windows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the byte a touch falls on: 0 for the first of each page.
    pub row_mask: u32,
    pub page_cluster: u32,
    pub budget: u32,
    pub window_max: u32,
}

/// A run of touches that some bytes say; none at their end.
pub fn read(input: &mut Input<'_>) -> Option<Vec<Touch>> {
    let (what, start, len) = (input.byte()?, u64::from(input.word()?), u64::from(input.byte()?));
    let stride = i64::from(what % 19) - 9;
    Some(run(
        start % PAGES,
        len % 40 + 1,
        stride,
        u32::from(what / 19 % 3),
        what > 128,
    ))
}

/// `len` touches from `start` on, `stride` pages apart.
pub fn run(start: u64, len: u64, stride: i64, thread: u32, hit: bool) -> Vec<Touch> {
    let page = |i| (start as i64 + stride * i as i64).rem_euclid(PAGES as i64) as u64;
    (0..len)
        .map(|i| (LO + page(i), thread, hit && i % 3 == 1))
        .collect()
}

/// The window keeps to its region and its limits.
pub fn check(fault: &Fault<'_>, window: &Window) {
    let last = window.places().last().expect("a page at least");
    let (lo, hi) = match window.order {
        Order::Virtual => (fault.lo, fault.hi),
        Order::Device => fault.slot.map(|s| (s.first, s.end)).expect("a slot"),
        // Records, which name pages anywhere.
        Order::Recalled => (0, u64::MAX),
    };
    assert!(window.first >= lo && last < hi, "{window:?} {fault:?}");
    assert!(
        window.len >= 1 && window.len <= fault.most(),
        "{window:?} {fault:?}"
    );
    assert!(window.stride >= 1, "{window:?}");
    assert!(window.marker.is_none_or(|page| window.holds(page)), "{window:?}");
    // A step of a walk by bytes may lie in two pages.
    let by_pages = window.fraction == 0 && window.phase + window.reach.max(1) <= 4096;
    let most = window.len as usize * if by_pages { 1 } else { 2 };
    let places = window.places().count();
    assert!((window.len as usize..=most).contains(&places), "{window:?}");
    assert!(
        (0..window.len).all(|step| window.holds(window.at(step))),
        "{window:?}"
    );
}

/// Asks a policy about each touch; panics at a window that breaks a promise.
pub fn follow(policy: Policy, walk: impl IntoIterator<Item = Touch>, limits: Limits) {
    let Limits {
        row_mask,
        page_cluster,
        budget,
        window_max,
    } = limits;
    let (cluster, streams, word) = (Cluster::new(), Streams::new(), AtomicU64::new(0));
    let records = || (0..64).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let (recall, ring, index) = (Recall::new(), records(), records());
    let history = History::new(&recall, &ring, &index);
    let memory = Memory {
        cluster: &cluster,
        streams: &streams,
        history: Some(history),
        page_cluster,
    };
    for (page, thread, is_hit) in walk {
        let offset = (page * 2400 % 4096) as u32 & row_mask;
        // Slots are the pages in reverse.
        let (lo, hi, slots) = (LO, LO + PAGES, PAGES + 1);
        let slot = Slot {
            slot: hi - page,
            first: 1,
            end: slots,
        };
        let place = Some(slot);
        let fault = Fault {
            page,
            offset,
            thread,
            lo,
            hi,
            word: &word,
            slot: place,
            budget,
            window_max,
        };
        if is_hit {
            if let Some(window) = policy.hit(&fault, &memory, true) {
                check(&fault, &window);
                assert!(window.len <= budget && (window.order == Order::Recalled || !window.holds(page)));
            }
            continue;
        }
        let window = policy.miss(&fault, &memory);
        check(&fault, &window);
        let is_there = match window.order {
            Order::Virtual => window.holds(page),
            Order::Device => window.holds(slot.slot),
            Order::Recalled => window.places().any(|place| history.page(place) == Some(page)),
        };
        assert!(is_there, "{window:?} {fault:?}");
    }
}
