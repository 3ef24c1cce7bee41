//! `farpage run`: makes the pool, starts the program in it, keeps the books of the tree, cleans up after the dead.
//!
//! Processes do their own swapping; the supervisor only samples what is not managed, sets the limit from it, charges
//! forked children once they have lived a moment, and returns what a dead process held. If it is killed the tree goes on
//! safely with the last limit; nothing is left behind, since the pool is a memfd and swap files have no name.
//!
//! # Safety
//! Runs in a process of its own; the unsafe parts are fork-time set-up of descriptors and plain system calls.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::Ordering;

use farpage_core::huge::{Huge, SwapIn, SwapOut};
use farpage_core::readahead::Policy;
use farpage_core::slot_cache::{FREE_MIN_PER_CPU, SlotPolicy};
use farpage_core::units::{PAGE_SIZE, format_size};
use farpage_core::zpool::ZPAGE_BYTES;

use crate::areas::{self, OpenArea};
use crate::bell::Bell;
use crate::container::Container;
use crate::control::Server;
use crate::forwarded;
pub use crate::forwarded::Before;
use crate::inherited::{self, SignalState};
use crate::join::{ENV_POOL, layout};
use crate::ledger::Ledger;
use crate::life::Life;
use crate::mm::fd;
use crate::notices::Notices;
use crate::pool::{Geometry, Layout, Pool, flag};
use crate::snapshot::Snapshot;
use crate::sys::Errno;
use crate::{sys, tier_files, trap, trees};

/// A tier as the user names it, in order of priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AreaSpec {
    /// Compressed RAM inside the budget; at most `limit` bytes of it.
    Compressed {
        limit: Option<u64>,
    },
    Path(PathSpec),
}

/// A directory (an unlinked file is made there), a file or a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    pub path: PathBuf,
    /// Bytes.
    pub size: Option<u64>,
    /// Those with one are filled before those without, the highest first, equal ones in turn.
    pub priority: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Signal,
    Thread,
}

pub type OnTick = Box<dyn FnMut(&Snapshot)>;

pub struct RunConfig {
    pub ram_bytes: u64,
    pub areas: Vec<AreaSpec>,
    pub delivery: Delivery,
    /// Whether children that call exec are managed too.
    pub follow: bool,
    /// Manage memory from the first byte on instead of from half the budget.
    pub eager: bool,
    pub allow_io_uring: bool,
    /// What the command starts with ignored beside what this process ignores. SIGCHLD must not be ignored in this one.
    pub ignored_signals: Vec<i32>,
    /// Of stdin, stdout and stderr, those that the command starts without.
    pub closed_files: Vec<i32>,
    /// Descriptors that the caller has opened for the end of the run: a background process does not keep them.
    pub callers_files: Vec<i32>,
    pub readahead: Policy,
    /// log2 of the greatest window of the policies `cluster` and `vma`.
    pub page_cluster: u32,
    pub huge: Huge,
    pub huge_swapin: SwapIn,
    pub huge_swapout: SwapOut,
    pub slots: SlotPolicy,
    /// Whose limit the budget nearly fills, if it does.
    pub container: Option<Container>,
    pub command: Vec<OsString>,
    /// The preload library's bytes.
    pub preload: &'static [u8],
    /// Called when nothing is refused any more.
    pub on_start: Box<dyn FnMut()>,
    /// Called about once a second.
    pub on_tick: Option<OnTick>,
}

pub struct Outcome {
    /// The program's exit code, or 128 + the signal that ended it.
    pub exit_code: i32,
    pub snapshot: Snapshot,
    /// To be restored before anything that may wait.
    pub signals: Before,
}

/// Why nothing was run. Texts say what, why and how to mend it.
#[derive(Debug)]
pub enum RunError {
    Setup(String),
    NotExecutable(String),
    NotFound(String),
}

/// Below this the engine's own fixed needs leave no room for a program's pages.
pub const RAM_MIN: u64 = 8 << 20;
const TICK_MS: i32 = 20;
const SECOND_NS: u64 = 1_000_000_000;
/// Epochs of refault distances in so many pages as the budget has.
const EPOCHS_IN_BUDGET: i64 = 64;
/// While a tier joins or leaves; the tree itself is looked at less often.
const BUSY_TICK_MS: i32 = 1;
const BUSY_LOOK_NS: u64 = 4_000_000;

/// Runs a command within the budget and waits for it.
pub fn run(mut config: RunConfig) -> Result<Outcome, RunError> {
    refuse_small_budget(config.ram_bytes).map_err(RunError::Setup)?;
    let open = areas::open_all(&config.areas).map_err(RunError::Setup)?;
    let (pool_fd, pool) = make_pool(&config, &open).map_err(RunError::Setup)?;
    let bell = Bell::hang(pool.header()).map_err(|e| no_start("make a pipe", &e))?;
    let mut life = Life::begin().map_err(|e| no_start("make a pipe", &e))?;
    let library =
        make_library(config.preload).map_err(|e| no_start("place the preload library in memory", &e))?;
    (config.on_start)();
    // A signal sent to us while the command starts waits until there is somebody to pass it on to.
    let signals = SignalState::hold(forwarded::signals(), mem::take(&mut config.ignored_signals));
    let given = [
        (pool_fd, fd::POOL),
        (library.as_raw_fd(), fd::LIBRARY),
        (life.descriptor(), fd::LIFE),
    ];
    let started = start(&config, &pool, &given, &open, signals.clone());
    let started = started.map(|child| (forwarded::begin(child.id() as i32), child));
    signals.release();
    let (before, mut child) = started?;
    drop(library);
    life.let_go();
    inherited::let_go_but_stderr();
    let mut rounds = Rounds {
        bell,
        ledger: Ledger::new(pool, pool_fd, config.container.take()),
        server: Server::new(pool, pool_fd, open),
        life,
        looked_ns: 0,
    };
    #[cfg(feature = "kill-points")]
    crate::kill::arm_supervisor();
    let exit_code = watch(&mut child, &mut rounds, &mut config.on_tick);
    rounds.ledger.tick();
    let snapshot = Snapshot::of(&pool);
    if rounds.is_over() {
        rounds.server.end();
    } else {
        keep_books_in_background(rounds, &config.callers_files);
    }
    Ok(Outcome {
        exit_code,
        snapshot,
        signals: before,
    })
}

/// # Errors
/// One line, where nothing can work in the budget.
pub fn refuse_small_budget(ram_bytes: u64) -> Result<(), String> {
    if ram_bytes >= RAM_MIN {
        return Ok(());
    }
    let (given, min) = (format_size(ram_bytes), format_size(RAM_MIN));
    Err(format!(
        "--ram {given} is too small to work; give at least {min}, the smallest"
    ))
}

/// The most of a budget that compressed pages may take, in bytes: programs need the rest to work in.
pub const fn compressed_max(ram_bytes: u64) -> u64 {
    ram_bytes / 4 * 3
}

/// What the tables of a tree are made for. `blocks` are those of the paths among the areas.
///
/// # Errors
/// One line, where a file or device has more blocks than there are slots for.
pub fn geometry(ram_bytes: u64, areas: &[AreaSpec], blocks: &[u64]) -> Result<Geometry, String> {
    let mut geometry = Geometry::default();
    for (wanted, blocks) in geometry.area_blocks.iter_mut().zip(blocks) {
        *wanted = *blocks;
    }
    let most = compressed_max(ram_bytes);
    let by_default = if blocks.is_empty() {
        most
    } else {
        ram_bytes * 2 / 5
    };
    let compressed = areas.iter().find_map(|spec| match spec {
        AreaSpec::Compressed { limit } => Some(limit.unwrap_or(by_default).min(most)),
        AreaSpec::Path(_) => None,
    });
    geometry.zpages = compressed.unwrap_or(0) / ZPAGE_BYTES as u64;
    let rooms = Layout::new(&geometry).device_slots;
    for ((spec, blocks), room) in areas::paths(areas).zip(blocks).zip(rooms) {
        if *blocks > room {
            return Err(format!(
                "--swap {0}: {1} is more than there are slots for (16T in all); give it as {0}:{2}G",
                spec.path.display(),
                format_size(blocks * PAGE_SIZE as u64),
                (room * PAGE_SIZE as u64) >> 30
            ));
        }
    }
    Ok(geometry)
}

fn make_pool(config: &RunConfig, open: &[OpenArea]) -> Result<(i32, Pool), String> {
    let blocks: Vec<_> = open.iter().map(|area| area.blocks).collect();
    let geometry = geometry(config.ram_bytes, &config.areas, &blocks)?;
    let (pool_fd, pool) = Pool::create(&geometry).map_err(no_pool)?;
    let header = pool.header();
    let pages = (config.ram_bytes / PAGE_SIZE as u64) as i64;
    header.supervisor.store(sys::getpid(), Ordering::Relaxed);
    header
        .pid_namespace
        .store(sys::pid_namespace(), Ordering::Relaxed);
    header.budget.store(pages, Ordering::Relaxed);
    header.limit.store(pages * 7 / 8, Ordering::Relaxed);
    header.limit_set.store(pages * 7 / 8, Ordering::Relaxed);
    header.zpages_limit.store(geometry.zpages, Ordering::Relaxed);
    header.workingset.start((pages / EPOCHS_IN_BUDGET).max(1) as u64);
    header.start_ns.store(sys::now_ns(), Ordering::Relaxed);
    header.fd_base.store(descriptor_base()? as u32, Ordering::Relaxed);
    let mut flags = 0;
    for (on, bit) in [
        (config.delivery == Delivery::Thread, flag::THREAD_DELIVERY),
        (config.eager, flag::EAGER),
        (!config.follow, flag::NO_FOLLOW),
        (config.allow_io_uring, flag::ALLOW_IO_URING),
        (
            config.closed_files.contains(&libc::STDERR_FILENO),
            flag::NO_STDERR,
        ),
    ] {
        flags |= if on { bit } else { 0 };
    }
    header.flags.store(flags, Ordering::Relaxed);
    if config.slots == SlotPolicy::Cache {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        header
            .slot_cache_floor
            .store(cpus * FREE_MIN_PER_CPU, Ordering::Relaxed);
    }
    let policy = Policy::ALL.iter().position(|policy| *policy == config.readahead);
    header
        .readahead
        .store(policy.unwrap_or_default() as u32, Ordering::Relaxed);
    header.page_cluster.store(config.page_cluster, Ordering::Relaxed);
    header.huge.store(config.huge as u32, Ordering::Relaxed);
    header
        .huge_swapin
        .store(config.huge_swapin as u32, Ordering::Relaxed);
    header
        .huge_swapout
        .store(config.huge_swapout as u32, Ordering::Relaxed);
    for (index, area) in open.iter().enumerate() {
        tier_files::describe(&pool, index, area)
            .map_err(|e| format!("--swap {}: {e}; name another place", area.name))?;
        tier_files::open_to_pages(&pool, index);
    }
    Ok((pool_fd, pool))
}

/// To be asked first: the kernel ends who makes a file longer than such a limit (SIGXFSZ), and the tables are a file in memory.
///
/// # Errors
/// One line, where there is one.
pub fn refuse_small_files() -> Result<(), String> {
    let limit = sys::soft_limit(libc::RLIMIT_FSIZE);
    if limit == libc::RLIM_INFINITY {
        return Ok(());
    }
    Err(format!(
        "files are limited to {} (ulimit -f, RLIMIT_FSIZE), which farpage's tables and swap files are not made for; \
         run `ulimit -f unlimited` before",
        format_size(limit)
    ))
}

/// # Errors
/// One line, where this process belongs to a tree already: its numbers are the same, and one of two budgets would not hold.
pub fn refuse_nesting() -> Result<(), String> {
    let said = std::env::var_os(OsStr::from_bytes(ENV_POOL.to_bytes())).unwrap_or_default();
    // A variable by itself may have come from elsewhere.
    let link = std::fs::read_link(Path::new("/proc/self/fd").join(said)).unwrap_or_default();
    let has_pool = link
        .as_os_str()
        .as_bytes()
        .starts_with(trees::POOL_LINK.as_bytes());
    // What `--no-follow` leaves out has the filter all the same.
    let has_filter = || descriptor_base().is_ok_and(|base| trap::is_protected(base + fd::COUNT - 1));
    if has_pool || has_filter() {
        return Err("this process is in the tree of another farpage run, and budgets do not nest; leave `farpage run` out (what is \
                    started here is in that budget), or start it outside"
            .to_owned());
    }
    Ok(())
}

/// What `farpage run` needs and could not have, why, and how to mend it.
fn no_start(what: &str, error: &io::Error) -> RunError {
    let fix = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => areas::MORE_FILES,
        Some(libc::ENOMEM | libc::ENOSPC) => "free some memory",
        _ => "`farpage doctor` may know the fix",
    };
    RunError::Setup(format!("cannot {what}: {error}; {fix}"))
}

fn no_pool(error: Errno) -> String {
    let fix = match error.0 {
        libc::ENOMEM => {
            "is the address space limited (ulimit -v, RLIMIT_AS)? farpage's tables need 8 GiB of that, though little memory: raise the limit, or lift it"
        }
        libc::EMFILE | libc::ENFILE => areas::MORE_FILES,
        _ => "`farpage doctor` may know the fix",
    };
    format!("cannot create the pool in memory: {error}; {fix}")
}

/// The inherited descriptors live just below the soft limit (or 1024, which select can still name).
///
/// # Errors
/// One line, where it leaves no room for them.
pub fn descriptor_base() -> Result<i32, String> {
    let top = sys::soft_limit(libc::RLIMIT_NOFILE).min(1024) as i32;
    if top < 48 {
        return Err(format!(
            "the limit of open files is {top}, farpage needs 48; raise it: ulimit -n 1024"
        ));
    }
    Ok(top - fd::COUNT)
}

/// The library as a sealed memory file: it needs no place on disk and is gone with the tree.
fn make_library(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    // SAFETY: creates a descriptor that nobody else owns.
    let raw = unsafe {
        libc::memfd_create(
            c"libfarpage_preload.so".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: fcntl on a descriptor of ours.
    unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) };
    Ok(file.into())
}

/// Starts the command. `given` are our descriptors and their places among the tree's, the pool first.
fn start(
    config: &RunConfig,
    pool: &Pool,
    given: &[(i32, i32)],
    open: &[OpenArea],
    signals: SignalState,
) -> Result<Child, RunError> {
    let base = pool.header().fd_base.load(Ordering::Relaxed) as i32;
    let pool_fd = given[0].0;
    let mut wanted: Vec<_> = given.iter().map(|&(from, which)| (from, base + which)).collect();
    wanted.extend(
        open.iter()
            .enumerate()
            .map(|(i, area)| (area.file.as_raw_fd(), base + fd::AREAS + i as i32)),
    );
    // The other numbers hold the pool meanwhile, so that no file of the program ever gets one of them: for reading, since a process that
    // took one for a swap file by mistake would write pages over it.
    let used = |number: i32| wanted.iter().any(|&(_, to)| to == number);
    let spare: Vec<_> = (base..base + fd::COUNT).filter(|&number| !used(number)).collect();
    let unwritable = File::open(format!("/proc/self/fd/{pool_fd}")).ok();
    let held = unwritable.as_ref().map_or(pool_fd, AsRawFd::as_raw_fd);
    wanted.extend(spare.into_iter().map(|number| (held, number)));
    let mut preload = OsString::from(format!("/proc/self/fd/{}", base + fd::LIBRARY));
    if let Some(theirs) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        preload.push(":");
        preload.push(theirs);
    }
    let mut command = Command::new(&config.command[0]);
    command.args(&config.command[1..]).env("LD_PRELOAD", preload);
    command.env(
        ENV_POOL.to_str().unwrap_or_default(),
        (base + fd::POOL).to_string(),
    );
    if std::env::var_os(SKIP_SBRK).is_none() {
        command.env(SKIP_SBRK, "1");
    }
    let closed = config.closed_files.clone();
    // SAFETY: between fork and exec only dup2, close and calls about signals are made. Sources may lie in the target range, so they
    // are first moved above it.
    unsafe {
        command.pre_exec(move || {
            for (from, _) in &mut wanted {
                *from = cvt(libc::fcntl(*from, libc::F_DUPFD_CLOEXEC, base + fd::COUNT).max(-1))
                    .or_else(|_| cvt(*from))?;
            }
            for &(from, to) in &wanted {
                cvt(libc::dup2(from, to))?;
            }
            for &number in &closed {
                libc::close(number);
            }
            layout::leave_legacy();
            signals.restore();
            Ok(())
        });
    }
    command
        .spawn()
        .map_err(|error| not_started(&config.command[0], &error))
}

/// Google's allocator (gperftools) takes its memory by mmap then, and not from the heap of the kernel's that nobody manages.
const SKIP_SBRK: &str = "TCMALLOC_SKIP_SBRK";

/// Why the kernel did not start the command, and how to mend it.
fn not_started(command: &OsStr, error: &io::Error) -> RunError {
    let name = command.display();
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            return RunError::NotFound(format!("{name}: not found; check the name, or give its path"));
        }
        Some(libc::EACCES | libc::EPERM) => "check its permissions, and whether its disk is mounted noexec",
        Some(libc::EAGAIN) => "raise the limit of processes: ulimit -u",
        Some(libc::ENOMEM) => "free some memory",
        Some(libc::E2BIG) => "give it fewer arguments or a smaller environment",
        _ => "check that it runs without farpage",
    };
    RunError::NotExecutable(format!("{name}: cannot be run: {error}; {fix}"))
}

fn cvt(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Time to the next look at the tree.
fn tick_ms(server: &Server) -> i32 {
    match server.is_busy() {
        true if server.is_shrinking() => 0,
        true => BUSY_TICK_MS,
        false => TICK_MS,
    }
}

/// What the supervisor looks at, again and again.
struct Rounds {
    bell: Bell,
    ledger: Ledger,
    server: Server,
    life: Life,
    looked_ns: u64,
}

impl Rounds {
    /// Whether the tree has ended, as far as the last tick knows and the kernel.
    fn is_over(&self) -> bool {
        self.ledger.live() == 0 && self.life.is_over()
    }

    /// Waits for the next tick, or until `other` can be read.
    fn wait(&mut self, other: i32) {
        self.bell.wait(other, tick_ms(&self.server));
    }

    fn tick(&mut self) {
        // First, for a command waits for it.
        self.server.tick();
        let now = sys::now_ns();
        if !self.server.is_busy() || now.saturating_sub(self.looked_ns) >= BUSY_LOOK_NS {
            self.looked_ns = now;
            self.ledger.tick();
        }
    }
}

/// Ticks until the child has ended; returns its exit code.
fn watch(child: &mut Child, rounds: &mut Rounds, on_tick: &mut Option<OnTick>) -> i32 {
    // SAFETY: opens a descriptor on our own child.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as i32, 0) } as i32;
    sys::run_soon(0);
    let mut next_second = sys::now_ns() + SECOND_NS;
    let mut notices = Notices::default();
    let is_first = sys::getpid() == 1;
    loop {
        rounds.wait(pidfd);
        if let Some(code) = exit_code(child) {
            forwarded::end();
            // SAFETY: our own descriptor.
            unsafe { libc::close(pidfd) };
            return code;
        }
        if is_first {
            reap_orphans(child.id() as i32);
        }
        rounds.tick();
        let pool = rounds.ledger.pool();
        notices.look(pool, sys::now_ns());
        if let Some(on_tick) = on_tick
            && sys::now_ns() >= next_second
        {
            // Not more of them where it was stopped meanwhile.
            next_second = (next_second + SECOND_NS).max(sys::now_ns());
            on_tick(&Snapshot::of(pool));
        }
    }
}

/// Of a child that has ended.
fn exit_code(child: &mut Child) -> Option<i32> {
    match child.try_wait() {
        Ok(status) => status.map(|status| {
            status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
        }),
        Err(_) => {
            sys::complain(&["farpage: how the command ended can't be told: somebody else has waited for it"]);
            Some(125)
        }
    }
}

/// The first process of a pid namespace, as of a container, is the parent of all whose own has ended: nobody else waits for them.
fn reap_orphans(child: i32) {
    loop {
        // SAFETY: asks who has ended, and waits for exactly that; all zero is a siginfo.
        unsafe {
            let mut ended: libc::siginfo_t = mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &raw mut ended, how) != 0 {
                return;
            }
            let pid = ended.si_pid();
            if pid == 0 || pid == child {
                return;
            }
            libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG);
        }
    }
}

/// The command has ended but left daemons: a background process keeps their books until they end. It holds nothing of whoever started
/// farpage: no directory, and no file, whose lock or end somebody may wait for.
fn keep_books_in_background(mut rounds: Rounds, callers_files: &[i32]) {
    let header = rounds.ledger.pool().header();
    // SAFETY: this process has one thread; the child only ticks and exits.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            // Before the command ends: who asks for the tree then finds who keeps its books.
            if child > 0 {
                header.supervisor.store(child, Ordering::Relaxed);
            }
            return;
        }
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        inherited::let_go();
        for &file in callers_files {
            libc::close(file);
        }
    }
    header.supervisor.store(sys::getpid(), Ordering::Relaxed);
    while !rounds.is_over() {
        rounds.wait(-1);
        rounds.tick();
    }
    rounds.server.end();
    std::process::exit(0);
}
