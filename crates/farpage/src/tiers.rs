//! Where pages go when they leave: the compressed tier in the pool, then swap files; and how they come back.
//!
//! Every page that leaves gets a slot first, which is a place in a swap file where there is room (`slot_batch`). Whether its
//! content lies there, or compressed in RAM for now, is in the slot's word alone.
//!
//! A page is handed on only after its CRC-32C, taken when it left, has been found equal. The check follows
//! decompression, so it covers the codec too; a mismatch with an unchanged slot word is corruption and stops the program.
//!
//! # Safety
//! Bytes of the pool may be changed by other processes at any time (a slot's backing can move to a file under a reader),
//! so they are only ever copied out with raw pointers, never borrowed, and trusted after the word was read again.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::devices::{self, SHUT_FAILED};
use farpage_core::kill_point;
use farpage_core::pace;
use farpage_core::planes::{self, Form, Page};
use farpage_core::slots::Slots;
use farpage_core::stats::{Counter, Source};
use farpage_core::swap_table::{Backing, Impossible, SlotWord};
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::{HEADER_BYTES, Handle};

use crate::compress::{self, Compressed};
use crate::file_limit;
use crate::mm::{Mm, PAGE, fd};
use crate::pool::Pool;
use crate::reserve;
use crate::steps::Step;
use crate::sys::{self, Errno};
use crate::watch;
use crate::work_area::Context;

/// Why a page could not be brought back.
#[derive(Clone, Copy, Debug)]
pub enum LoadError {
    /// The content differs from what was stored.
    Corrupt { slot: u32 },
    /// The swap file or device failed.
    Io { slot: u32, errno: Errno },
    /// The pool contradicts itself.
    Impossible(Impossible),
}

/// Fills `context.bounce[at]` with the content of `slot`, verified.
pub fn load(mm: &Mm, slot: u32, context: &mut Context, at: usize) -> Result<Source, LoadError> {
    let table = mm.pool().swap_table();
    let (mut slot, mut waits) = (slot, 0);
    loop {
        let word = table.load(slot);
        if let Some(Backing::Moved { to }) = word.backing() {
            // The reference to the first slot keeps those behind it, of which there is one per emptied area at most.
            slot = to;
            continue;
        }
        let impossible = |expected| {
            let word = word.raw();
            Err(LoadError::Impossible(Impossible { slot, word, expected }))
        };
        let result = match word.backing() {
            Some(Backing::Compressed(_)) => load_compressed(mm, slot, word, context, at),
            Some(Backing::Device { .. }) => match place_of(mm.pool(), slot) {
                Some(place) => load_blocks(mm, &Blocks::one(place, slot, at), context),
                None => impossible("content in RAM: the slot has no block of a file"),
            },
            Some(Backing::Moved { .. }) | None => impossible("a slot with the content of a page"),
        };
        match result {
            Ok(source) => return Ok(source),
            Err(_) if table.load(slot) != word && waits < 1000 => waits += 1,
            Err(error) => {
                mm.header().count(Counter::CrcErrors, 1);
                return Err(error);
            }
        }
    }
}

fn load_compressed(
    mm: &Mm,
    slot: u32,
    seen: SlotWord,
    context: &mut Context,
    to: usize,
) -> Result<Source, LoadError> {
    let Context { bounce, out, .. } = context;
    if unpack(mm.pool(), slot, seen, out, &mut bounce[to]).is_none() {
        return Err(LoadError::Corrupt { slot });
    }
    mm.header().count(Counter::Zswpin, 1);
    mm.header().tier_hits.fetch_add(1, Ordering::Relaxed);
    Ok(Source::Compressed)
}

/// Decompresses the object that the slot's word `seen` names into `page`, by way of `copy`; its checksum, which has been found
/// right. None if it is damaged, or was moved meanwhile: a reader that was held up between two words of the header once got
/// the next object's content, another program's page. The caller holds a reference to the slot, or its cluster.
pub fn unpack(
    pool: &Pool,
    slot: u32,
    seen: SlotWord,
    copy: &mut [u8; 2 * PAGE_SIZE],
    page: &mut [u8; PAGE_SIZE],
) -> Option<u32> {
    let Some(Backing::Compressed(handle)) = seen.backing() else {
        return None;
    };
    let table = pool.swap_table();
    table.read_behind(slot, seen, || unpack_object(pool, slot, handle, copy, page))?
}

fn unpack_object(
    pool: &Pool,
    slot: u32,
    handle: Handle,
    copy: &mut [u8; 2 * PAGE_SIZE],
    page: &mut [u8; PAGE_SIZE],
) -> Option<u32> {
    let zpool = pool.zpool();
    let capacity = zpool.capacity(handle);
    let at = pool.zdata(zpool.offset(handle) as u64);
    // SAFETY: a handle from a slot word lies inside the zpool's data; u32 reads of shared memory, volatile.
    let (owner, length, crc, form) = unsafe {
        let words = at as *const u32;
        let owner = words.read_volatile();
        kill_point!("unpack-owner");
        (
            owner,
            words.add(1).read_volatile() as usize,
            words.add(2).read_volatile(),
            words.add(3).read_volatile() as usize,
        )
    };
    let form = *Form::ALL.get(form)?;
    if owner != slot || length == 0 || length + HEADER_BYTES > capacity || length > PAGE_SIZE {
        return None;
    }
    // SAFETY: length bytes lie inside the object and fit `copy`; see the file's note on shared bytes.
    unsafe {
        core::ptr::copy_nonoverlapping((at + HEADER_BYTES as u64) as *const u8, copy.as_mut_ptr(), length)
    };
    let (packed, planes) = copy.split_at_mut(PAGE_SIZE);
    let planes: &mut Page = planes.try_into().ok()?;
    let to = match form {
        Form::Plain => &mut *page,
        Form::Planes => &mut *planes,
    };
    let is_whole = compress::unpack(&packed[..length], to);
    if form == Form::Planes {
        planes::join(planes, page);
    }
    (is_whole && crc32c::crc32c(&page[..]) == crc).then_some(crc)
}

/// The area and the block of a slot; none for a slot without a file.
pub fn place_of(pool: &Pool, slot: u32) -> Option<(u8, u64)> {
    let (index, device) = devices::owner_of(pool.devices(), slot / CLUSTER_SLOTS as u32)?;
    device.has_file.then(|| (index as u8, device.block(slot)))
}

/// Whether the device of a slot keeps what it has: not while it is being emptied.
#[must_use]
pub fn stays(pool: &Pool, slot: u32) -> bool {
    let owner = devices::owner_of(pool.devices(), slot / CLUSTER_SLOTS as u32);
    owner.is_some_and(|(index, _)| pool.device_states()[index].stays())
}

/// Whether the slot's block may be written to: not in an area that refuses.
#[must_use]
pub fn may_be_written(mm: &Mm, slot: u32) -> bool {
    let refuses = |area: u8| mm.header().area[usize::from(area)].refusal.stands();
    place_of(mm.pool(), slot).is_none_or(|(area, _)| !refuses(area))
}

/// Where in a file a slot's page lies, if it does.
pub fn block_of(mm: &Mm, slot: u32) -> Option<(u8, u64)> {
    match mm.pool().swap_table().load(slot).backing() {
        Some(Backing::Device { .. }) => place_of(mm.pool(), slot),
        _ => None,
    }
}

/// Most blocks of one read.
pub const READ_MAX: usize = 64;

/// Slots in consecutive blocks of a file, and where in `Context::bounce` each page is to go.
pub struct Blocks {
    pub first: (u8, u64),
    pub len: usize,
    /// 0 stands for a block that lies between and is not wanted.
    pub slots: [u32; READ_MAX],
    pub places: [u8; READ_MAX],
}

impl Blocks {
    /// One page.
    #[must_use]
    pub fn one(first: (u8, u64), slot: u32, place: usize) -> Blocks {
        let mut blocks = Blocks {
            first,
            len: 1,
            slots: [0; READ_MAX],
            places: [0; READ_MAX],
        };
        (blocks.slots[0], blocks.places[0]) = (slot, place as u8);
        blocks
    }
}

/// Reads the blocks with one call, each page to its place, and verifies what is wanted.
pub fn load_blocks(mm: &Mm, blocks: &Blocks, context: &mut Context) -> Result<Source, LoadError> {
    let mut pieces = [[0u64; 2]; READ_MAX];
    let used = read_pieces(blocks, context, &mut pieces);
    let (file, offset) = file_of(mm, blocks.first);
    let pieces = &mut pieces[..used];
    let start = context.is_waited_for.then(sys::now_ns);
    // SAFETY: bounce pages and scratch page are this holder's alone.
    let watched = context.is_waited_for && unsafe { watch::read(mm, file, offset, pieces) };
    if !watched {
        // SAFETY: the same.
        let read = unsafe { sys::transfer_all(file, false, pieces, offset) };
        let slot = blocks.slots[0];
        read.map_err(|errno| LoadError::Io { slot, errno })?;
    }
    if let Some(start) = start {
        let ((area, block), over_ns) = (blocks.first, sys::now_ns());
        mm.header().area[usize::from(area)].pace.note(pace::Read {
            block,
            blocks: blocks.len as u64,
            over_ns,
            took_ns: over_ns.saturating_sub(start),
        });
    }
    verify_blocks(mm, blocks, context)
}

/// The descriptor of an area, and the offset of a block in its file, in bytes.
pub fn file_of(mm: &Mm, (area, block): (u8, u64)) -> (i32, u64) {
    let start = mm.header().area[usize::from(area)].start.load(Ordering::Relaxed);
    (mm.fd(fd::AREAS + i32::from(area)), start + block * PAGE)
}

/// Where the blocks are read to, in no more pieces than blocks; how many pieces.
pub fn read_pieces(blocks: &Blocks, context: &mut Context, pieces: &mut [sys::Piece]) -> usize {
    let scratch = context.out.as_mut_ptr() as u64;
    let mut used = 0;
    for (slot, place) in blocks.slots[..blocks.len].iter().zip(blocks.places) {
        let to = if *slot == 0 {
            scratch
        } else {
            context.bounce[usize::from(place)].as_mut_ptr() as u64
        };
        add_piece(pieces, &mut used, to, *slot != 0);
    }
    used
}

/// Verifies what is wanted of blocks that have been read.
pub fn verify_blocks(mm: &Mm, blocks: &Blocks, context: &Context) -> Result<Source, LoadError> {
    let table = mm.pool().swap_table();
    let mut wanted = 0;
    for (&slot, place) in blocks.slots[..blocks.len].iter().zip(blocks.places) {
        if slot == 0 {
            continue;
        }
        wanted += 1;
        let crc = crc32c::crc32c(&context.bounce[usize::from(place)][..]);
        if table.load(slot).backing() != Some(Backing::Device { crc }) {
            return Err(LoadError::Corrupt { slot });
        }
    }
    count_read(mm, wanted, blocks.len as u64);
    Ok(Source::File)
}

/// One read of so many blocks, of which so many were `wanted`.
pub fn count_read(mm: &Mm, wanted: u64, blocks: u64) {
    let header = mm.header();
    header.count(Counter::FileRead, 1);
    header.count(Counter::Pswpin, wanted);
    header.count(Counter::FileReadBytes, blocks * PAGE);
}

/// Reads the blocks of the slots from `first` on, all of one area, to pages in a row, with one call, and verifies them. False:
/// they are to be read one by one.
pub fn load_row(mm: &Mm, first: u32, pages: &mut [[u8; PAGE_SIZE]]) -> bool {
    let Some(place) = place_of(mm.pool(), first) else {
        return false;
    };
    let (file, offset) = file_of(mm, place);
    let mut pieces = [[pages.as_mut_ptr() as u64, size_of_val(pages) as u64]];
    // SAFETY: the pages are borrowed mutably.
    if unsafe { sys::transfer_all(file, false, &mut pieces, offset) }.is_err() {
        return false;
    }
    let table = mm.pool().swap_table();
    let is_right = |(slot, page): (u32, &[u8; PAGE_SIZE])| {
        let crc = crc32c::crc32c(&page[..]);
        table.load(slot).backing() == Some(Backing::Device { crc })
    };
    if !(first..).zip(pages.iter()).all(is_right) {
        return false;
    }
    count_read(mm, pages.len() as u64, pages.len() as u64);
    true
}

/// Adds a page to the pieces, to the last one if it follows it in memory.
fn add_piece(pieces: &mut [sys::Piece], used: &mut usize, page: u64, joins: bool) {
    if joins && *used > 0 && pieces[*used - 1][0] + pieces[*used - 1][1] == page {
        pieces[*used - 1][1] += PAGE;
        return;
    }
    pieces[*used] = [page, PAGE];
    *used += 1;
}

/// Ends the program with the reason a page can't be handed on.
pub fn refuse_page(error: LoadError, address: u64) -> ! {
    let at = sys::Num::new(address, 16);
    let (what, slot, errno) = match error {
        LoadError::Corrupt { slot } => ("its content in swap is damaged (checksum mismatch)", slot, None),
        LoadError::Io { slot, errno } => (
            "the swap file or device failed to read it, errno ",
            slot,
            Some(errno.0),
        ),
        LoadError::Impossible(impossible) => stop(&impossible),
    };
    let slot = sys::Num::new(u64::from(slot), 10);
    let code = errno.map(|errno| sys::Num::new(errno as u64, 10));
    let tail = "; the program was stopped so that no wrong data is used; check the swap device";
    sys::die(&[
        "farpage: page 0x",
        at.text(),
        " (slot ",
        slot.text(),
        "): ",
        what,
        code.as_ref().map_or("", sys::Num::text),
        tail,
    ])
}

/// The page at `address`.
pub fn content_at(address: u64) -> &'static Page {
    // SAFETY: callers pass a frame of theirs, or memory of their own: a readable page, unchanging while they look at it.
    unsafe { &*(address as *const Page) }
}

/// True if every byte of the page at `address` is zero.
pub fn is_zero(address: u64) -> bool {
    let (words, _) = content_at(address).as_chunks::<8>();
    let is_zero = |word: &[u8; 8]| u64::from_ne_bytes(*word) == 0;
    words.last().is_some_and(is_zero) && words.iter().all(is_zero)
}

/// Writebacks that must be known before the tier is judged, and that make both counts halve.
const JUDGED_FROM: u64 = 1024;
const HALVED_AT: u64 = 8192;
/// The tier pays if one page comes back from it for so many that it writes back.
const WRITEBACKS_PER_HIT: u64 = 16;
/// While it does not, one window of pages in so many is still compressed, so that a change is noticed.
const TRIED_ONE_IN: u64 = 8;

/// Notes pages that the compressed tier wrote back.
pub fn count_writebacks(mm: &Mm, pages: u64) {
    let header = mm.header();
    let before = header.tier_writebacks.fetch_add(pages, Ordering::Relaxed);
    if before + pages >= HALVED_AT {
        // Lost updates of others cost a little memory of the past, nothing else.
        header
            .tier_writebacks
            .store((before + pages) / 2, Ordering::Relaxed);
        let hits = header.tier_hits.load(Ordering::Relaxed);
        header.tier_hits.store(hits / 2, Ordering::Relaxed);
    }
}

/// Whether pages that leave now are better written at once: what the compressed tier keeps is hardly ever wanted before it is
/// written back (a scan over more than fits), so compressing it costs twice and gains nothing.
pub fn passes_through(mm: &Mm, window: u64) -> bool {
    let header = mm.header();
    let writebacks = header.tier_writebacks.load(Ordering::Relaxed);
    let hits = header.tier_hits.load(Ordering::Relaxed);
    writebacks >= JUDGED_FROM
        && hits * WRITEBACKS_PER_HIT < writebacks
        && !window.is_multiple_of(TRIED_ONE_IN)
}

/// Puts a compressed page into the zpool under `slot`; `None` if the tier is at its limit.
pub fn store_compressed(mm: &Mm, slot: u32, page: &Compressed, context: &Context) -> Option<Backing> {
    let zpool = mm.pool().zpool();
    let header = mm.header();
    let limit = header.zpages_limit.load(Ordering::Relaxed) as usize;
    let _step = mm.entry().objects.begin();
    let bytes = page.length + HEADER_BYTES;
    let fresh = |zpage| mm.pool().populate_zpage(zpage);
    let handle = zpool.alloc_telling(&mm.zhints, limit, bytes, slot, fresh)?;
    let at = mm.pool().zdata(zpool.offset(handle) as u64);
    // SAFETY: the object is ours until its slot is published; it has room for the header and `length` bytes.
    unsafe {
        let words = at as *mut u32;
        words.add(1).write_volatile(page.length as u32);
        words.add(2).write_volatile(page.crc);
        words.add(3).write_volatile(page.form as u32);
        core::ptr::copy_nonoverlapping(
            context.out.as_ptr(),
            (at + HEADER_BYTES as u64) as *mut u8,
            page.length,
        );
    }
    header.count(Counter::Zswpout, 1);
    header.count(Counter::ZswpoutPlanes, u64::from(page.form == Form::Planes));
    header.count(Counter::CompressedBytesIn, PAGE);
    header.count(Counter::CompressedBytesOut, page.length as u64);
    Some(Backing::Compressed(handle))
}

/// Counts the block of `slot`, which is about to be published: a process killed between the two leaves a count that is one off, and
/// the step, which the caller holds until then, tells the supervisor to count again (`recount`).
#[must_use]
pub fn count_block(mm: &Mm, slot: u32) -> Step<'_> {
    let step = mm.entry().objects.begin();
    count_blocks(mm, slot, 1);
    kill_point!("block-counted");
    step
}

/// Counts blocks that hold a page from now on, of the area that `slot` lies in. The caller is in a step of `ProcEntry::objects` that
/// began before any word told of that.
pub fn count_blocks(mm: &Mm, slot: u32, blocks: u64) {
    if let Some((area, _)) = place_of(mm.pool(), slot) {
        mm.header().area[usize::from(area)]
            .used
            .fetch_add(blocks as i64, Ordering::AcqRel);
    }
}

/// Most pages of one write whose list is on the stack.
pub const WRITE_MAX: usize = 64;

/// Writes pages, by their addresses and at most [`WRITE_MAX`], to the blocks of the slots from `first` on, all of one area; `None` stands for a
/// block of nobody's, which gets zeros.
/// False if the area fails: it gets no more pages until nothing else has room.
pub fn write_run(mm: &Mm, pages: impl Iterator<Item = Option<u64>>, first: u32) -> bool {
    write_listed(mm, pages.take(WRITE_MAX), first, &mut [[0u64; 2]; WRITE_MAX])
}

/// The same for as many pages as the list of `pieces` has room for.
pub fn write_listed(
    mm: &Mm,
    pages: impl Iterator<Item = Option<u64>>,
    first: u32,
    pieces: &mut [sys::Piece],
) -> bool {
    let Some((area, block)) = place_of(mm.pool(), first) else {
        return false;
    };
    let (mut used, mut count, mut gaps) = (0, 0, 0);
    for page in pages.take(pieces.len()) {
        gaps += u64::from(page.is_none());
        add_piece(pieces, &mut used, page.unwrap_or_else(|| mm.frames.zeros()), true);
        count += 1;
    }
    write_pieces(mm, (area, block), &mut pieces[..used], count, gaps)
}

/// Writes `count` pages that lie in a row at `from` to the blocks of the slots from `first` on, all of one area, as one; as
/// [`write_run`] else.
pub fn write_row(mm: &Mm, from: u64, count: u64, first: u32) -> bool {
    place_of(mm.pool(), first)
        .is_some_and(|place| write_pieces(mm, place, &mut [[from, count * PAGE]], count, 0))
}

/// Writes the pieces to `count` blocks, of which `gaps` hold no page.
fn write_pieces(mm: &Mm, (area, block): (u8, u64), pieces: &mut [sys::Piece], count: u64, gaps: u64) -> bool {
    let bytes = count * PAGE;
    let (file, offset) = file_of(mm, (area, block));
    reserve::ahead(mm, area, block, count);
    // SAFETY: the pages are frames of a block that this thread is storing, or its own: readable and unchanging.
    let mut result = unsafe { sys::transfer_all(file, true, pieces, offset) };
    if result == Err(Errno(libc::EFBIG)) {
        // The limit of this process, and no fault of the area.
        let Some(_lifted) = file_limit::lift() else {
            return false;
        };
        let left: u64 = pieces.iter().map(|piece| piece[1]).sum();
        // SAFETY: as above; the rest of the pieces.
        result = unsafe { sys::transfer_all(file, true, pieces, offset + bytes - left) };
    }
    let header = mm.header();
    if let Err(error) = result {
        mm.pool().device_states()[usize::from(area)]
            .shut
            .fetch_or(SHUT_FAILED, Ordering::Relaxed);
        header.area[usize::from(area)].refusal.note(error, sys::now_ns());
        return false;
    }
    header.count(Counter::FileWrite, 1);
    header.count(Counter::Pswpout, count - gaps);
    header.count(Counter::FileWriteBytes, bytes);
    true
}

/// The checksum of the frame at `address`.
pub fn checksum(address: u64) -> u32 {
    crc32c::crc32c(content_at(address))
}

/// Adds what a view counted to the tree's figures.
pub fn count_locks(pool: &Pool, view: &Slots<'_, &Pool>) {
    let tally = view.take_tally();
    pool.header().count(Counter::SlotLock, tally.locks);
    if tally.missed != 0 {
        pool.header().count(Counter::SlotLockMissed, tally.missed);
    }
}

/// The pool contradicts itself: going on could hand one program's page to another.
pub fn stop(impossible: &Impossible) -> ! {
    let (slot, word) = (
        sys::Num::new(u64::from(impossible.slot), 10),
        sys::Num::new(impossible.word, 16),
    );
    sys::die(&[
        "farpage: impossible swap entry: slot ",
        slot.text(),
        " word 0x",
        word.text(),
        ", expected ",
        impossible.expected,
        "; the program was stopped; please report this",
    ])
}
