//! Whether swap areas can be used: what `farpage run` would find, without creating or changing anything there.

use std::path::Path;

use farpage::areas;
use farpage::pool::Layout;
use farpage::supervisor::{self, AreaSpec, PathSpec};
use farpage_core::units::{PAGE_SIZE, format_size};

use super::{Check, Status};
use crate::run::{IN_MEMORY, is_in_memory};
use crate::{probe, spec};

/// What is left of a disk should be as much, where no size was asked for.
const FREE_MIN_BYTES: u64 = 1 << 30;

/// A check for each of the areas that a run with these options would have, and for the tables that are made for them.
pub fn checks(ram_bytes: u64, given: &[AreaSpec]) -> Vec<Check> {
    let areas = match spec::areas(given).and_then(|areas| areas::refuse_too_many(&areas).map(|()| areas)) {
        Ok(areas) => areas,
        Err(why) => return vec![Check::refused("swap areas", &why)],
    };
    let mut checks = Vec::new();
    if matches!(areas[0], AreaSpec::Compressed { .. }) {
        checks.push(Check::ok("swap area", "compressed RAM, a part of the budget"));
    }
    let looked = areas::look_at_all(&areas);
    for (spec, found) in &looked {
        checks.push(area(spec, found));
        if found.is_ok() && spec.path.is_dir() {
            checks.push(direct_io(&spec.path));
        }
    }
    let blocks: Vec<_> = looked
        .iter()
        .map(|(_, found)| found.as_ref().map_or(0, |bytes| bytes / PAGE_SIZE as u64))
        .collect();
    checks.push(tables(ram_bytes, &areas, &blocks));
    checks
}

fn area(spec: &PathSpec, found: &Result<u64, String>) -> Check {
    let (name, shown) = ("swap area", spec.path.display());
    let elsewhere = "name a place on a disk: --swap compressed --swap DIR";
    match found {
        Err(why) => Check::refused(name, why.strip_prefix("--swap ").unwrap_or(why)),
        Ok(_) if is_in_memory(&spec.path) => {
            Check::bad(name, Status::Warn, format!("{shown}: {IN_MEMORY}"), elsewhere)
        }
        Ok(bytes) if spec.size.is_none() && *bytes < FREE_MIN_BYTES => {
            let little = format!("{shown}: only {} can be used", format_size(*bytes));
            Check::bad(name, Status::Warn, little, elsewhere)
        }
        Ok(bytes) => Check::ok(name, format!("{shown}: {} can be used", format_size(*bytes))),
    }
}

fn direct_io(directory: &Path) -> Check {
    let (name, shown) = ("direct I/O", directory.display());
    match probe::direct_io(directory) {
        Ok(needs) if needs.offset_align > 4096 || needs.memory_align > 4096 => Check::bad(
            name,
            Status::Warn,
            format!(
                "{shown}: wants alignment {} / {}",
                needs.memory_align, needs.offset_align
            ),
            "name a directory on another disk: --swap DIR",
        ),
        Ok(needs) => Check::ok(
            name,
            format!(
                "{shown}: unlinked file, alignment {} / {}",
                needs.memory_align, needs.offset_align
            ),
        ),
        Err(error) => Check::bad(
            name,
            Status::Warn,
            format!("{shown}: no unlinked file with O_DIRECT: {error}"),
            "name a directory on ext4, xfs or btrfs that you can write: --swap DIR",
        ),
    }
}

fn tables(ram_bytes: u64, areas: &[AreaSpec], blocks: &[u64]) -> Check {
    let name = "tables";
    let addresses = match supervisor::geometry(ram_bytes, areas, blocks) {
        Ok(geometry) => Layout::new(&geometry).addresses(),
        Err(why) => return Check::refused(name, &why),
    };
    let shown = format_size(addresses);
    match probe::address_space(addresses) {
        Ok(()) => Check::ok(name, format!("{shown} of addresses are free for them")),
        Err(error) => Check::bad(
            name,
            Status::Fail,
            format!("they need {shown} of addresses: {error}"),
            "lift the limit (ulimit -v unlimited), raise it by as much, or give --ram less",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: u64 = 64 << 20;

    fn of(path: &str, size: Option<u64>) -> AreaSpec {
        AreaSpec::Path(PathSpec {
            path: path.into(),
            size,
            priority: None,
        })
    }

    #[test]
    fn each_area_has_its_line() {
        let given = [
            AreaSpec::Compressed { limit: None },
            of("/no/such/directory", None),
            of("/etc/passwd", None),
            of("/dev/null", None),
        ];
        let checks = checks(RAM, &given);
        let found: Vec<_> = checks.iter().map(|check| (check.name, check.status)).collect();
        let refused = ("swap area", Status::Fail);
        let others = [refused; 3];
        assert_eq!(found[0], ("swap area", Status::Ok));
        assert_eq!(found[1..4], others);
        assert_eq!(found[4], ("tables", Status::Ok));
        assert!(
            checks[1..4]
                .iter()
                .all(|check| check.fix.is_some() && check.detail.starts_with('/'))
        );
    }

    #[test]
    fn what_is_wrong_with_all_of_them_is_one_line() {
        let many = vec![of("/tmp", None); 9];
        for given in [
            &many[..],
            &[of("/tmp", None), AreaSpec::Compressed { limit: None }],
        ] {
            let checks = checks(RAM, given);
            assert_eq!(checks.len(), 1);
            assert_eq!((checks[0].name, checks[0].status), ("swap areas", Status::Fail));
        }
    }

    #[test]
    fn tables_for_too_large_a_device_are_refused() {
        let check = tables(RAM, &[of("/dev/large", None)], &[1 << 33]);
        assert_eq!(check.status, Status::Fail);
        assert!(
            check
                .fix
                .is_some_and(|fix| fix.starts_with("give it as /dev/large:"))
        );
    }
}
