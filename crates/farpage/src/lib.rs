//! farpage's live engine: swap in user space for the process it is loaded into, and the supervisor of a process tree.
//!
//! From a touch to the disk and back: [`signals`] (or [`thread`]) delivers the fault, [`fault`] brings the page in from
//! [`tiers`], [`reclaim`] makes room by moving others out, [`writeback`] makes room in the compressed tier. [`mm`] is the state of this process, [`pool`] what the tree
//! shares. [`mem`], [`fork`] and [`trap`] keep mmap, fork and system calls true. [`supervisor`] runs in `farpage run`.
//!
//! `unsafe` lives in files that say so on top; the others deny it.
#![deny(unsafe_code)]

pub mod activate;
pub mod advice;
pub mod aio;
pub mod areas;
mod bell;
pub mod births;
mod bits;
pub mod check;
pub mod cleanup;
pub mod commit;
mod compact;
mod compress;
pub mod container;
pub mod control;
pub mod cow;
pub mod debts;
pub mod discard;
pub mod dispatch;
mod dontneed;
pub mod engine_stack;
pub mod errand;
pub mod fault;
pub mod file_limit;
pub mod filter;
pub mod fork;
mod forwarded;
pub mod gate;
mod heirs;
mod hints;
mod history;
pub mod huge;
pub mod huge_advice;
pub mod huge_out;
pub mod huge_places;
mod in_flight;
mod inherited;
pub mod join;
pub mod kept;
#[cfg(feature = "kill-points")]
pub mod kill;
pub mod ledger;
mod life;
pub mod maps;
mod mean;
pub mod mem;
pub mod mm;
pub mod mremap;
mod notices;
mod numbers;
mod orphans;
mod overcommit;
pub mod pool;
pub mod prefetch;
mod proc_dirs;
pub mod puts;
pub mod queue;
mod range_set;
pub mod readahead;
pub mod reclaim;
mod reclaim_calls;
pub mod recount;
pub mod relocate;
pub mod remote;
pub mod request;
pub mod reserve;
pub mod residency;
pub mod robust;
pub mod runs;
mod sentinel;
mod shm;
pub mod sigmask;
pub mod signals;
pub mod slot_batch;
pub mod slot_caches;
pub mod snapshot;
mod spare_cpus;
pub mod stacks;
pub mod steps;
pub mod store;
pub mod stub;
pub mod supervisor;
pub mod swapin;
pub mod swapoff;
pub mod sys;
pub mod syscalls;
pub mod thread;
pub mod tier_files;
pub mod tier_share;
pub mod tiers;
pub mod trap;
pub mod trees;
pub mod uffd;
pub mod vfork;
pub mod watch;
pub mod work_area;
pub mod writeback;
