//! A parallel compile: C files, one for each CPU, that take the compiler as much memory as there is data; their program is
//! linked and run, and what it prints is known beforehand.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::content::Random;
use super::{Checks, WorkArgs, succeed};

/// The compiler.
pub const TOOL: &str = "gcc";
/// What the compiler (GCC 12 to 14, -O0) takes by itself and for each function of ours, in bytes.
const BASE_BYTES: u64 = 30 << 20;
const FUNCTION_BYTES: u64 = 80 << 10;
const FUNCTIONS_MIN: u64 = 20;
const LINES: usize = 20;
const JOBS_MAX: usize = 4;

pub fn build(args: &WorkArgs) -> Result<Value, String> {
    let place = args.place()?;
    let jobs = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(JOBS_MAX);
    let each = args.bytes / jobs as u64;
    let functions = (each.saturating_sub(BASE_BYTES) / FUNCTION_BYTES).max(FUNCTIONS_MIN);
    let mut sum = 0u32;
    for job in 0..jobs {
        let (source, part) = source(job, functions as u32);
        sum = sum.wrapping_add(part);
        write(place, &format!("part{job}.c"), &source)?;
    }
    write(place, "main.c", &main_source(jobs))?;
    let start = Instant::now();
    let compilers = (0..jobs).map(|job| compile(place, &["-c", &format!("part{job}.c")]));
    let compilers = compilers.collect::<Result<Vec<_>, _>>()?;
    compilers
        .into_iter()
        .try_for_each(|mut compiler| succeed(TOOL, &mut compiler))?;
    let compile_s = start.elapsed().as_secs_f64();
    let parts: Vec<_> = (0..jobs).map(|job| format!("part{job}.o")).collect();
    let mut words = vec!["main.c", "-o", "sum"];
    words.extend(parts.iter().map(String::as_str));
    succeed(TOOL, &mut compile(place, &words)?)?;
    let seconds = start.elapsed().as_secs_f64();
    let program = place.join("sum");
    let told = Command::new(&program).output();
    let told = told.map_err(|error| format!("{}: {error}", program.display()))?;
    let mut checks = Checks::default();
    checks.note(told.stdout == format!("{sum}\n").as_bytes());
    let mut figures = json!({
        "jobs": jobs,
        "functions": functions * jobs as u64,
        "seconds": seconds,
        "compile_s": compile_s,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

fn write(place: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = place.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Functions of arithmetic, and one that adds their values up; and that sum.
fn source(job: usize, functions: u32) -> (String, u32) {
    let mut random = Random::new(job as u64 + 11);
    let (mut text, mut total) = (String::new(), String::new());
    let mut sum = 0u32;
    for number in 0..functions {
        let mut value = number;
        // Writing to a String does not fail.
        let _ = writeln!(text, "static unsigned f{number}(unsigned x)\n{{");
        for _ in 0..LINES {
            let word = random.word();
            let (by, plus, shift) = (word as u32 | 1, (word >> 32) as u32, 5 + random.below(15));
            let _ = writeln!(text, "\tx = x * {by}u + {plus}u;\n\tx ^= x >> {shift};");
            value = value.wrapping_mul(by).wrapping_add(plus);
            value ^= value >> shift;
        }
        text.push_str("\treturn x;\n}\n");
        let _ = writeln!(total, "\tsum += f{number}({number}u);");
        sum = sum.wrapping_add(value);
    }
    let _ = writeln!(
        text,
        "unsigned part{job}(void)\n{{\n\tunsigned sum = 0;\n{total}\treturn sum;\n}}"
    );
    (text, sum)
}

fn main_source(jobs: usize) -> String {
    let mut text = "#include <stdio.h>\n".to_owned();
    let names: Vec<_> = (0..jobs).map(|job| format!("part{job}()")).collect();
    for name in &names {
        let _ = writeln!(text, "unsigned {name};");
    }
    let sum = names.join(" + ");
    let _ = writeln!(
        text,
        "int main(void)\n{{\n\treturn printf(\"%u\\n\", {sum}) < 0;\n}}"
    );
    text
}

fn compile(place: &Path, words: &[&str]) -> Result<Child, String> {
    Command::new(TOOL)
        .arg("-O0")
        .args(words)
        .current_dir(place)
        .env("TMPDIR", place)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("{TOOL}: {error}"))
}
