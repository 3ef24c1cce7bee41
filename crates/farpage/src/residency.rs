//! mlock and mincore on managed memory: what must be in RAM, and what is.

use core::sync::atomic::Ordering;

use farpage_core::page_state::Kind;

use crate::fault;
use crate::mem::{is_mapped, managed_pages};
use crate::mm::{PAGE, mm};
use crate::pool::is_managed;
use crate::sys;

const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

/// mlock: the pages are brought in and stay. munlock lets them go again.
pub fn mlock(addr: u64, len: u64, lock: bool) -> Option<i64> {
    let mm = mm();
    let start = addr / PAGE * PAGE;
    let (lo, hi) = managed_pages(start, len + (addr - start)).filter(|_| mm.is_active())?;
    if lock && (hi - lo) as i64 > mm.header().limit.load(Ordering::Relaxed) / 2 {
        return Some(ENOMEM);
    }
    if !(lo..hi).all(|page| is_mapped(mm, page)) {
        return Some(ENOMEM);
    }
    for page in lo..hi {
        if !lock {
            fault::unpin(mm, page);
        } else if mm.load(page).pins() == 0 && !fault::pin(mm, page) {
            return Some(ENOMEM);
        }
    }
    Some(0)
}

/// mincore as our page states see it; `out` receives one byte a page.
pub fn mincore(addr: u64, len: u64, out: &mut dyn FnMut(u64, u8)) -> Option<i64> {
    let mm = mm();
    let (lo, hi) = managed_pages(addr, len).filter(|_| mm.is_active() && is_managed(addr))?;
    if !addr.is_multiple_of(PAGE) {
        return Some(EINVAL);
    }
    let mask = sys::block_signals();
    let covered = {
        let _inside = mm.gate.shared();
        mm.maps.lock().as_ref().is_some_and(|maps| maps.covers(lo, hi))
    };
    sys::set_mask(mask);
    if !covered {
        return Some(ENOMEM);
    }
    for page in lo..hi {
        out(page - lo, u8::from(mm.load(page).kind() == Kind::Resident));
    }
    Some(0)
}
