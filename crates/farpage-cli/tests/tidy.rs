//! The house rules that no lint checks: ASCII text, short files, nothing left for later, unsafe code announced on top.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 700;
/// Lines from the top of a file within which it must say that it holds unsafe code.
const HEADER_LINES: usize = 30;
const EXTENSIONS: [&str; 9] = ["rs", "py", "c", "h", "sh", "pl", "java", "sql", "toml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file of the source with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = ["crates", "tests", "demo"]
        .iter()
        .map(|d| root().join(d))
        .collect();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of ours").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let known = |e: &std::ffi::OsStr| EXTENSIONS.iter().any(|known| e == *known);
            if path.extension().is_some_and(known) {
                let bytes = fs::read(&path).expect("readable");
                found.push((path, String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
    }
    assert!(found.len() > 80, "only {} files found", found.len());
    found
}

/// Fails with one line for each fault.
fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The lines that `wrong` finds fault with, as `path:line: text`.
fn lines_where(wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| wrong(line)) {
            faults.push(format!("{}:{}: {line}", path.display(), number + 1));
        }
    }
    faults
}

#[test]
fn source_is_ascii_without_trailing_blanks() {
    none(&lines_where(|line| {
        !line.is_ascii() || line.ends_with([' ', '\t', '\r'])
    }));
}

#[test]
fn files_are_short() {
    let long = sources()
        .into_iter()
        .filter(|(_, text)| text.lines().count() > LINES_MAX)
        .map(|(path, text)| format!("{}: {} lines", path.display(), text.lines().count()));
    none(&long.collect::<Vec<_>>());
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file passes its own test.
    let words = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["todo", "!("],
        ["unimplemented", "!("],
        ["dbg", "!("],
    ];
    let words = words.map(|parts| parts.concat());
    none(&lines_where(|line| words.iter().any(|word| line.contains(word))));
}

/// Who reads a run's figures finds each counter explained, in the words that the code has for it.
#[test]
fn every_counter_is_explained() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("readable");
    let (code, page) = (
        read("crates/farpage-core/src/stats.rs"),
        read("docs/statistics.md"),
    );
    let rows = code.lines().filter_map(|line| {
        let (_, rest) = line.trim().split_once(" \"")?;
        let (name, what) = rest.strip_suffix("\",")?.split_once("\" \"")?;
        Some(format!("| `{name}` | {what} |"))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 40, "only {} counters found", rows.len());
    let missing: Vec<_> = rows.into_iter().filter(|row| !page.contains(row)).collect();
    none(&missing);
}

/// `unsafe` as code: not in a comment, a string or a lint's name.
fn is_unsafe_code(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let forms = [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "#[unsafe(",
    ];
    forms
        .iter()
        .any(|form| code.contains(form) && !code.contains('"'))
}

/// Whether a file says on top that it holds unsafe code, or an inline module of it says so for itself.
fn announces(text: &str) -> bool {
    let is_header = |line: &str| ["//! # Safety", "#![allow(unsafe_code)]"].contains(&line);
    text.lines().take(HEADER_LINES).any(is_header) || text.contains("\n    //! # Safety\n")
}

#[test]
fn unsafe_code_is_announced_on_top() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let is_rust = path.extension().is_some_and(|e| e == "rs");
        // A crate that is unsafe throughout says it once, in its root.
        let root = fs::read_to_string(path.with_file_name("lib.rs")).unwrap_or_default();
        if is_rust && text.lines().any(is_unsafe_code) && !announces(&text) && !announces(&root) {
            faults.push(format!(
                "{}: unsafe code without a `# Safety` header",
                path.display()
            ));
        }
    }
    none(&faults);
}

#[test]
fn unsafe_code_is_recognised() {
    let block = ["    let x = unsafe", " { f() };"].concat();
    assert!(is_unsafe_code(&block));
    assert!(!is_unsafe_code("#![deny(unsafe_code)]"));
    assert!(!is_unsafe_code(&format!("// {block}")));
}
