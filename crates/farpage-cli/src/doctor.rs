//! `farpage doctor`: what `farpage run` needs from the machine, with the fix beside each.
//!
//! FAIL stands in the way of `farpage run`; WARN takes a part of it away or makes trouble likely.

mod swap;

use std::fs;
use std::io;

use farpage::join::layout;
use farpage::pool::{MANAGED_BASE, MANAGED_LEN};
use farpage::supervisor;
use farpage::sys::kernel_version;
use farpage_core::units::format_size;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::elf::{self, Credentials};
use crate::limits::Available;
use crate::needs::{NEEDS, Need};
use crate::probe::{self, Trouble};
use crate::{Failure, limits, print, run};

const SCHEMA: &str = "farpage.doctor.1";
/// The first Linux with UFFDIO_MOVE.
const KERNEL_MIN: (u32, u32) = (6, 8);
/// The kernel's default; fewer is a choice somebody made.
const MAX_MAP_COUNT_MIN: u64 = 65_530;
/// Where managed memory lives in every process.
const RANGE_START: usize = MANAGED_BASE as usize;
const RANGE_END: usize = RANGE_START + MANAGED_LEN as usize;
const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    fn bad(name: &'static str, status: Status, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name,
            status,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }

    fn trouble(name: &'static str, status: Status, trouble: Trouble) -> Self {
        Self::bad(name, status, trouble.what, trouble.fix)
    }

    /// What `farpage run` says when it refuses: what and why, `; `, how to mend it.
    fn refused(name: &'static str, line: &str) -> Self {
        let (what, fix) = line.rsplit_once("; ").unwrap_or((line, "see farpage run --help"));
        Self::bad(name, Status::Fail, what, fix)
    }

    /// A probe that either works or stands in the way.
    fn probed<T>(name: &'static str, result: io::Result<T>, works: &str, status: Status, fix: &str) -> Self {
        match result {
            Ok(_) => Self::ok(name, works),
            Err(error) => Self::bad(name, status, error.to_string(), fix),
        }
    }
}

/// Runs all checks; exit code 1 if one failed.
pub fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    probe::survive_file_limit();
    let mut checks = vec![
        architecture(),
        kernel(),
        library(),
        nesting(),
        userfaultfd(),
        page_move(),
        full_userfaultfd(),
    ];
    checks.extend(NEEDS.iter().map(needed));
    checks.extend([
        proc_files(),
        address_layout(),
        address_range(),
        overcommit(),
        address_limits(),
        file_sizes(),
        descriptors(),
        max_map_count(),
    ]);
    let available = limits::available();
    let ram_bytes = available
        .as_ref()
        .map_or(0, |available| args.ram.resolve(available.bytes));
    checks.push(budget(&available, ram_bytes));
    checks.extend(swap::checks(ram_bytes, &args.swap));
    checks.extend([memory_limit(), huge_pages(), io_uring()]);
    if let Some(command) = &args.command {
        checks.push(match elf::inspect(command, Credentials::current()) {
            Ok(path) => Check::ok(
                "command",
                format!("{}: dynamically linked with glibc", path.display()),
            ),
            Err(refusal) => Check::refused("command", &refusal.to_string()),
        });
    }
    let healthy = checks.iter().all(|check| check.status != Status::Fail);
    let text = if args.json {
        format!("{:#}", as_json(&checks, healthy))
    } else {
        as_text(&checks, healthy)
    };
    let _ = print(&text);
    Ok(u8::from(!healthy))
}

fn as_text(checks: &[Check], healthy: bool) -> String {
    let mut text = String::new();
    for Check {
        name,
        status,
        detail,
        fix,
    } in checks
    {
        text += &format!("{:<5} {name:<17} {detail}\n", word(*status).to_uppercase());
        if let Some(fix) = fix {
            text += &format!("{:<23} fix: {fix}\n", "");
        }
    }
    text + if healthy {
        "farpage run can work here"
    } else {
        "farpage run cannot work here: mend what is marked FAIL"
    }
}

fn as_json(checks: &[Check], healthy: bool) -> Value {
    let check = |check: &Check| {
        json!({
            "name": check.name,
            "status": word(check.status),
            "detail": check.detail,
            "fix": check.fix,
        })
    };
    json!({ "schema": SCHEMA, "ok": healthy, "checks": checks.iter().map(check).collect::<Vec<_>>() })
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "fail",
    }
}

fn architecture() -> Check {
    match std::env::consts::ARCH {
        arch @ "x86_64" => Check::ok("architecture", arch),
        arch => Check::bad("architecture", Status::Fail, arch, "use an x86_64 machine"),
    }
}

fn kernel() -> Check {
    let release = read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    let detail = format!("Linux {release} (6.8 or newer is needed, for UFFDIO_MOVE)");
    // A distribution may have carried UFFDIO_MOVE back into an older kernel.
    if kernel_version(&release) >= Some(KERNEL_MIN) || probe::move_works().is_ok() {
        Check::ok("kernel", detail)
    } else {
        Check::bad("kernel", Status::Fail, detail, "boot Linux 6.8 or newer")
    }
}

fn library() -> Check {
    match run::refuse_without_library() {
        Ok(()) => Check::ok("preload library", "inside this binary"),
        Err(why) => Check::refused("preload library", &why),
    }
}

fn userfaultfd() -> Check {
    if let Some(trouble) = probe::why_no_userfaultfd(false) {
        return Check::trouble("userfaultfd", Status::Fail, trouble);
    }
    let bits = probe::userfaultfd_features().unwrap_or(0);
    let names: Vec<_> = probe::FEATURE_NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| bits >> bit & 1 == 1)
        .map(|(_, name)| *name)
        .collect();
    Check::ok("userfaultfd", format!("UFFD_USER_MODE_ONLY; {}", names.join(" ")))
}

fn page_move() -> Check {
    // Without a userfaultfd there is nothing to try it on, and the remedy is that of the line above.
    let fix =
        probe::why_no_userfaultfd(false).map_or("boot Linux 6.8 or newer".to_owned(), |trouble| trouble.fix);
    Check::probed(
        "UFFDIO_MOVE",
        probe::move_works(),
        "moved a page",
        Status::Fail,
        &fix,
    )
}

/// Only `--delivery thread` needs it, so that its absence is no failure.
fn full_userfaultfd() -> Check {
    match (probe::full_userfaultfd(), probe::why_no_userfaultfd(true)) {
        (Ok(by), _) => Check::ok("delivery thread", format!("full userfaultfd by {by}")),
        (Err(_), Some(trouble)) => Check::trouble("delivery thread", Status::Warn, trouble),
        (Err(error), None) => Check::bad(
            "delivery thread",
            Status::Warn,
            error.to_string(),
            "use --delivery signal",
        ),
    }
}

fn needed(need: &Need) -> Check {
    match need.trouble() {
        None => Check::ok(need.name, need.works),
        Some(trouble) => Check::trouble(need.name, Status::Fail, trouble),
    }
}

fn proc_files() -> Check {
    for file in ["/proc/self/maps", "/proc/self/pagemap", "/proc/self/status"] {
        if let Err(error) = fs::File::open(file) {
            let fix = "mount -t proc proc /proc";
            return Check::bad("/proc", Status::Fail, format!("{file}: {error}"), fix);
        }
    }
    Check::ok("/proc", "mounted, pagemap readable")
}

fn address_layout() -> Check {
    match layout::refuse_legacy() {
        Ok(()) if layout::is_asked_for() => {
            Check::ok("address layout", "legacy here (setarch -L), normal for commands")
        }
        Ok(()) => Check::ok("address layout", "normal"),
        Err(why) => Check::refused("address layout", &why),
    }
}

/// Looks at the ends of the range and at the list of mappings: to map all of it would ask RLIMIT_AS for
/// room that farpage never takes.
fn address_range() -> Check {
    let name = "address range";
    let shown = format!("{RANGE_START:#x} to {RANGE_END:#x}");
    if layout::refuse_legacy().is_err() || layout::is_asked_for() {
        return Check::ok(name, format!("{shown}, not looked at in the legacy layout"));
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let fix = "do not run inside valgrind or a sanitizer, which take it";
    if let Some(line) = maps.lines().find(|line| lies_in_range(line)) {
        return Check::bad(name, Status::Fail, format!("{shown} is taken: {line}"), fix);
    }
    let ends = [RANGE_START, RANGE_END - PAGE_BYTES];
    let result = ends
        .iter()
        .try_for_each(|end| probe::address_range_free(*end, PAGE_BYTES));
    Check::probed(name, result, &format!("{shown} is free"), Status::Fail, fix)
}

/// Whether a line of /proc/self/maps, `start-end ...`, overlaps the managed range.
fn lies_in_range(line: &str) -> bool {
    let Some((start, rest)) = line.split_once('-') else {
        return false;
    };
    let end = rest.split(' ').next().unwrap_or_default();
    match (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) {
        (Ok(start), Ok(end)) => start < RANGE_END && end > RANGE_START,
        _ => false,
    }
}

fn overcommit() -> Check {
    match read_trimmed("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => Check::bad(
            "overcommit",
            Status::Warn,
            "vm.overcommit_memory=2: memory beyond CommitLimit is refused, whatever farpage could swap out",
            "sysctl vm.overcommit_memory=0",
        ),
        Some(mode) => Check::ok("overcommit", format!("vm.overcommit_memory={mode}")),
        None => Check::ok("overcommit", "vm.overcommit_memory cannot be read"),
    }
}

fn address_limits() -> Check {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    for (name, option) in [("Max address space", "-v"), ("Max data size", "-d")] {
        if let Some(bytes) = soft_limit(&limits, name) {
            let detail = format!("{name}: {}; a program cannot grow beyond it", format_size(bytes));
            return Check::bad(
                "address limits",
                Status::Warn,
                detail,
                format!("ulimit {option} unlimited"),
            );
        }
    }
    Check::ok("address limits", "RLIMIT_AS and RLIMIT_DATA unlimited")
}

fn file_sizes() -> Check {
    match supervisor::refuse_small_files() {
        Ok(()) => Check::ok("file sizes", "RLIMIT_FSIZE unlimited"),
        Err(why) => Check::refused("file sizes", &why),
    }
}

fn descriptors() -> Check {
    match supervisor::descriptor_base() {
        Ok(base) => Check::ok("descriptors", format!("farpage's own are those from {base} on")),
        Err(why) => Check::refused("descriptors", &why),
    }
}

/// The soft limit of that row in /proc/self/limits; `None` if unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix(name))?;
    row.split_whitespace().next()?.parse().ok()
}

fn max_map_count() -> Check {
    let count = read_trimmed("/proc/sys/vm/max_map_count").and_then(|text| text.parse::<u64>().ok());
    match count {
        Some(count) if count < MAX_MAP_COUNT_MIN => Check::bad(
            "mappings",
            Status::Warn,
            format!("vm.max_map_count={count}: programs with many mappings may run out"),
            format!("sysctl vm.max_map_count={MAX_MAP_COUNT_MIN}"),
        ),
        Some(count) => Check::ok("mappings", format!("vm.max_map_count={count}")),
        None => Check::ok("mappings", "vm.max_map_count cannot be read"),
    }
}

/// Of so many bytes of what is available, or why that is not known.
fn budget(available: &Result<Available, String>, bytes: u64) -> Check {
    let name = "budget";
    let possible = available
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|available| supervisor::refuse_small_budget(bytes).map(|()| available));
    match possible.map(|available| available.too_near(bytes)) {
        Ok(Some(trouble)) => Check::trouble(name, Status::Warn, trouble),
        Ok(None) => Check::ok(name, format_size(bytes).to_string()),
        Err(why) => Check::refused(name, &why),
    }
}

fn nesting() -> Check {
    match supervisor::refuse_nesting() {
        Ok(()) => Check::ok("tree", "in none of another farpage run"),
        Err(why) => Check::refused("tree", &why),
    }
}

fn memory_limit() -> Check {
    let ram = limits::ram_bytes().map_or("unknown".to_owned(), |bytes| format_size(bytes).to_string());
    match limits::cgroup_limit() {
        Some(limit) => Check::ok(
            "memory limit",
            format!(
                "RAM {ram}, cgroup limit {} ({})",
                format_size(limit.bytes),
                limit.file.display()
            ),
        ),
        None => Check::ok("memory limit", format!("RAM {ram}, no cgroup limit")),
    }
}

fn huge_pages() -> Check {
    let setting = read_trimmed("/sys/kernel/mm/transparent_hugepage/enabled");
    let text = match setting {
        Some(setting) if setting.contains("[never]") => {
            format!("{setting}: --huge has no effect until `madvise` or `always` is written to it")
        }
        Some(setting) => format!("{setting} (--huge madvise or always; never by default)"),
        None => "not in this kernel".to_owned(),
    };
    Check::ok("huge pages", text)
}

/// No failure: programs do without it, and farpage refuses it to them by default.
fn io_uring() -> Check {
    match probe::io_uring() {
        Ok(()) => Check::ok(
            "io_uring",
            "allowed here (programs get ENOSYS unless --allow-io-uring)",
        ),
        Err(error) => Check::ok("io_uring", format!("not allowed here ({error}); not needed")),
    }
}

fn read_trimmed(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_kernel() {
        assert!(kernel_version("6.18.44") >= Some(KERNEL_MIN));
        assert!(kernel_version("5.15.0") < Some(KERNEL_MIN) && None < Some(KERNEL_MIN));
    }

    #[test]
    fn limits_of_proc() {
        let text = "Limit  Soft Limit  Hard Limit  Units
\
                    Max open files            20000  20000  files
\
                    Max address space  unlimited  unlimited  bytes
";
        assert_eq!(soft_limit(text, "Max open files"), Some(20_000));
        assert_eq!(soft_limit(text, "Max address space"), None);
    }

    #[test]
    fn mappings_in_the_range_are_seen() {
        let line = |start: usize, end: usize| format!("{start:x}-{end:x} rw-p 00000000 00:00 0 [anon]");
        assert!(lies_in_range(&line(RANGE_START - 4096, RANGE_START + 4096)));
        assert!(lies_in_range(&line(RANGE_START + 4096, RANGE_START + 8192)));
        assert!(!lies_in_range(&line(RANGE_END, RANGE_END + 4096)));
        assert!(!lies_in_range(
            "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1 /lib/x.so"
        ));
    }

    #[test]
    fn whatever_is_not_ok_has_a_fix() {
        let checks = [
            kernel(),
            userfaultfd(),
            full_userfaultfd(),
            overcommit(),
            file_sizes(),
            budget(&limits::available(), 4096),
            Check::refused("command", "x: statically linked; use a dynamic build"),
        ];
        let checks: Vec<_> = checks
            .into_iter()
            .chain(NEEDS.iter().map(needed))
            .chain(swap::checks(64 << 20, &[]))
            .collect();
        assert!(
            checks
                .iter()
                .all(|check| (check.status == Status::Ok) == check.fix.is_none()),
            "{checks:#?}"
        );
        assert_eq!(checks[6].fix.as_deref(), Some("use a dynamic build"));
    }

    #[test]
    fn report_says_which_and_whether() {
        let checks = [
            Check::ok("kernel", "Linux 6.18"),
            Check::bad("userfaultfd", Status::Fail, "none", "allow it"),
        ];
        let text = as_text(&checks, false);
        assert_eq!(text.lines().count(), 4);
        assert!(text.starts_with("OK    kernel "));
        assert!(text.contains("\nFAIL  userfaultfd ") && text.contains("fix: allow it"));
        let value = as_json(&checks, false);
        assert_eq!(value["checks"][1]["status"], "fail");
        assert_eq!(value["ok"], false);
        assert!(value["checks"][0]["fix"].is_null());
    }
}
