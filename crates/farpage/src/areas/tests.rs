use std::ffi::OsString;
use std::os::unix::fs::{FileExt, symlink};
use std::thread;
use std::time::Duration;

use super::*;

/// What is locked by nobody but a child that another test of this process is starting: until its exec it has our descriptors, and with
/// them the lock of a file that was closed here.
fn once_executed<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for _ in 0..1000 {
        match attempt() {
            Err(why) if why.contains("in use by another") => thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
    attempt()
}

fn spec(path: &Path, size: Option<u64>) -> PathSpec {
    PathSpec {
        path: path.to_path_buf(),
        size,
        priority: None,
    }
}

#[test]
fn only_what_was_not_reserved_is_given_back() {
    let directory = std::env::temp_dir();
    let grows = open_path(&spec(&directory, Some(AREA_MIN))).unwrap();
    assert_eq!(grows.traits & (trait_of::PUNCHES | trait_of::DISCARDS), 0);
    let whole = open_path(&spec(&directory, None)).unwrap();
    assert_ne!(whole.traits & trait_of::PUNCHES, 0);
}

/// The sizes and contents of all files in a directory, by name.
fn contents(directory: &Path) -> Vec<(OsString, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn looking_finds_what_opening_would_and_changes_nothing() {
    let directory = std::env::temp_dir().join(format!("farpage-look-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let place = |name: &str| directory.join(name);
    fs::write(place("empty"), "").unwrap();
    fs::write(place("zeros"), vec![0; 2 << 20]).unwrap();
    fs::write(place("short"), vec![0; 2 << 10]).unwrap();
    fs::write(place("data"), "precious".repeat(1 << 18)).unwrap();
    let before = contents(&directory);
    let look = |name: &str, size| {
        let specs = [AreaSpec::Path(spec(&place(name), size))];
        once_executed(|| look_at_all(&specs).remove(0).1)
    };
    for name in ["", "empty", "free"] {
        assert_eq!(look(name, Some(3 << 20)), Ok(3 << 20), "{name}");
        assert!(look(name, None).is_ok_and(|bytes| bytes > 3 << 20), "{name}");
    }
    assert_eq!(look("zeros", None), Ok(2 << 20));
    let refused = [
        ("", Some(1 << 60)),
        ("", Some(4096)),
        ("no/such", None),
        ("zeros", Some(3 << 20)),
        ("zeros:x", None),
        ("short", None),
        ("data", None),
    ];
    for (name, size) in refused {
        let why = look(name, size).expect_err(name);
        assert!(why.starts_with("--swap ") && why.contains("; "), "{why}");
        // How much is free may have changed in between.
        if size != Some(1 << 60) {
            let opened = once_executed(|| open_path(&spec(&place(name), size)));
            assert_eq!(opened.err(), Some(why), "{name}");
        }
    }
    let twice = [
        AreaSpec::Path(spec(&place("zeros"), None)),
        AreaSpec::Path(spec(&place("zeros"), None)),
    ];
    let second = once_executed(|| {
        let mut found = look_at_all(&twice);
        found[0].1.clone().map(|_| found.remove(1).1)
    });
    assert!(
        matches!(&second, Ok(Err(why)) if why.contains("in use")),
        "{second:?}"
    );
    assert_eq!(contents(&directory), before);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_is_reserved_for_one_is_not_there_for_the_next() {
    let directory = std::env::temp_dir();
    let free = free_bytes(&unlinked_in(&directory).unwrap(), &directory).unwrap();
    let half = AreaSpec::Path(spec(&directory, Some(free / 5 * 3)));
    let specs = [half.clone(), AreaSpec::Compressed { limit: None }, half];
    let found = look_at_all(&specs);
    assert!(
        found.len() == 2 && found[0].1.is_ok() && found[1].1.is_err(),
        "{found:?}"
    );
}

/// A device that had been used once was refused the next time, and for good where the tree's end was a power cut: what was nobody's
/// before is so afterwards, since nothing is written there.
#[test]
fn what_was_nobodys_before_is_so_afterwards() {
    let path = std::env::temp_dir().join(format!("farpage-head-{}", std::process::id()));
    let mut formatted = vec![0; 3 << 20];
    formatted[PAGE_SIZE - SIGNATURE.len()..PAGE_SIZE].copy_from_slice(SIGNATURE);
    for before in [vec![0; 3 << 20], formatted] {
        fs::write(&path, &before).unwrap();
        for _ in 0..2 {
            let spec = spec(&path, None);
            let area = once_executed(|| open_path(&spec)).expect("nobody's data");
            assert_eq!((area.start, area.blocks), (1 << 20, 512));
            area.file.unlock().unwrap();
            let direct = OpenOptions::new().write(true).open(&path).unwrap();
            direct.write_all_at(&[7; 96 << 10], area.start).unwrap();
        }
    }
    fs::remove_file(&path).unwrap();
}

/// An unmounted btrfs was taken for nobody's data: its mark is the first thing on its device, 64 KiB from the beginning.
#[test]
fn data_behind_an_empty_beginning_is_somebodys() {
    let path = std::env::temp_dir().join(format!("farpage-btrfs-{}", std::process::id()));
    let mut image = vec![0; 3 << 20];
    image[0x10040..0x10048].copy_from_slice(b"_BHRfS_M");
    fs::write(&path, &image).unwrap();
    let refused = once_executed(|| open_path(&spec(&path, None))).err();
    assert!(
        refused.is_some_and(|why| why.contains("holds data")),
        "somebody's"
    );
    assert!(fs::read(&path).unwrap() == image);
    fs::remove_file(&path).unwrap();
}

/// A link lost its name, and the file it leads to kept its own, with what was swapped to it.
#[test]
fn an_empty_file_loses_its_own_name_or_keeps_all() {
    let directory = std::env::temp_dir().join(format!("farpage-links-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let place = |name: &str| directory.join(name);
    let open = |name: &str, size| once_executed(|| open_path(&spec(&place(name), Some(size))));
    fs::write(place("own"), "").unwrap();
    symlink("own", place("link")).unwrap();
    let refused = open("link", 1 << 60).err();
    assert!(refused.is_some_and(|why| why.contains("free")) && place("own").exists());
    let area = open("link", 2 << 20).expect("an empty file");
    assert!(area.is_unlinked() && !place("own").exists());
    fs::write(place("one"), "").unwrap();
    fs::hard_link(place("one"), place("other")).unwrap();
    let refused = open("one", 2 << 20).err();
    assert!(refused.is_some_and(|why| why.contains("hard links")) && place("one").exists());
    fs::remove_dir_all(&directory).unwrap();
}

/// `compresed` was a new swap file in the current directory.
#[test]
fn a_word_that_names_nothing_is_no_new_file() {
    let refused = open_path(&spec(Path::new("compresed"), Some(2 << 20))).err();
    assert!(refused.is_some_and(|why| why.contains("./compresed")));
    assert!(!Path::new("compresed").exists());
}

#[test]
fn a_word_behind_an_existing_place_was_meant_as_a_size() {
    assert_eq!(misread_size(Path::new("/tmp:banana")), Some("banana"));
    assert_eq!(misread_size(Path::new("/tmp:-1")), Some("-1"));
    assert_eq!(misread_size(Path::new("/no/such/place:x")), None);
    assert_eq!(misread_size(Path::new("/tmp/file")), None);
}
