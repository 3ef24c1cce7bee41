//! `--swap` and `farpage swapon`: how a `SPEC` is read, and which areas are meant.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use farpage::supervisor::{AreaSpec, PathSpec};
use farpage_core::units::parse_size;

/// The highest priority, as of the kernel's swap areas.
const PRIORITY_MAX: u16 = 32767;
const PRIORITY: &str = "pri=";
const NO_SIZE: &str = "a size of nothing; give one such as 512M or 64G, or none";

/// Where pages go by default once compressed RAM is full.
pub const DEFAULT_SWAP_DIR: &str = "/var/tmp";

/// The swap areas of a run: those `given` as options, else those of the environment, else the default.
///
/// # Errors
/// One line, if they can't be read or are not used in the order that they are named in.
pub fn areas(given: &[AreaSpec]) -> Result<Vec<AreaSpec>, String> {
    match env::var_os("FARPAGE_SWAP") {
        Some(list) if given.is_empty() => {
            let areas = parse_swap_list(&list).map_err(|why| format!("FARPAGE_SWAP: {why}"))?;
            in_order(areas)
        }
        _ => in_order(given.to_vec()),
    }
}

fn in_order(areas: Vec<AreaSpec>) -> Result<Vec<AreaSpec>, String> {
    if areas.is_empty() {
        return Ok(vec![
            AreaSpec::Compressed { limit: None },
            AreaSpec::Path(PathSpec {
                path: PathBuf::from(DEFAULT_SWAP_DIR),
                size: None,
                priority: None,
            }),
        ]);
    }
    let is_compressed = |area: &AreaSpec| matches!(area, AreaSpec::Compressed { .. });
    match areas.iter().filter(|area| is_compressed(area)).count() {
        0 => Ok(areas),
        1 if is_compressed(&areas[0]) => Ok(areas),
        1 => Err("--swap compressed: compressed RAM comes before all files; name it first".to_owned()),
        _ => Err("--swap compressed: given twice, but there is one compressed pool; give it once".to_owned()),
    }
}

/// One `SPEC`. A colon that is not followed by a size belongs to the path, so does a comma that `pri=N` does not follow.
pub fn parse_swap(spec: OsString) -> Result<AreaSpec, String> {
    let (spec, priority) = split_priority(spec)?;
    if let Some(text) = spec.to_str() {
        if let Some(scheme) = ["redis://", "rediss://", "valkey://"]
            .iter()
            .find(|s| text.starts_with(**s))
        {
            return Err(format!(
                "swap to {scheme} is not built yet; use compressed or PATH"
            ));
        }
        let limit = match text.strip_prefix("compressed:") {
            Some(size) => Some(Some(positive_size(size)?)),
            None => (text == "compressed").then_some(None),
        };
        if let Some(limit) = limit {
            return match priority {
                None => Ok(AreaSpec::Compressed { limit }),
                Some(_) => Err("compressed RAM comes before all files; give pri=N to paths only".to_owned()),
            };
        }
    }
    let (path, size) = match split_size(&spec) {
        Some((path, 0)) => return Err(format!("{}: {NO_SIZE}", path.display())),
        Some((path, size)) => (path, Some(size)),
        None => (PathBuf::from(spec), None),
    };
    if path.as_os_str().is_empty() {
        return Err("the path is empty; use compressed[:SIZE] or PATH[:SIZE][,pri=N]".to_owned());
    }
    Ok(AreaSpec::Path(PathSpec { path, size, priority }))
}

/// Splits `SPEC,pri=N`.
fn split_priority(spec: OsString) -> Result<(OsString, Option<u16>), String> {
    let bytes = spec.as_bytes();
    let comma = bytes.iter().rposition(|byte| *byte == b',');
    let Some((comma, number)) =
        comma.and_then(|comma| Some((comma, bytes[comma + 1..].strip_prefix(PRIORITY.as_bytes())?)))
    else {
        return Ok((spec, None));
    };
    let number = String::from_utf8_lossy(number);
    match number.parse() {
        Ok(priority) if priority <= PRIORITY_MAX => {
            Ok((OsString::from_vec(bytes[..comma].to_vec()), Some(priority)))
        }
        _ => Err(format!(
            "{PRIORITY}{number}: no priority; give a number from 0 to {PRIORITY_MAX}"
        )),
    }
}

fn positive_size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err(NO_SIZE.to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(format!("{text}: {why}")),
    }
}

/// Splits `PATH:SIZE`; `None` if no size follows the last colon, or a number that is part of a name (`pci-0000:00:10.0-scsi-0:0:0:0`).
fn split_size(spec: &OsStr) -> Option<(PathBuf, u64)> {
    let bytes = spec.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    let size = std::str::from_utf8(&bytes[colon + 1..]).ok()?;
    if size.bytes().all(|byte| byte.is_ascii_digit()) && Path::new(spec).exists() {
        return None;
    }
    let size = parse_size(size).ok()?;
    Some((PathBuf::from(OsString::from_vec(bytes[..colon].to_vec())), size))
}

/// `FARPAGE_SWAP`: specs separated by commas, of which those before `pri=` separate nothing.
fn parse_swap_list(list: &OsStr) -> Result<Vec<AreaSpec>, String> {
    let mut specs: Vec<Vec<u8>> = Vec::new();
    for part in list.as_bytes().split(|byte| *byte == b',') {
        match specs.last_mut() {
            Some(spec) if part.starts_with(PRIORITY.as_bytes()) => {
                spec.push(b',');
                spec.extend_from_slice(part);
            }
            _ if part.is_empty() => {}
            _ => specs.push(part.to_vec()),
        }
    }
    specs
        .into_iter()
        .map(|spec| parse_swap(OsString::from_vec(spec)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swap(text: &str) -> Result<AreaSpec, String> {
        parse_swap(OsString::from(text))
    }

    fn path(path: &str, size: Option<u64>, priority: Option<u16>) -> Result<AreaSpec, String> {
        Ok(AreaSpec::Path(PathSpec {
            path: path.into(),
            size,
            priority,
        }))
    }

    #[test]
    fn swap_specs() {
        assert_eq!(swap("compressed"), Ok(AreaSpec::Compressed { limit: None }));
        assert_eq!(
            swap("compressed:1G"),
            Ok(AreaSpec::Compressed { limit: Some(1 << 30) })
        );
        assert_eq!(swap("/mnt/ssd"), path("/mnt/ssd", None, None));
        assert_eq!(swap("/mnt/ssd:64G"), path("/mnt/ssd", Some(64 << 30), None));
        assert_eq!(swap("/mnt/a:b"), path("/mnt/a:b", None, None));
        assert_eq!(swap("/mnt/a:b:2M"), path("/mnt/a:b", Some(2 << 20), None));
        assert_eq!(swap("./compressed:1M"), path("./compressed", Some(1 << 20), None));
        for bad in [
            "",
            ":1G",
            "compressed:",
            "compressed:x",
            "compressed:0",
            "/tmp:0",
            "redis://host",
        ] {
            assert!(swap(bad).is_err_and(|why| why.contains("; ")), "{bad}");
        }
    }

    #[test]
    fn a_number_at_the_end_of_a_name_is_no_size() {
        let named = std::env::temp_dir().join(format!("farpage-{}-scsi-0:0:1:3", std::process::id()));
        let (shown, without) = (named.display(), named.display().to_string().replace(":1:3", ":1"));
        assert_eq!(swap(&shown.to_string()), path(&without, Some(3), None));
        std::fs::write(&named, "").unwrap();
        assert_eq!(swap(&shown.to_string()), path(&shown.to_string(), None, None));
        assert_eq!(
            swap(&format!("{shown}:2M")),
            path(&shown.to_string(), Some(2 << 20), None)
        );
        std::fs::remove_file(&named).unwrap();
    }

    #[test]
    fn default_areas_are_compressed_then_a_file() {
        let areas = in_order(Vec::new()).expect("the default");
        assert_eq!(areas[0], AreaSpec::Compressed { limit: None });
        assert_eq!(Ok(&areas[1]), path("/var/tmp", None, None).as_ref());
        assert_eq!(areas.len(), 2);
    }

    #[test]
    fn areas_keep_their_order() {
        let of = |texts: &[&str]| in_order(texts.iter().map(|text| swap(text).expect(text)).collect());
        let given = of(&["compressed", "/b:1M", "/a,pri=3"]).expect("three areas");
        assert_eq!(Ok(&given[1]), path("/b", Some(1 << 20), None).as_ref());
        assert_eq!(Ok(&given[2]), path("/a", None, Some(3)).as_ref());
        assert_eq!(of(&["/a", "/b"]).map(|areas| areas.len()), Ok(2));
        // It was used first all the same.
        for late in [&["/a", "compressed"][..], &["/a,pri=5", "compressed:1M", "/b"]] {
            assert!(of(late).expect_err("another order").ends_with("; name it first"));
        }
        let twice = of(&["compressed", "compressed:1M"]).expect_err("there is one");
        assert!(twice.ends_with("; give it once"), "{twice}");
    }

    #[test]
    fn priorities() {
        assert_eq!(swap("/dev/sdb,pri=5"), path("/dev/sdb", None, Some(5)));
        assert_eq!(
            swap("/mnt/a,b:2M,pri=0"),
            path("/mnt/a,b", Some(2 << 20), Some(0))
        );
        assert_eq!(swap("/a,pri"), path("/a,pri", None, None));
        for bad in [
            "/a,pri=",
            "/a,pri=-1",
            "/a,pri=32768",
            "/a,pri=5:1G",
            ",pri=5",
            "compressed,pri=5",
        ] {
            assert!(swap(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn swap_path_may_be_any_bytes() {
        let spec = OsString::from_vec(b"/t\xff:1M".to_vec());
        assert_eq!(
            parse_swap(spec),
            Ok(AreaSpec::Path(PathSpec {
                path: PathBuf::from(OsString::from_vec(b"/t\xff".to_vec())),
                size: Some(1 << 20),
                priority: None,
            }))
        );
    }

    #[test]
    fn swap_list_of_the_environment() {
        let list = parse_swap_list(OsStr::new("compressed,/mnt/ssd:1G,pri=3,,/b")).expect("a good list");
        assert_eq!(list.len(), 3);
        assert_eq!(Ok(&list[1]), path("/mnt/ssd", Some(1 << 30), Some(3)).as_ref());
        assert!(parse_swap_list(OsStr::new("compressed:x")).is_err());
        assert!(
            parse_swap_list(OsStr::new("pri=3")).is_ok(),
            "a path like another"
        );
    }
}
