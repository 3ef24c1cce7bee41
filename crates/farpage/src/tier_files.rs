//! The files of the tiers: what the pool says of them, and how every process keeps the right one at each number.
//!
//! Descriptors are inherited (decision 0006), so at first all processes have the same. When a file joins or leaves a
//! running tree each active process exchanges what it holds at that number: its reclaimer thread finds
//! `Header::area_epoch` changed, compares device and inode of what it has with what the pool says, and opens what it lacks through
//! /proc of the supervisor. Then it writes the epoch to its entry. No page goes to a new file before every active
//! process has done so, since any of them may have to read what another wrote there. A process that becomes active later does
//! the same before its memory is managed. Only one thread of a process does it at a time: the reclaimer, or who activates.
//!
//! # Safety
//! Plain system calls on the engine's own descriptor numbers and local buffers.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::AsRawFd;

use farpage_core::devices::{self, SHUT_FAILED, SHUT_LEAVING};
use farpage_core::kill_point;
use farpage_core::swap_table::SlotKind;

use crate::areas::OpenArea;
use crate::discard;
use crate::mm::{Mm, fd};
use crate::numbers;
use crate::pool::{Area, MAX_AREAS, Pool, entry_state, trait_of};
use crate::recount;
use crate::reserve;
use crate::sys::{self, Errno};

/// The epoch whose files this process has. A forked child has what its parent had.
static HAVE: AtomicU32 = AtomicU32::new(0);

/// Writes down what `file` is as area `index`. No page goes there yet. What a running tree has no slots for is not used.
pub fn describe(pool: &Pool, index: usize, file: &OpenArea) -> Result<(), Errno> {
    let raw = file.file.as_raw_fd();
    let (dev, ino) = identity(raw)?;
    let room = pool.layout().device_slots[index];
    let blocks = file.blocks.min(room);
    // SAFETY: asks for the flags of a descriptor of ours.
    let flags = unsafe { libc::fcntl(raw, libc::F_GETFL) } & libc::O_DIRECT;
    let area = &pool.header().area[index];
    let name = &file.name[..file.name.floor_char_boundary(area.name.len() - 1)];
    for (byte, value) in area.name.iter().zip(name.bytes().chain(core::iter::repeat(0))) {
        byte.store(value, Ordering::Relaxed);
    }
    area.descriptor.store(raw, Ordering::Relaxed);
    area.flags.store(flags, Ordering::Relaxed);
    area.traits.store(file.traits, Ordering::Relaxed);
    area.start.store(file.start, Ordering::Relaxed);
    area.dev.store(dev, Ordering::Relaxed);
    area.blocks.store(blocks, Ordering::Relaxed);
    area.ino.store(ino, Ordering::Release);
    let raised = devices::raised(file.priority);
    pool.device_states()[index]
        .raised
        .store(raised, Ordering::Relaxed);
    resize(pool, index, (room - blocks) as u32, file.traits);
    Ok(())
}

/// The area has no file any more, and holds no page that anybody needs.
pub fn forget(pool: &Pool, index: usize) {
    let device = pool.devices()[index];
    // Of the others nothing was noted, and to look would take memory.
    if pool.header().area[index].traits.load(Ordering::Relaxed) & trait_of::RESERVES != 0 {
        reserve::forget(
            pool,
            u64::from(device.first_cluster)..u64::from(device.end_cluster()),
        );
    }
    resize(pool, index, pool.layout().device_slots[index] as u32, 0);
    pool.device_states()[index].raised.store(0, Ordering::Relaxed);
    let area = &pool.header().area[index];
    area.ino.store(0, Ordering::Relaxed);
    area.dev.store(0, Ordering::Relaxed);
    area.blocks.store(0, Ordering::Relaxed);
    area.traits.store(0, Ordering::Relaxed);
    // What a dead process left may be given up later, and is subtracted then.
    let used = written(pool, index);
    area.used.store(used, Ordering::Relaxed);
}

/// Where the kernel says of an area that its disk rotates, and reads have shown since whether seeks are dear: the allocator is
/// told. Called by the supervisor at each tick.
pub fn note_seeks(pool: &Pool) {
    for (area, state) in pool.header().area.iter().zip(pool.device_states()) {
        if area.traits.load(Ordering::Relaxed) & trait_of::ROTATES == 0 {
            continue;
        }
        if area.pace.has_dear_seeks() {
            state.traits.fetch_or(devices::ROTATES, Ordering::Relaxed);
        } else {
            state.traits.fetch_and(!devices::ROTATES, Ordering::Relaxed);
        }
    }
}

/// The device of the area has another size now, and wants what its file wants.
fn resize(pool: &Pool, index: usize, missing: u32, traits: u64) {
    pool.header().area[index].pace.forget();
    let discards = match traits & (trait_of::PUNCHES | trait_of::DISCARDS) {
        0 => 0,
        _ => devices::DISCARDS,
    };
    let state = &pool.device_states()[index];
    state.traits.store(discards, Ordering::Relaxed);
    state.missing.store(missing, Ordering::Relaxed);
    kill_point!("area-resized");
    pool.slots().resized(index, recount::SUPERVISOR);
}

/// Slots of the area whose words say that their content is in their block.
pub fn written(pool: &Pool, index: usize) -> i64 {
    let device = pool.devices()[index];
    let slots = recount::used_slots_in(pool, |cluster| device.owns(cluster));
    let written = slots.filter(|slot| pool.swap_table().load(*slot).kind() == SlotKind::Device);
    written.count() as i64
}

/// From now on pages may be written to the area.
pub fn open_to_pages(pool: &Pool, index: usize) {
    let header = pool.header();
    if header.area[index].open.swap(1, Ordering::Relaxed) == 0 {
        header.areas.fetch_add(1, Ordering::Relaxed);
    }
    header.area[index].refusal.lift(sys::now_ns());
    pool.device_states()[index]
        .shut
        .fetch_and(!(SHUT_LEAVING | SHUT_FAILED), Ordering::Release);
}

/// From now on no slot of the area is handed out.
pub fn close_to_pages(pool: &Pool, index: usize) {
    let header = pool.header();
    pool.device_states()[index]
        .shut
        .fetch_or(SHUT_LEAVING, Ordering::AcqRel);
    if header.area[index].open.swap(0, Ordering::Relaxed) == 1 {
        header.areas.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of asking all processes to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    All,
    /// This one has not yet.
    Waiting(i32),
    /// This one can't.
    Failed(i32, Errno),
}

/// Tells the tree that the set of files has changed.
pub fn announce(pool: &Pool) {
    pool.header().area_epoch.fetch_add(1, Ordering::SeqCst);
    pool.header().ask_to_reclaim();
}

/// Whether every active process has the files of the current epoch. A child forked meanwhile by a process that had not is
/// not missed: its birth is counted before its parent, who holds its gate alone then, can follow.
#[must_use]
pub fn followed(pool: &Pool) -> Followed {
    let header = pool.header();
    let epoch = header.area_epoch.load(Ordering::SeqCst);
    let births = header.births.load(Ordering::Acquire);
    for entry in pool.processes() {
        let state = entry.state.load(Ordering::Acquire);
        let runs = match state {
            entry_state::LIVE => entry.active.load(Ordering::SeqCst) != 0,
            // Its parent may be about to make it active.
            state => entry_state::taker(state).is_some(),
        };
        if !runs {
            continue;
        }
        let has = entry.area_epoch.load(Ordering::Acquire);
        let (pid, errno) = (
            entry.pid.load(Ordering::Relaxed),
            entry.area_errno.load(Ordering::Relaxed),
        );
        if has == epoch && errno != 0 {
            return Followed::Failed(pid, Errno(errno));
        }
        if has != epoch && has != u32::MAX {
            return Followed::Waiting(pid);
        }
    }
    if header.births.load(Ordering::Acquire) == births {
        Followed::All
    } else {
        Followed::Waiting(0)
    }
}

/// Follows, if the set of files has changed since. Called by the reclaimer thread, and by who activates this process, with the
/// gate held.
pub fn follow(mm: &Mm) -> Result<(), Errno> {
    let header = mm.header();
    loop {
        let epoch = header.area_epoch.load(Ordering::SeqCst);
        if HAVE.load(Ordering::Relaxed) == epoch && mm.entry().area_epoch.load(Ordering::Relaxed) == epoch {
            return Ok(());
        }
        let mut result = Ok(());
        for index in 0..MAX_AREAS {
            result = result.and(exchange(mm, index));
        }
        if header.area_epoch.load(Ordering::SeqCst) != epoch {
            continue;
        }
        kill_point!("follow-exchanged");
        let errno = result.err().map_or(0, |Errno(number)| number);
        mm.entry().area_errno.store(errno, Ordering::Relaxed);
        HAVE.store(epoch, Ordering::Relaxed);
        mm.entry().area_epoch.store(epoch, Ordering::Release);
        return result;
    }
}

/// Whether [`follow`] has something to do.
#[inline]
pub fn is_behind(mm: &Mm) -> bool {
    HAVE.load(Ordering::Relaxed) != mm.header().area_epoch.load(Ordering::Relaxed)
}

/// In a forked child: it has what its parent had, and says so. A child of one that borrows its memory (`lent`) has that one's descriptors,
/// and the memory which says what they are is of another's: it looks at each.
pub fn inherit(mm: &Mm, lent: bool) -> Result<(), Errno> {
    if lent {
        // Its own entry says of no epoch that it has the files.
        return follow(mm);
    }
    let have = HAVE.load(Ordering::Relaxed);
    mm.entry().area_epoch.store(have, Ordering::Release);
    Ok(())
}

/// Puts the file of area `index`, or the pool where there is none, to its number if it is not there.
fn exchange(mm: &Mm, index: usize) -> Result<(), Errno> {
    let area = &mm.header().area[index];
    let number = mm.fd(fd::AREAS + index as i32);
    let ino = area.ino.load(Ordering::Acquire);
    let have = identity(number).ok();
    if ino == 0 {
        let pool = mm.fd(fd::POOL);
        if have == identity(pool).ok() {
            return Ok(());
        }
        discard::ask_again(index);
        return hold_pool(pool, number);
    }
    let wanted = (area.dev.load(Ordering::Relaxed), ino);
    if have == Some(wanted) {
        return Ok(());
    }
    let opened = fetch(mm, area)?;
    kill_point!("follow-opened");
    if identity(opened) != Ok(wanted) {
        sys::close(opened);
        return Err(Errno(libc::ESTALE));
    }
    discard::ask_again(index);
    sys::move_fd(opened, number, false)
}

/// Puts the pool to an area's number: for reading, if that can be had, so that nothing is written over it by mistake.
fn hold_pool(pool: i32, number: i32) -> Result<(), Errno> {
    let own = sys::Num::new(pool as u64, 10);
    let path = sys::path(&["/proc/self/fd/", own.text()]);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::ENAMETOOLONG))?;
    if let Ok(opened) = sys::open(path, libc::O_RDONLY) {
        return sys::move_fd(opened, number, false);
    }
    // SAFETY: the number is ours; no page of the tree lies in the file that it held.
    unsafe { sys::call(libc::SYS_dup2, [pool as u64, number as u64, 0, 0, 0, 0]) }.map(drop)
}

/// A descriptor of the area's file: a copy of the supervisor's, which keeps others from the file as long as any process has it, or where that
/// can't be had (Yama, another pid namespace) one by the supervisor's in /proc. (By that alone a device whose supervisor had been killed was
/// anybody's: a file system was made on it, and written over.)
fn fetch(mm: &Mm, area: &Area) -> Result<i32, Errno> {
    let supervisor = mm.header().supervisor.load(Ordering::Relaxed);
    let theirs = area.descriptor.load(Ordering::Relaxed);
    if let Ok(copy) = copy_of(supervisor, theirs) {
        return Ok(copy);
    }
    let (pid, number) = (
        sys::Num::new(supervisor as u64, 10),
        sys::Num::new(theirs as u64, 10),
    );
    let (directory, path) = if numbers::is_apart() {
        (mm.fd(fd::PROC), sys::path(&[pid.text(), "/fd/", number.text()]))
    } else {
        let path = sys::path(&["/proc/", pid.text(), "/fd/", number.text()]);
        (libc::AT_FDCWD, path)
    };
    let how = libc::O_RDWR | area.flags.load(Ordering::Relaxed);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::ENAMETOOLONG))?;
    sys::open_at(directory, path, how)
}

fn copy_of(pid: i32, theirs: i32) -> Result<i32, Errno> {
    if numbers::is_apart() {
        return Err(Errno(libc::ESRCH)); // the number is another's there
    }
    // SAFETY: opens descriptors that are ours alone.
    unsafe {
        let process = sys::call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])?;
        let copy = sys::call(libc::SYS_pidfd_getfd, [process, theirs as u64, 0, 0, 0, 0]);
        sys::close(process as i32);
        copy.map(|fd| fd as i32)
    }
}

/// Device and inode behind a descriptor.
pub fn identity(fd: i32) -> Result<(u64, u64), Errno> {
    sys::stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Geometry;
    use farpage_core::pace::Read;

    /// A disk that calls itself rotating is taken for one once its seeks were seen to take long, and no longer when another file has
    /// its place.
    #[test]
    fn what_the_kernel_says_of_seeks_is_measured() {
        let mut geometry = Geometry::default();
        geometry.area_blocks[..2].fill(1 << 20);
        let (_, pool) = Pool::create(&geometry).unwrap();
        let rotates = |index: usize| pool.device_states()[index].now(&pool.devices()[index]).rotates;
        let areas = &pool.header().area;
        areas[0].traits.store(trait_of::ROTATES, Ordering::Relaxed);
        for took_ns in [100_000, 9_000_000] {
            for nth in 0..1000 {
                let read = Read {
                    block: nth * 7919 % (1 << 20),
                    blocks: 1,
                    over_ns: 1,
                    took_ns,
                };
                areas[..2].iter().for_each(|area| area.pace.note(read));
            }
            note_seeks(&pool);
            assert_eq!(rotates(0), took_ns > 1_000_000, "{took_ns} ns");
            assert!(!rotates(1), "the kernel says that it does not rotate");
        }
        forget(&pool, 0);
        note_seeks(&pool);
        assert!(!rotates(0));
    }
}
