//! The pure half of farpage: words, tables and arithmetic, no machine.
//!
//! Everything here runs in two hard places. It runs inside a signal handler, on the thread that faulted, so
//! it may not allocate, lock, log, read a clock or panic. And it runs on memory that several processes share
//! and any of them can be SIGKILLed between two instructions, so there is no step that must be finished by
//! whoever began it: every change of state is one compare-and-swap of one word, and every word that is under
//! construction names its owner, so that the supervisor can find and finish what a dead process left. Two
//! rules follow.
//!
//! - *Truth is in one word.* Cursors, hints and used counts only make things fast; a death may leave them
//!   wrong by a few, and no decision about who owns what ever rests on them. The one thing that looks like a
//!   lock, a cluster's, names its holder, is never waited for, and can be mended from the table.
//! - *Deaths may leak, never alias.* The order of the steps is chosen so that a count left behind is too
//!   high, a slot left behind stays `Busy`, a zpage left behind stays `Emptying`. Space can be lost until it
//!   is cleaned, but nothing is ever handed out twice.
//!
//! A contradiction that the protocol rules out is answered with [`swap_table::Impossible`], not with a panic:
//! the engine decides whether to stop the process or the page. The crate is `no_std` without `alloc`: the
//! compiler keeps the promise not to allocate, lock or read clocks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`units`] | page and huge page size, sizes as people write them |
//! | [`page_state`] | the word per page of a process: kind, lock bit, pins, frame or slot |
//! | [`swap_table`] | the word per slot: reference count and where the content is |
//! | [`cluster`] | the word per 512 slots: lock, count, list |
//! | [`slots`] | which slots an allocation gets, and what a free does to its cluster |
//! | [`slot_cache`] | slots that a CPU keeps: a policy |
//! | [`devices`] | which slots and blocks belong to which device |
//! | [`pace`] | what reads of a device take: how many may be in flight, whether seeks are dear |
//! | [`fifo`] | which cluster was filled longest ago |
//! | [`bit_tree`] | sets of clusters that a death can't break |
//! | [`zpool`] | where compressed objects sit: size classes, zpages, handles |
//! | [`compact`] | which compressed objects move so that zpages become empty |
//! | [`planes`] | pages sorted by bytes, which may compress better |
//! | [`range_map`] | sorted disjoint page ranges in a fixed array |
//! | [`huge`] | when 512 pages are better kept as one |
//! | [`stats`] | counter names, histogram geometry |
//! | [`readahead`] | which pages come with a missed one: the kernel's two ways, streams, hit counting |
//! | [`reclaim_policy`] | which resident page or window goes next: six ways, shadows |
//! | [`workingset`] | refault distances, and what they say about the compressed tier's size |
//! | [`kill`] | where a test kills processes; nothing in other builds |
//! | [`sync`] | the one door to atomics |
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;
// The models that the tests share with fuzz targets name the crate.
#[cfg(test)]
extern crate self as farpage_core;

pub mod bit_tree;
pub mod cluster;
pub mod compact;
pub mod devices;
pub mod fifo;
pub mod huge;
pub mod kill;
pub mod pace;
pub mod page_state;
// The models are of the swap core; what has statics of its own has no place in them.
#[cfg(not(all(test, loom)))]
pub mod planes;
pub mod range_map;
#[cfg(not(all(test, loom)))]
pub mod readahead;
pub mod reclaim_policy;
pub mod slot_cache;
pub mod slots;
pub mod stats;
pub mod swap_table;
pub mod sync;
pub mod units;
pub mod workingset;
pub mod zpool;
