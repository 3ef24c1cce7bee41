//! What a child that borrows this memory (vfork, clone with CLONE_VM) has a thread of the memory's own process do for it.
//!
//! Such a child is a process of its own: it can be killed, or stopped, alone and at any instruction, and its parent goes on in the same
//! memory. What it had of the engine's (a place in the gate, the lock of a page's word, a work area, a pin) would be taken for
//! good. So it enters the engine nowhere. It writes what it wants into a place of the table here and sleeps until a bare thread
//! of its parent's process has done that, and the thread has what is pinned for the child's calls.
//!
//! A place names its child in a word of the kernel's robust list: when the child dies, or becomes another program, the kernel
//! itself marks the word ([`DIED`]), before a parent that waits in vfork goes on. The thread then lets go what it had pinned for
//! it. The other way round the reclaimer thread has such a word: when the process ends, a child that waits for it is told.
//!
//! While the process is dormant it has no such thread, and nothing is swapped: the child's calls on mappings are the kernel's alone.
//!
//! What can't be done for the child (fork, a mapping of a descriptor of its own where nothing lies) it does itself, in a place that says so
//! ([`Watched`]). If it dies there and somebody waits long for the gate or a lock then, the
//! process is stopped: nobody knows what it held, and how far it had come.
//!
//! # Safety
//! The pins of a place are used by the one thread that serves: the thread started here, or the reclaimer where there is no room for
//! one. Robust lists point to statics.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fault::{self, Outcome};
use crate::mem;
use crate::mm::{Mm, PAGE, mm, mode};
use crate::sys;
use crate::thread;
use crate::trap::{self, Pins};

/// Errands under way at a time, and calls that have something pinned. Who finds no place waits for one.
const PLACES: usize = 64;
/// FUTEX_OWNER_DIED: what the kernel leaves in the word of a dead one, without its number.
const DIED: u32 = 0x4000_0000;

/// What a place says of its child: nothing; that an errand waits, or is done; that the child is in the engine itself.
mod state {
    pub const IDLE: u32 = 0;
    pub const ASKED: u32 = 1;
    pub const DONE: u32 = 2;
    pub const HERE: u32 = 3;
}

/// Errands that are no system calls.
const FAULT: i64 = -1;
const PIN: i64 = -2;
const UNPIN: i64 = -3;
const KEEP: i64 = -4;
pub const ALLOCATE: i64 = -5;

/// How often is looked for children that died with something pinned, and one sleep of a child that waits, in microseconds.
const PERIOD_US: u64 = 20_000;
const NAP_US: u64 = 10_000;
/// For so many naps a child waits for a place, or for a process that has no reclaimer thread to start one.
const PATIENCE: u32 = 1000;
/// How long somebody waits for the gate or a lock before a dead child is to blame.
const LONG_NS: u64 = 1_000_000_000;

/// Children that may borrow this memory now, made by libc's vfork and clone: as long as there are none nobody asks the kernel who
/// it is. A thread that calls vfork counts itself, and is there to end that: it dies with its process alone.
pub static LENT: AtomicU32 = AtomicU32::new(0);

/// A child by clone: counted until this is dropped, and always if it does not make its parent wait.
pub struct Lent {
    ends: bool,
}

impl Lent {
    #[must_use]
    pub fn begin(ends: bool) -> Lent {
        LENT.fetch_add(1, Ordering::SeqCst);
        Lent { ends }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LENT.fetch_sub(u32::from(self.ends), Ordering::SeqCst);
    }
}

/// Who has each place: a thread's number; 0: nobody. Apart from the rest, to be looked through quickly.
static OWNERS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
static TABLE: [Place; PLACES] = [const { Place::new() }; PLACES];
/// Changes with each errand.
static BELL: AtomicU32 = AtomicU32::new(0);
/// 1 once a child asked.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// 1 once the thread that serves was started, then its number.
static SERVED: AtomicU32 = AtomicU32::new(0);
/// The reclaimer thread's number, marked when the process ends.
static KEEPER: AtomicU32 = AtomicU32::new(0);
static KEEPER_HEAD: Head = Head::new();

/// struct robust_list_head: an empty list, and one word beside it.
struct Head([AtomicU64; 3]);

impl Head {
    const fn new() -> Head {
        Head([const { AtomicU64::new(0) }; 3])
    }

    /// The kernel marks `word` when this thread ends, if it has this thread's number then. (Where it can't, what is pinned
    /// for a child that is killed stays.)
    fn register(&'static self, word: &'static AtomicU32) {
        let [next, offset, pending] = &self.0;
        next.store(self.0.as_ptr() as u64, Ordering::Relaxed);
        offset.store(0, Ordering::Relaxed);
        pending.store(word.as_ptr() as u64, Ordering::Relaxed);
        set_robust_list(self.0.as_ptr() as u64);
    }
}

/// The list that this thread has, if any.
pub fn robust_list() -> u64 {
    let (mut head, mut size) = (0u64, 0u64);
    let to = (&raw mut head as u64, &raw mut size as u64);
    // SAFETY: both are ours.
    unsafe { sys::raw(libc::SYS_get_robust_list, [0, to.0, to.1, 0, 0, 0]) };
    head
}

fn set_robust_list(head: u64) {
    let size = size_of::<Head>() as u64;
    // SAFETY: a list of the kernel's layout in a static, or the one that was set before.
    unsafe { sys::raw(libc::SYS_set_robust_list, [head, size, 0, 0, 0, 0]) };
}

struct Place {
    state: AtomicU32,
    /// Number and arguments; the result.
    errand: [AtomicU64; 7],
    result: AtomicU64,
    head: Head,
    pins: UnsafeCell<Pins>,
}

// SAFETY: see the file's note on pins; the rest are atomics.
unsafe impl Sync for Place {}

impl Place {
    const fn new() -> Place {
        Place {
            state: AtomicU32::new(state::IDLE),
            errand: [const { AtomicU64::new(0) }; 7],
            result: AtomicU64::new(0),
            head: Head::new(),
            pins: UnsafeCell::new(Pins::new()),
        }
    }
}

/// A place of the table in the hands of the child that calls. Dropped without [`Errand::unpin`] it leaves its pins for good.
pub struct Errand {
    place: usize,
    pinned: bool,
    own: u32,
    /// The robust list to go back to: that of an errand which a handler interrupted, or one of the program's.
    outer: u64,
}

impl Errand {
    fn begin(mm: &Mm) -> Errand {
        let (own, outer) = (sys::gettid() as u32, robust_list());
        for _ in 0..PATIENCE {
            let free = |place: &usize| {
                let owner = &OWNERS[*place];
                // Named in the list before it is taken, so that there is no moment at which a death goes unseen.
                owner.load(Ordering::Relaxed) == 0 && {
                    TABLE[*place].head.register(owner);
                    owner
                        .compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                }
            };
            if let Some(place) = (0..PLACES).find(free) {
                return Errand {
                    place,
                    pinned: false,
                    own,
                    outer,
                };
            }
            // Those of dead children come back.
            ring(mm);
            sys::futex_wait(&BELL, BELL.load(Ordering::Relaxed), false, NAP_US);
        }
        sys::die(&[
            "farpage: more than 64 children that borrow the memory of one process (vfork) are in calls on it; ",
            "one was stopped",
        ])
    }

    /// Has an errand done, and waits for that.
    fn ask(&self, mm: &Mm, nr: i64, args: [u64; 6]) -> i64 {
        let place = &TABLE[self.place];
        for (word, value) in place.errand.iter().zip([nr as u64].into_iter().chain(args)) {
            word.store(value, Ordering::Relaxed);
        }
        place.state.store(state::ASKED, Ordering::SeqCst);
        ring(mm);
        let mut unheard = 0;
        while place.state.load(Ordering::Acquire) != state::DONE {
            sys::futex_wait(&place.state, state::ASKED, false, NAP_US);
            end_if_orphan(mm);
            unheard += u32::from(mm.reclaimer.load(Ordering::Relaxed) == 0);
            if unheard > PATIENCE {
                sys::die(&[
                    "farpage: a process could not start a thread, so nobody brings in what its child (vfork) asks for; ",
                    "the child was stopped",
                ]);
            }
        }
        place.state.store(state::IDLE, Ordering::Relaxed);
        place.result.load(Ordering::Relaxed) as i64
    }

    /// For the pins of one call: those of a child are the serving thread's. `None`: the caller borrows nothing.
    pub fn for_pins(mm: &Mm) -> Option<Errand> {
        (mm.is_active() && mm.is_lent()).then(|| blocked(|| Errand::begin(mm)))
    }

    /// Has pages pinned; true if all are.
    pub fn pin(&mut self, mm: &Mm, start: u64, len: u64) -> bool {
        self.pinned = true;
        blocked(|| self.ask(mm, PIN, [start, len, 0, 0, 0, 0])) != 0
    }

    /// Has them let go again.
    pub fn unpin(mut self, mm: &Mm) {
        self.pinned = false;
        blocked(|| self.ask(mm, UNPIN, [0; 6]));
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        if self.pinned {
            blocked(|| self.ask(mm(), KEEP, [0; 6]));
        }
        TABLE[self.place].state.store(state::IDLE, Ordering::Relaxed);
        OWNERS[self.place].store(0, Ordering::Release);
        // A child that it has forked meanwhile got a list from libc.
        if sys::gettid() as u32 == self.own {
            set_robust_list(self.outer);
        }
    }
}

/// A child's stay in the engine itself. Dropped where it ends.
pub struct Watched(Errand);

impl Drop for Watched {
    fn drop(&mut self) {
        TABLE[self.0.place].state.store(state::IDLE, Ordering::Release);
    }
}

/// Ends a child whose parent's process has ended.
pub fn end_orphan() -> ! {
    sys::die(&[
        "farpage: the process whose memory a child borrowed (vfork) has ended, and what it had swapped out with it; ",
        "the child was stopped",
    ])
}

/// Ends the caller if it borrows the memory of an active process that has ended: page states that it has read before are right
/// if it comes back from here, since nobody cleans up after a process before its reclaimer thread has ended. (After an exec the
/// entry may be the same process's again; that its reclaimer has ended stays true.)
pub fn end_if_orphan(mm: &Mm) {
    let has_ended = || KEEPER.load(Ordering::Acquire) & DIED != 0 || !mm.has_entry_still();
    if mm.is_active() && mm.is_lent() && has_ended() {
        end_orphan();
    }
}

/// For what a child has to do itself; `None`: the caller borrows nothing.
#[must_use]
pub fn watched(mm: &Mm) -> Option<Watched> {
    borrows(mm).then(|| {
        end_if_orphan(mm);
        let errand = blocked(|| Errand::begin(mm));
        TABLE[errand.place].state.store(state::HERE, Ordering::SeqCst);
        Watched(errand)
    })
}

/// A system call on mappings by a child that borrows this memory: its result. Otherwise the caller does it, and is watched
/// until it drops what is in the error.
///
/// What is mapped in a dormant process is read from the kernel when it becomes active, so the map of the managed range may say
/// too much by then: room that the child has unmapped is not used again.
pub fn call(mm: &Mm, nr: i64, args: [u64; 6]) -> Result<i64, Option<Watched>> {
    if !borrows(mm) {
        return Err(None);
    }
    if !mm.is_active() {
        return Ok(match nr {
            ALLOCATE => unmanaged(args[0], args[1] as i32, args[2]),
            libc::SYS_mmap => mem::Map::from_args(args).kernel_anywhere(),
            // SAFETY: the program's own request.
            _ => unsafe { sys::raw(nr, args) },
        });
    }
    let of_file = nr == libc::SYS_mmap && args[3] & libc::MAP_ANONYMOUS as u64 == 0;
    if !of_file {
        return Ok(ask(mm, nr, args));
    }
    let request = mem::Map::from_args(args);
    if request.replaces() {
        return Ok(replace(mm, request));
    }
    Err(watched(mm))
}

/// A descriptor of the child's own is mapped in place of managed memory: elsewhere by the child, and from there it is moved by its parent's
/// process, in whose page states the child changes nothing. (Between a look whether that lives and the change it could end, and its entry
/// be another's.)
fn replace(mm: &Mm, request: mem::Map) -> i64 {
    let from = mem::Map {
        addr: 0,
        flags: request.flags & !libc::MAP_FIXED,
        ..request
    }
    .kernel_anywhere();
    if from < 0 {
        return from;
    }
    let (from, len) = (from as u64, request.len);
    let how = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let moved = ask(mm, libc::SYS_mremap, [from, len, len, how, request.addr, 0]);
    if moved < 0 {
        // SAFETY: mapped above, and nobody was told.
        let _ = unsafe { sys::munmap(from, mem::round_up(len)) };
    }
    moved
}

/// Memory of the kernel's choice: `len` bytes at a multiple of `align`, or `-errno`.
fn unmanaged(len: u64, prot: i32, align: u64) -> i64 {
    let (len, align) = (mem::round_up(len), align.max(PAGE));
    // SAFETY: fresh memory; what lies before and behind is nobody's.
    unsafe {
        let start = match sys::mmap(0, len + align, prot, sys::MAP_MANAGED, -1, 0) {
            Ok(start) => start,
            Err(errno) => return -i64::from(errno.0),
        };
        let at = start.next_multiple_of(align);
        let _ = sys::munmap(at + len, start + align - at);
        if at > start {
            let _ = sys::munmap(start, at - start);
        }
        at as i64
    }
}

/// Brings the page at an address in for a child that borrows this memory; `None`: the caller borrows nothing.
#[inline]
pub fn fault(mm: &Mm, addr: u64) -> Option<Outcome> {
    (mm.is_active() && mm.is_lent()).then(|| match ask(mm, FAULT, [addr, 0, 0, 0, 0, 0]) {
        0 => Outcome::Done,
        _ => Outcome::NotManaged,
    })
}

/// Whether the caller borrows memory that farpage has to do with.
fn borrows(mm: &Mm) -> bool {
    mm.mode.load(Ordering::Acquire) != mode::OFF && mm.is_lent()
}

fn ask(mm: &Mm, nr: i64, args: [u64; 6]) -> i64 {
    blocked(|| Errand::begin(mm).ask(mm, nr, args))
}

fn blocked<R>(work: impl FnOnce() -> R) -> R {
    let mask = sys::block_signals();
    let result = work();
    sys::set_mask(mask);
    result
}

fn ring(mm: &Mm) {
    BELL.fetch_add(1, Ordering::SeqCst);
    if SERVED.load(Ordering::SeqCst) == 0 {
        WANTED.store(1, Ordering::SeqCst);
        mm.header().ask_to_reclaim();
    }
    sys::futex_wake(&BELL, 1, false);
}

/// In the reclaimer thread, as it starts: its word tells of the end of the process.
pub fn keep() {
    KEEPER.store(sys::gettid() as u32, Ordering::SeqCst);
    KEEPER_HEAD.register(&KEEPER);
}

/// In the reclaimer thread: starts the thread that serves once a child has asked. Without one it serves itself.
pub fn start_wanted(mm: &Mm) {
    if WANTED.load(Ordering::SeqCst) == 0 || SERVED.swap(1, Ordering::SeqCst) != 0 {
        return;
    }
    if thread::spawn(serve_main).is_err() {
        SERVED.store(0, Ordering::SeqCst);
        serve_all(mm);
    }
}

extern "C" fn serve_main() -> ! {
    let mm = mm();
    SERVED.store(sys::gettid() as u32, Ordering::SeqCst);
    loop {
        let bell = BELL.load(Ordering::SeqCst);
        let period = if serve_all(mm) { PERIOD_US } else { 0 };
        sys::futex_wait(&BELL, bell, false, period);
    }
}

/// Does what is asked, and lets go what the dead had pinned; whether any place is taken.
fn serve_all(mm: &Mm) -> bool {
    let mut taken = false;
    for (place, owner) in TABLE.iter().zip(&OWNERS) {
        let now = owner.load(Ordering::Acquire);
        taken |= now != 0;
        if now & DIED != 0 {
            bury(mm, place, owner);
        } else if now != 0 && place.state.load(Ordering::Acquire) == state::ASKED {
            let result = serve(mm, place);
            place.result.store(result as u64, Ordering::Relaxed);
            place.state.store(state::DONE, Ordering::Release);
            sys::futex_wake(&place.state, 1, false);
        }
    }
    taken
}

/// Lets go what is pinned for a dead child, and frees its place. What it held of the engine itself is nobody's to give back.
fn bury(mm: &Mm, place: &Place, owner: &AtomicU32) {
    if place.state.load(Ordering::Acquire) == state::HERE {
        return;
    }
    // SAFETY: the thread that serves, and not for this place.
    let pins = unsafe { &mut *place.pins.get() };
    pins.release(mm);
    *pins = Pins::new();
    place.state.store(state::IDLE, Ordering::Relaxed);
    owner.store(0, Ordering::Release);
}

fn serve(mm: &Mm, place: &Place) -> i64 {
    let word = |at: usize| place.errand[at].load(Ordering::Relaxed);
    let (nr, args) = (word(0) as i64, [1, 2, 3, 4, 5, 6].map(word));
    // SAFETY: the thread that serves.
    let pins = unsafe { &mut *place.pins.get() };
    match nr {
        FAULT => i64::from(fault::at_address(mm, args[0], None) != Outcome::Done),
        PIN => {
            pins.add(mm, args[0], args[1]);
            i64::from(pins.has(args[0], args[1]))
        }
        UNPIN => {
            pins.release(mm);
            *pins = Pins::new();
            0
        }
        KEEP => {
            *pins = Pins::new();
            0
        }
        ALLOCATE => match mem::allocate(args[0], args[1] as i32, args[2]) {
            Ok(addr) => addr as i64,
            Err(errno) => -i64::from(errno.0),
        },
        _ => trap::memory_call(nr, args),
    }
}

/// Before pins of calls that have ended are held against somebody: those of children that died are let go.
pub fn settle(mm: &Mm) {
    let places = TABLE.iter().zip(&OWNERS);
    let dead = places.filter(|(place, owner)| {
        let is_dead = owner.load(Ordering::Acquire) & DIED != 0;
        is_dead && place.state.load(Ordering::Acquire) != state::HERE
    });
    let served = SERVED.load(Ordering::Relaxed);
    if served == 0 || dead.clone().next().is_none() {
        return;
    }
    if served == sys::gettid() as u32 {
        return dead.for_each(|(place, owner)| bury(mm, place, owner));
    }
    for _ in 0..PATIENCE {
        if dead.clone().next().is_none() {
            return;
        }
        ring(mm);
        sys::futex_wait(&AtomicU32::new(0), 0, false, 100);
    }
}

/// Stops the process if a child died in the engine and somebody waits for the gate or a lock for long: what the child held is not to be had any
/// more. `since` is 0 before the first call of one wait, and kept by the caller until it ends.
pub fn blame(since: &mut u64) {
    let now = sys::now_ns();
    if *since == 0 {
        *since = now;
    }
    let is_lost = |place: &usize| {
        OWNERS[*place].load(Ordering::Acquire) & DIED != 0
            && TABLE[*place].state.load(Ordering::Acquire) == state::HERE
    };
    if now - *since > LONG_NS && (0..PLACES).any(|place| is_lost(&place)) {
        sys::die(&[
            "farpage: a child that borrowed this process's memory (vfork) was killed in the middle of a change of it; ",
            "the program was stopped so that it does not wait for ever",
        ]);
    }
}

/// In a forked child, which has none of the children of its parent's, nor its threads.
pub fn forget() {
    for (place, owner) in TABLE.iter().zip(&OWNERS) {
        if owner.swap(0, Ordering::Relaxed) != 0 || place.state.load(Ordering::Relaxed) != state::IDLE {
            place.state.store(state::IDLE, Ordering::Relaxed);
            // SAFETY: no thread serves yet, and the one that did is not here.
            unsafe { *place.pins.get() = Pins::new() };
        }
    }
    for word in [&LENT, &WANTED, &SERVED, &KEEPER] {
        word.store(0, Ordering::SeqCst);
    }
}
