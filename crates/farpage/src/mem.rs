//! mmap, munmap, mprotect, madvise and their kin on managed memory, with the kernel's own meaning.
//!
//! The kernel's mappings stay real: each function lets the kernel do the call and keeps page states and registration in
//! step. What changes mappings or drops content holds the gate alone, so no fault or eviction is under way meanwhile.
//! Functions return what the system call would: a value, or `-errno`.
//!
//! # Safety
//! Raw calls here act on ranges that the program itself asked to change.
#![allow(unsafe_code)]

pub mod closed;

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::range_map::Range;

use crate::commit::{commit, grow, room_for};
use crate::cow;
use crate::errand;
use crate::gate::Alone;
use crate::heirs;
use crate::hints;
use crate::huge_advice;
use crate::in_flight;
use crate::maps;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, TOUCHED, address, mm, mode, page_of};
use crate::pool::{MANAGED_BASE, MANAGED_LEN, MANAGED_PAGES};
use crate::puts;
use crate::reclaim;
use crate::residency;
use crate::sentinel;
use crate::sys::{self, Errno};

pub use crate::advice::{madvise, prefetch};
pub use crate::residency::{are_lock_flags, mincore, mlock};

/// Smaller anonymous mappings stay with the kernel: they are thread-local arenas, guard pages and the like.
const MANAGE_MIN: u64 = 128 << 10;
/// Mappings larger than this are address-space reservations that may exceed the managed range; left to the kernel. (.NET reserves 256 GiB
/// and 4 KiB, or twice the RAM if that is more.)
const MANAGE_MAX: u64 = MANAGED_LEN / 4 + (1 << 30);
const RESERVE_MAX: u64 = MANAGED_LEN / 2;
/// Where the programs of the Glasgow Haskell compiler ask for the addresses of their heap, 1 TiB at first. Refused, they ask for an eighth
/// less, again and again; so they do where addresses are limited.
const GHC_HEAP: core::ops::Range<u64> = 0x42_0000_0000..0x42_0010_0000;
/// So large a mapping (pages) that nobody may touch yet is address space, a WebAssembly memory's 8 GiB for example; those together leave
/// the last quarter of the managed range to others: hundreds of them had left malloc nothing.
const ROOMY: u64 = (4 << 30) / PAGE;
const BELOW_ROOMY: u64 = MANAGED_PAGES / 4 * 3;
/// A hint below 4 GiB for a small mapping is a wish for 32-bit pointers (JIT compilers).
const LOW_HINT: u64 = 4 << 30;
const LOW_HINT_MAX: u64 = 64 << 20;
pub const ENOMEM: i64 = -(libc::ENOMEM as i64);
pub const EINVAL: i64 = -(libc::EINVAL as i64);

/// Arguments of mmap.
#[derive(Clone, Copy)]
pub struct Map {
    pub addr: u64,
    pub len: u64,
    pub prot: i32,
    pub flags: i32,
    pub fd: i32,
    pub offset: u64,
}

impl Map {
    pub fn from_args([addr, len, prot, flags, fd, offset]: [u64; 6]) -> Map {
        Map {
            addr,
            len,
            prot: prot as i32,
            flags: flags as i32,
            fd: fd as i32,
            offset,
        }
    }

    fn is_fixed(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
    }

    /// Whether it takes the place of what lies there.
    pub fn replaces(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
    }

    /// Memory that can be managed wherever it lies: private, anonymous, without special demands.
    fn is_plain(&self) -> bool {
        const SPECIAL: i32 =
            libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_32BIT;
        let private = self.flags & (libc::MAP_PRIVATE | libc::MAP_SHARED) == libc::MAP_PRIVATE;
        private && self.flags & libc::MAP_ANONYMOUS != 0 && self.flags & SPECIAL == 0
    }

    fn is_eligible(&self) -> bool {
        let low = self.addr != 0 && self.addr < LOW_HINT && self.len < LOW_HINT_MAX;
        let most = if self.prot == libc::PROT_NONE {
            RESERVE_MAX
        } else {
            MANAGE_MAX
        };
        let size = (MANAGE_MIN..=most).contains(&self.len);
        let is_aligned = self.offset.is_multiple_of(PAGE);
        self.is_plain() && !self.is_fixed() && size && !low && is_aligned && self.prot & libc::PROT_EXEC == 0
    }

    /// Whether who asks for so much will ask for less, which can be managed.
    fn is_too_large_a_try(&self) -> bool {
        let reserves = self.prot == libc::PROT_NONE && self.flags & libc::MAP_NORESERVE != 0;
        self.len > MANAGE_MAX && reserves && !self.is_fixed() && GHC_HEAP.contains(&self.addr)
    }

    fn args(&self) -> [u64; 6] {
        [
            self.addr,
            self.len,
            self.prot as u64,
            self.flags as u64,
            self.fd as i64 as u64,
            self.offset,
        ]
    }

    fn kernel(&self) -> i64 {
        // SAFETY: the program's own request.
        unsafe { sys::raw(libc::SYS_mmap, self.args()) }
    }

    /// Where the kernel likes, but for an order. It would honour a hint, and what lies in the managed range must be in our map.
    pub fn kernel_anywhere(&self) -> i64 {
        let is_hint = managed_pages(self.addr, self.len).is_some() && !self.is_fixed();
        let addr = if is_hint { 0 } else { self.addr };
        Map { addr, ..*self }.kernel()
    }
}

/// In bytes, to whole pages.
pub const fn round_up(len: u64) -> u64 {
    len.div_ceil(PAGE) * PAGE
}

/// The part of a range that lies in the managed range, as pages; `None` if there is none.
pub fn managed_pages(addr: u64, len: u64) -> Option<(u64, u64)> {
    let end = addr.checked_add(round_up(len))?;
    let (lo, hi) = (addr.max(MANAGED_BASE), end.min(MANAGED_BASE + MANAGED_LEN));
    (lo < hi).then(|| (page_of(lo), (hi - MANAGED_BASE).div_ceil(PAGE)))
}

pub fn mmap(request: Map) -> i64 {
    let mm = mm();
    if mm.mode.load(Ordering::Acquire) == mode::OFF {
        return request.kernel();
    }
    if request.is_too_large_a_try() {
        return ENOMEM;
    }
    let place = managed_pages(request.addr, request.len);
    let hinted = request.prot == libc::PROT_NONE && request.addr != 0;
    let is_ours = request.is_eligible() && !(hinted && hints::are_meant());
    if place.is_none() && !is_ours {
        return request.kernel();
    }
    let _watched = match errand::call(mm, libc::SYS_mmap, request.args()) {
        Ok(result) => return result,
        Err(watched) => watched,
    };
    match place {
        Some(range) if request.is_fixed() => return map_fixed(mm, request, range),
        Some(range) if !is_ours => return map_near(mm, request, range),
        _ => {}
    }
    let growth = if request.prot & libc::PROT_WRITE != 0 {
        round_up(request.len)
    } else {
        0
    };
    if growth > 0 {
        grow(mm, growth);
        if request.flags & libc::MAP_NORESERVE == 0 && !room_for(mm, growth) {
            commit(mm, -(growth as i64));
            return ENOMEM;
        }
    }
    match allocate(request.len, request.prot, PAGE) {
        Ok(addr) => {
            if hinted && addr != request.addr {
                hints::went_elsewhere(addr, request.len);
            }
            addr as i64
        }
        Err(_) => {
            commit(mm, -(growth as i64));
            request.kernel_anywhere()
        }
    }
}

/// Finds room in the managed range and maps it there with `prot`, registered if the process is active. Writable memory is counted by who
/// asks for it. `align` is in bytes, a multiple of the page size; what could hold a huge page is aligned to one in any case.
pub fn allocate(len: u64, prot: i32, align: u64) -> Result<u64, Errno> {
    let mm = mm();
    let _watched = match errand::call(mm, errand::ALLOCATE, [len, prot as u64, align, 0, 0, 0]) {
        Ok(result) => return sys::check(result),
        Err(watched) => watched,
    };
    let pages = round_up(len) / PAGE;
    let align = (align / PAGE).max(if pages >= CHUNK_PAGES { CHUNK_PAGES } else { 1 });
    // The gate keeps activation (which registers all that is mapped) and fork out until both maps and kernel agree.
    let mask = sys::block_signals();
    let result = {
        let _inside = mm.gate.shared();
        map_anywhere(mm, pages, align, prot)
    };
    sys::set_mask(mask);
    result
}

fn map_anywhere(mm: &Mm, pages: u64, align: u64, prot: i32) -> Result<u64, Errno> {
    const TRIES: u32 = 8;
    let mut result = Err(Errno(libc::ENOMEM));
    let below = if prot == libc::PROT_NONE && pages >= ROOMY {
        BELOW_ROOMY
    } else {
        MANAGED_PAGES
    };
    for _ in 0..TRIES {
        let page = reserve(mm, below, pages, align)?;
        if prot & libc::PROT_WRITE == 0 {
            // What finds no room among what is closed is open in the books from now on.
            count(mm, pages as i64 - closed::close(mm, page, page + pages));
        }
        result = map_at(mm, page, pages, prot);
        if result != Err(Errno(libc::EEXIST)) {
            break;
        }
        learn(mm, page, page + pages);
    }
    result
}

/// Puts what the kernel has mapped of pages `lo..hi` in our map: a child that borrowed this memory while it was dormant may have
/// mapped there. The caller is in the gate, so that nothing of it is unmapped meanwhile.
fn learn(mm: &Mm, lo: u64, hi: u64) {
    // If the list cannot be read the next try finds the same place taken, and the last one fails.
    let _ = maps::each_mapping(|mapping| {
        let (from, to) = (mapping.start.max(address(lo)), mapping.end.min(address(hi)));
        if from < to {
            note_foreign(mm, page_of(from), page_of(to));
        }
        Ok(())
    });
}

/// Puts pages `lo..hi` in our map, where something else may lie than managed memory.
pub fn note_foreign(mm: &Mm, lo: u64, hi: u64) {
    mm.foreign.store(1, Ordering::Relaxed);
    note_mapped(mm, lo, hi);
}

/// Puts pages `lo..hi` in our map, none of which counts yet.
pub fn note_mapped(mm: &Mm, lo: u64, hi: u64) {
    count(mm, -closed::close(mm, lo, hi));
    mm.top_page.fetch_max(hi, Ordering::Relaxed);
}

/// Counts so many pages more, or fewer. (malloc counts by itself what it uses of its memory, which leaves as a whole.)
fn count(mm: &Mm, pages: i64) {
    let committed = mm
        .entry_opt()
        .map(|entry| entry.committed.load(Ordering::Relaxed));
    let most = committed.map_or(i64::MIN, |bytes| -bytes.max(0));
    if pages != 0 {
        commit(mm, (pages * PAGE as i64).max(most));
    }
}

/// A free place for so many pages in the managed range, below page `below` of it, taken in the map; the first page.
pub fn reserve(mm: &Mm, below: u64, pages: u64, align: u64) -> Result<u64, Errno> {
    let mut maps = mm.maps.lock();
    let maps = maps.as_mut().ok_or(Errno(libc::ENOMEM))?;
    let page = maps.find_gap(0, below, pages, align).ok_or(Errno(libc::ENOMEM))?;
    maps.insert(page, page + pages).map_err(|_| Errno(libc::ENOMEM))?;
    mm.top_page.fetch_max(page + pages, Ordering::Relaxed);
    Ok(page)
}

fn map_at(mm: &Mm, page: u64, pages: u64, prot: i32) -> Result<u64, Errno> {
    let (addr, len) = (address(page), pages * PAGE);
    // SAFETY: the range was free in our map of the managed range, where nobody else maps; NOREPLACE makes sure.
    let mapped = unsafe {
        sys::mmap(
            addr,
            len,
            prot,
            sys::MAP_MANAGED | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    let result = mapped.and_then(|addr| {
        if mm.is_active() {
            mm.register(addr, len).map(|()| addr)
        } else {
            Ok(addr)
        }
    });
    if result.is_err() {
        if mapped.is_ok() {
            // SAFETY: mapped just now, not yet handed out.
            let _ = unsafe { sys::munmap(addr, len) };
        }
        forget(mm, page, page + pages);
    }
    result
}

/// Takes pages `lo..hi` off the map of what is mapped.
pub fn forget(mm: &Mm, lo: u64, hi: u64) {
    closed::leave(mm, lo, hi);
}

/// How many of pages `lo..hi` hold nothing yet.
fn untouched(mm: &Mm, lo: u64, hi: u64) -> u64 {
    let mut left = hi - lo;
    each_touched(mm, lo, hi, |from, to| {
        let holds = |page: &u64| mm.load(*page).kind() != Kind::Untouched;
        left -= (from..to).filter(holds).count() as u64;
    });
    left
}

/// Calls `f` with the part of each chunk of pages `lo..hi` of which anything was ever touched. The states of other chunks have
/// no memory, and would get some by being read.
pub fn each_touched(mm: &Mm, lo: u64, hi: u64, mut f: impl FnMut(u64, u64)) {
    let mut page = lo;
    while page < hi {
        let end = ((page / CHUNK_PAGES + 1) * CHUNK_PAGES).min(hi);
        if mm.chunk(page).load(Ordering::Relaxed) & (TOUCHED | RESIDENT_MASK) != 0 {
            f(page, end);
        }
        page = end;
    }
}

/// Whether there is room for a mapping in place of pages `lo..hi`, whose content goes.
fn room_in_place(mm: &Mm, lo: u64, hi: u64) -> bool {
    room_for(mm, (hi - lo) * PAGE) || room_for(mm, untouched(mm, lo, hi) * PAGE)
}

/// Counts what can be written of pages `lo..hi` from now on and did not count before: a heap that was reserved with PROT_NONE is committed
/// so. How many pages that is; `None` if there is no room for what becomes accessible of them.
fn count_ahead(mm: &Mm, lo: u64, hi: u64) -> Option<u64> {
    let ahead = closed::uncounted(mm, lo, hi);
    if ahead == 0 {
        return Some(0);
    }
    grow(mm, ahead * PAGE);
    if room_for(mm, ahead * PAGE) || room_to_open(mm, lo, hi) {
        return Some(ahead);
    }
    count(mm, -(ahead as i64));
    None
}

fn room_to_open(mm: &Mm, lo: u64, hi: u64) -> bool {
    let mut opened = 0;
    let listed = maps::each_mapping(|mapping| {
        let (from, to) = (mapping.start.max(address(lo)), mapping.end.min(address(hi)));
        if mapping.is_inaccessible() && from < to {
            opened += untouched(mm, page_of(from), page_of(to));
        }
        Ok(())
    });
    listed.is_err() || room_for(mm, opened * PAGE)
}

/// MAP_FIXED over or beside managed memory: the kernel maps what was asked for, and old content goes. In this order: a call that
/// the kernel refuses leaves what was there.
fn map_fixed(mm: &Mm, request: Map, (lo, hi): (u64, u64)) -> i64 {
    let grows = request.prot & libc::PROT_WRITE != 0 && request.is_plain();
    let ahead = if grows { closed::uncounted(mm, lo, hi) } else { 0 };
    if ahead > 0 {
        grow(mm, ahead * PAGE);
    }
    if grows && request.flags & libc::MAP_NORESERVE == 0 && !room_in_place(mm, lo, hi) {
        count(mm, -(ahead as i64));
        return ENOMEM;
    }
    let alone = mm.gate.alone();
    let mut request = request;
    if request.is_plain() {
        request.flags |= libc::MAP_NORESERVE;
        request.flags &= !libc::MAP_POPULATE;
    }
    let result = request.kernel();
    if result < 0 {
        count(mm, -(ahead as i64));
        return result;
    }
    // Where nothing was replaced, too: of a forked child's gaps (MADV_DONTFORK) the books know still.
    discard_mapping(mm, lo, hi, &alone);
    let more = if grows {
        closed::open(mm, lo, hi) as i64
    } else {
        -closed::close(mm, lo, hi)
    };
    count(mm, more - ahead as i64);
    mm.top_page.fetch_max(hi, Ordering::Relaxed);
    if !request.is_plain() {
        mm.foreign.store(1, Ordering::Relaxed);
    } else if mm.is_active() && !register(mm, lo, hi) {
        return ENOMEM;
    }
    drop(alone);
    result
}

/// What is not for us, with a hint for pages `lo..hi`: there, if nothing else is. (Guile's collector wants its heap in one piece, and a
/// compiler its code near the data.) A hint is no order: what must not lie among ours goes where the kernel likes.
fn map_near(mm: &Mm, request: Map, (lo, hi): (u64, u64)) -> i64 {
    const ELSEWHERE: i32 = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_32BIT;
    let is_inside = hi - lo == round_up(request.len) / PAGE;
    if is_inside && request.flags & ELSEWHERE == 0 {
        let flags = request.flags | libc::MAP_FIXED_NOREPLACE;
        let result = map_fixed(mm, Map { flags, ..request }, (lo, hi));
        if result >= 0 {
            return result;
        }
    }
    request.kernel_anywhere()
}

/// Registers mapped pages `lo..hi` with userfaultfd; false if the kernel refuses.
pub fn register(mm: &Mm, lo: u64, hi: u64) -> bool {
    mm.register(address(lo), (hi - lo) * PAGE).is_ok()
}

/// In a forked child, alone as it starts: pages it does not inherit.
pub fn forget_content(mm: &Mm, lo: u64, hi: u64) {
    drop_states(mm, lo, hi, true);
}

/// Forgets the content of pages `lo..hi`: slots, frames and counts. The caller lets the kernel drop the memory.
pub fn discard(mm: &Mm, lo: u64, hi: u64, _alone: &Alone) {
    if mm.is_active() {
        drop_states(mm, lo, hi, false);
    }
}

/// As [`discard`], for pages that are unmapped: pins (locks, pages kept for good) go with the mapping.
pub fn discard_mapping(mm: &Mm, lo: u64, hi: u64, _alone: &Alone) {
    huge_advice::forget(lo, hi);
    in_flight::unmapped(mm, lo, hi);
    // While dormant the kernel keeps both, and a fork would leave their locks held in the child.
    if mm.is_active() {
        heirs::forget(lo, hi);
        residency::LOCKED.forget(lo, hi);
        drop_states(mm, lo, hi, true);
    }
}

fn drop_states(mm: &Mm, lo: u64, hi: u64, pins_too: bool) {
    each_touched(mm, lo, hi, |from, to| discard_in_chunk(mm, from, to, pins_too));
}

fn discard_in_chunk(mm: &Mm, lo: u64, hi: u64, pins_too: bool) {
    cow::lift_range(mm, lo, hi);
    let (mut resident, mut poor, mut kept) = (0, 0, 0);
    let mut pinned = false;
    // All words of one page of page states, which goes back if nothing is left in it: locked until then, or a pin that comes
    // meanwhile would go with it.
    let whole = hi - lo == CHUNK_PAGES;
    let (mut slots, mut count) = ([0u32; CHUNK_PAGES as usize], 0);
    // The words are changed here: see puts::leave.
    let step = mm.entry().puts.begin();
    for page in lo..hi {
        let state = empty(mm.word(page), pins_too, whole);
        resident += i64::from(state.kind() == Kind::Resident);
        poor += i64::from(state.refused().is_some());
        if let Some(slot) = state.named_slot() {
            kept += i64::from(state.kept_slot().is_some());
            slots[count] = slot;
            count += 1;
        }
        pinned |= state.pins() != 0 && !pins_too;
    }
    kill_point!("discard-worded");
    puts::put_all(mm, &slots[..count]);
    drop(step);
    kill_point!("discard-put");
    mm.entry().kept.fetch_sub(kept, Ordering::Relaxed);
    reclaim::poor::forget(mm, poor);
    if resident > 0 {
        mm.count_resident(lo, -resident);
    }
    if !whole {
        return;
    }
    let words = mm.word(lo) as *const _ as u64;
    if !pinned {
        mm.chunk(lo).store(0, Ordering::Relaxed);
        // SAFETY: every word of that page is zero but for our lock, and reads as zero after.
        let given_back = unsafe { sys::madvise(words, CHUNK_PAGES * 8, libc::MADV_REMOVE) };
        if given_back.is_ok() {
            return;
        }
    }
    for page in lo..hi {
        let locked = mm.load(page);
        mm.unlock(page, locked, PageState::untouched());
    }
}

/// Makes a page untouched, and locks it if it is to be `locked`; its state before. Pins come and go outside of the gate.
fn empty(word: &AtomicU64, pins_too: bool, locked: bool) -> PageState {
    loop {
        let seen = PageState(word.load(Ordering::Relaxed));
        let kept = if pins_too {
            PageState::untouched()
        } else {
            seen.replace(PageState::untouched())
        };
        let then = if locked { kept.locked() } else { kept };
        if seen == then {
            return seen;
        }
        let changed = word.compare_exchange(seen.raw(), then.raw(), Ordering::AcqRel, Ordering::Relaxed);
        if changed.is_ok() {
            return seen;
        }
    }
}

pub fn munmap(addr: u64, len: u64) -> i64 {
    let mm = mm();
    let range = managed_pages(addr, len);
    let (Some((lo, hi)), false) = (range, mm.mode.load(Ordering::Acquire) == mode::OFF) else {
        // SAFETY: the program's own request.
        return unsafe { sys::raw(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) };
    };
    if !addr.is_multiple_of(PAGE) || len == 0 {
        return EINVAL;
    }
    let _watched = match errand::call(mm, libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) {
        Ok(result) => return result,
        Err(watched) => watched,
    };
    hints::unmapped(addr, len);
    let alone = mm.gate.alone();
    // SAFETY: the program's own request. First the kernel: if it refuses, nothing has changed.
    let result = unsafe { sys::raw(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) };
    if result == 0 {
        kill_point!("munmap-unmapped");
        discard_mapping(mm, lo, hi, &alone);
        note_unmapped(mm, lo, hi);
    }
    result
}

/// As [`forget`], where they may have counted.
pub fn note_unmapped(mm: &Mm, lo: u64, hi: u64) {
    count(mm, -(closed::leave(mm, lo, hi) as i64));
}

/// Puts what mremap has moved in our map; what is more of it at its end has been counted.
pub fn note_moved(mm: &Mm, from: Range, to: Range, replaces: bool, stays: bool) {
    let grown = to.pages() as i64 - from.pages() as i64;
    count(mm, closed::moved(mm, from, to, replaces, stays) - grown);
    mm.top_page.fetch_max(to.end, Ordering::Relaxed);
}

pub fn mprotect(addr: u64, len: u64, prot: i32, pkey: Option<i32>) -> i64 {
    let mm = mm();
    let nr = if pkey.is_some() {
        libc::SYS_pkey_mprotect
    } else {
        libc::SYS_mprotect
    };
    let args = [addr, len, prot as u64, pkey.unwrap_or(0) as i64 as u64, 0, 0];
    if pkey.is_some_and(|key| key > 0) {
        reclaim::note_keys();
    }
    let on = mm.mode.load(Ordering::Acquire) != mode::OFF;
    let managed = managed_pages(addr, len).filter(|_| on);
    let watched = managed.map(|_| errand::call(mm, nr, args));
    if let Some(Ok(result)) = watched {
        return result;
    }
    // SAFETY: the program's own request; page contents stay.
    let kernel = || unsafe { sys::raw(nr, args) };
    let Some((lo, hi)) = managed else {
        return kernel();
    };
    let opens = prot & libc::PROT_WRITE != 0;
    if !opens || len < MANAGE_MIN {
        if opens {
            sentinel::on_opening(mm, len);
        }
        return beside_faults(mm, kernel);
    }
    let Some(ahead) = count_ahead(mm, lo, hi) else {
        return ENOMEM;
    };
    let mut opened = 0;
    let result = beside_faults(mm, || {
        let result = kernel();
        // Before others may change what is mapped there.
        opened = match result {
            0 => note_open(mm, lo, hi, ahead),
            _ if ahead > 0 => open_in_part(mm, lo, hi, result).unwrap_or(ahead),
            _ => 0,
        };
        result
    });
    count(mm, opened as i64 - ahead as i64);
    result
}

/// Runs `f` in the gate, with signals blocked: alone where pages may be out.
fn beside_faults(mm: &Mm, mut f: impl FnMut() -> i64) -> i64 {
    if let Some(result) = mm.while_dormant(&mut f) {
        return result;
    }
    let _alone = mm.gate.alone();
    f()
}

/// Pages `lo..hi` can be written now, all of them; how many of them did not count before. `ahead` of them did not when that was looked up.
fn note_open(mm: &Mm, lo: u64, hi: u64, ahead: u64) -> u64 {
    if ahead > 0 && !are_mapped(mm, lo, hi) {
        // Nobody saw how they were mapped.
        mm.foreign.store(1, Ordering::Relaxed);
        mm.top_page.fetch_max(hi, Ordering::Relaxed);
    }
    closed::open(mm, lo, hi)
}

/// The same where the kernel has refused to open all of them, perhaps halfway. `None`: that can't be told.
fn open_in_part(mm: &Mm, lo: u64, hi: u64, refusal: i64) -> Option<u64> {
    if refusal == EINVAL {
        return Some(0);
    }
    let mut opened = 0;
    let listed = maps::each_mapping(|mapping| {
        let (from, to) = (mapping.start.max(address(lo)), mapping.end.min(address(hi)));
        if from < to && mapping.protection() & libc::PROT_WRITE != 0 {
            opened += note_open(mm, page_of(from), page_of(to), 1);
        }
        Ok(())
    });
    listed.ok().map(|()| opened)
}

/// Whether something is mapped at all of pages `lo..hi`.
#[must_use]
pub fn are_mapped(mm: &Mm, lo: u64, hi: u64) -> bool {
    let mask = sys::block_signals();
    let mapped = mm.maps.lock().as_ref().is_some_and(|maps| maps.covers(lo, hi));
    sys::set_mask(mask);
    mapped
}
