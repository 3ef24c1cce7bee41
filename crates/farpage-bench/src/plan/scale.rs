//! `scale`: from the least RAM to a great deal of it, as far as the machine has room. What is left out is told.

use farpage_core::units::format_size;

use super::{Abilities, Against, Comparison, FARPAGE, NAMED, RAM_MIN, Sizes, backings, of_workload};
use crate::names::{Backing, Workload};
use crate::plan::Side;
use crate::side::compressed_bytes;

/// The most RAM and data, where nothing else is asked for.
pub const RAM_MAX: u64 = 16 << 30;
const DATA_MAX: u64 = 64 << 30;
/// From one step of RAM to the next.
const STEP: u64 = 4;
/// Data per RAM below which hardly anything would be swapped: then the step is left out.
const DATA_MIN: f64 = 1.5;

/// With less RAM and four times the data, all of it in compressed RAM, farpage says that all swap is full: what it keeps free is as
/// much as the room that compressing makes.
const COMPRESSED_RAM_MIN: u64 = 64 << 20;

/// What the machine has to spare, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub ram: u64,
    pub disk: u64,
}

impl Room {
    /// Others need some too: three quarters of the RAM, half of the disk.
    fn usable(self) -> (u64, u64) {
        (self.ram / 4 * 3, self.disk / 2)
    }

    /// How much of `wanted` data a program in so much RAM can have; `None` if that is next to none.
    fn data(self, backing: Backing, ram_bytes: u64, wanted: u64, incompressible: bool) -> Option<u64> {
        let (ram, disk) = self.usable();
        let room = match backing {
            Backing::Compressed => ram
                .checked_sub(ram_bytes + compressed_bytes(ram_bytes, wanted, incompressible))
                .map(|_| wanted),
            Backing::File | Backing::Memory => (ram_bytes <= ram).then_some(ram_bytes + disk),
        };
        let data = room?.min(wanted);
        (data as f64 >= ram_bytes as f64 * DATA_MIN).then_some(data)
    }
}

/// Threads beside the kernel, in no more RAM than by name; then farpage alone with RAM from the least to that asked for, in steps of
/// four times: its start, and what a fault costs from a file and in compressed RAM.
pub fn of_scale(
    against: &[Against],
    (sizes, incompressible): (Sizes, bool),
    able: &Abilities,
    notes: &mut Vec<String>,
    comparisons: &mut Vec<Comparison>,
) {
    let threads = Sizes {
        ram_bytes: sizes.ram_bytes.min(NAMED.0),
        ..sizes
    };
    let found = backings(Workload::Threads, able, notes);
    of_workload(Workload::Threads, against, threads, &found, comparisons);
    let steps = core::iter::successors(Some(RAM_MIN), |bytes| Some(STEP * bytes));
    let steps = steps.take_while(|bytes| *bytes <= sizes.ram_bytes);
    let steps: Vec<_> = steps.map(|ram_bytes| Sizes { ram_bytes, ..sizes }).collect();
    // All of them before the disk has anything to write back.
    let starts = steps
        .iter()
        .map(|sizes| sizes.comparison(Workload::Startup, Backing::File, vec![Side::Ram, FARPAGE]));
    comparisons.extend(starts);
    for sizes in steps {
        let ram_bytes = sizes.ram_bytes;
        for backing in [Backing::File, Backing::Compressed] {
            if backing == Backing::Compressed && ram_bytes < COMPRESSED_RAM_MIN {
                let (ram, least) = (format_size(ram_bytes), format_size(COMPRESSED_RAM_MIN));
                notes.push(format!(
                    "scale, compressed: {ram} left out: four times as much data does not fit below {least}"
                ));
                continue;
            }
            let mut step = sizes.comparison(Workload::Faults, backing, vec![FARPAGE]);
            let wanted = step.data_bytes.min(DATA_MAX);
            let (ram, of) = (format_size(ram_bytes), format_size(step.data_bytes));
            let has = format!(
                "the machine has {} of RAM and {} of disk to spare",
                format_size(able.room.ram),
                format_size(able.room.disk)
            );
            match able.room.data(backing, ram_bytes, wanted, incompressible) {
                Some(data) => {
                    if data < step.data_bytes {
                        notes.push(format!(
                            "scale, {}: {ram} with {} of data in place of {of}: {has}",
                            backing.name(),
                            format_size(data)
                        ));
                    }
                    step.data_bytes = data;
                    comparisons.push(step);
                }
                None => notes.push(format!(
                    "scale, {}: {ram} with {of} of data left out: {has}",
                    backing.name()
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::plan::tests::{able, config};

    #[test]
    fn scale_goes_up_to_the_ram_asked_for() {
        let mut config = config(&["scale"]);
        config.ram_bytes = Some(300 << 20);
        let plan = plan(&config, &able()).expect("a plan");
        assert_eq!(plan.rounds, 1);
        let (threads, steps): (Vec<_>, Vec<_>) = plan
            .comparisons
            .iter()
            .partition(|one| one.workload == Workload::Threads);
        let threads: Vec<_> = threads.iter().map(|one| (one.backing, one.ram_bytes)).collect();
        assert_eq!(
            threads,
            [(Backing::File, 128 << 20), (Backing::Compressed, 128 << 20)]
        );
        let sizes: Vec<_> = steps
            .iter()
            .map(|one| (one.workload.name(), one.ram_bytes >> 20))
            .collect();
        let starts = [16, 64, 256].map(|mib| ("startup", mib));
        let faults = [16, 64, 64, 256, 256].map(|mib| ("faults", mib));
        assert_eq!(sizes, [&starts[..], &faults[..]].concat());
    }

    #[test]
    fn what_there_is_no_room_for_is_told() {
        let mut able = able();
        able.room = Room {
            ram: 24 << 30,
            disk: 56 << 30,
        };
        let plan = plan(&config(&["scale"]), &able).expect("a plan");
        let largest = plan
            .comparisons
            .iter()
            .rfind(|one| one.workload == Workload::Faults);
        let largest = largest.map(|one| (one.backing, one.ram_bytes >> 30, one.data_bytes >> 30));
        assert_eq!(largest, Some((Backing::File, 16, 44)));
        let notes: Vec<_> = plan
            .notes
            .iter()
            .filter(|note| note.starts_with("scale"))
            .collect();
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].contains("compressed: 16 MiB left out"), "{notes:?}");
        assert!(
            notes[1].contains("16 GiB with 44 GiB of data in place of 64 GiB"),
            "{notes:?}"
        );
        assert!(
            notes[2].contains("compressed: 16 GiB with 64 GiB of data left out"),
            "{notes:?}"
        );
    }

    #[test]
    fn a_small_machine_has_small_steps() {
        let room = Room {
            ram: 1 << 30,
            disk: 1 << 30,
        };
        let data = |backing, ram: u64, wanted: u64| {
            room.data(backing, ram << 20, wanted << 20, false)
                .map(|bytes| bytes >> 20)
        };
        assert_eq!(data(Backing::File, 256, 1024), Some(768));
        assert_eq!(data(Backing::File, 1024, 4096), None);
        assert_eq!(data(Backing::Compressed, 256, 1024), Some(1024));
        assert_eq!(data(Backing::Compressed, 512, 2048), None);
    }
}
