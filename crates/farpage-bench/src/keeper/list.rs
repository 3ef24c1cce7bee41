//! The list of what is to be undone, and the dialogue. A request is one line of JSON, the answer too:
//! `{"make": KIND, ...}` -> `{"ok": TEXT}` or `{"error": TEXT}`; `{"undo": true}` undoes what was made last, `{"forget": true}` only
//! takes it off the list: a process group that has ended, whose number may be somebody else's now. `{"empty": PATH}` takes swap on
//! the list from the kernel, answers with the nanoseconds, and leaves it on the list.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One step back. Each is without effect where it finds nothing to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A file, or a directory with what is in it.
    Unlink(PathBuf),
    SwapOff(PathBuf),
    /// Number of the zram device.
    ZramRemove(u32),
    /// Kills what runs in it.
    RemoveCgroup(PathBuf),
    /// SIGKILL to a process group.
    KillGroup(i32),
}

/// What the list is about: this machine, or a model of it in tests.
pub trait World {
    /// Makes what a request asks for, noting each step back in `undo` before the step is taken.
    fn make(&mut self, request: &Value, undo: &mut Vec<Undo>) -> Result<String, String>;
    fn undo(&mut self, step: &Undo) -> Result<(), String>;
    /// Takes a swap file or device of ours away from the kernel; how long it took, in nanoseconds.
    fn empty(&mut self, swap: &Path) -> Result<u64, String>;
}

/// Answers requests until the input ends, then undoes what is left; returns what could not be undone.
pub fn serve(input: impl BufRead, mut output: impl Write, world: &mut impl World) -> Vec<String> {
    let mut things: Vec<Vec<Undo>> = Vec::new();
    let mut troubles = Vec::new();
    for line in input.lines() {
        let Ok(line) = line else { break };
        let answer = match answer(&line, &mut things, world) {
            Ok(text) => json!({ "ok": text }),
            Err(text) => json!({ "error": text }),
        };
        if writeln!(output, "{answer}").is_err() {
            break;
        }
    }
    while let Some(steps) = things.pop() {
        troubles.extend(undo_all(steps, world));
    }
    troubles
}

fn answer(line: &str, things: &mut Vec<Vec<Undo>>, world: &mut impl World) -> Result<String, String> {
    let request: Value = serde_json::from_str(line).map_err(|error| format!("keeper: {error}"))?;
    if request["undo"] == true {
        let steps = things.pop().ok_or("keeper: nothing to undo")?;
        let troubles = undo_all(steps, world);
        return if troubles.is_empty() {
            Ok(String::new())
        } else {
            Err(troubles.join("; "))
        };
    }
    if request["forget"] == true {
        return things
            .pop()
            .map(|_| String::new())
            .ok_or_else(|| "keeper: nothing to forget".to_owned());
    }
    if let Some(path) = request["empty"].as_str() {
        let step = Undo::SwapOff(path.into());
        if !things.iter().flatten().any(|known| *known == step) {
            return Err(format!("keeper: {path} is no swap of ours"));
        }
        return world.empty(Path::new(path)).map(|time| time.to_string());
    }
    let mut steps = Vec::new();
    match world.make(&request, &mut steps) {
        Ok(text) => {
            things.push(steps);
            Ok(text)
        }
        Err(mut text) => {
            for trouble in undo_all(steps, world) {
                text = format!("{text}; {trouble}");
            }
            Err(text)
        }
    }
}

/// The last step first. One that fails does not keep the others from being tried.
pub fn undo_all(steps: Vec<Undo>, world: &mut impl World) -> Vec<String> {
    let back = steps.iter().rev();
    back.filter_map(|step| world.undo(step).err()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A world that makes numbered files, and fails where it is told to.
    #[derive(Default)]
    struct Model {
        undone: Vec<Undo>,
    }

    fn file(name: &str) -> Undo {
        Undo::Unlink(name.into())
    }

    impl World for Model {
        fn make(&mut self, request: &Value, undo: &mut Vec<Undo>) -> Result<String, String> {
            let name = request["make"].as_str().ok_or("make what?")?;
            undo.push(file(name));
            if name.starts_with("half") {
                return Err("only half".to_owned());
            }
            undo.push(Undo::SwapOff(name.into()));
            Ok(name.to_uppercase())
        }

        fn undo(&mut self, step: &Undo) -> Result<(), String> {
            self.undone.push(step.clone());
            match step {
                Undo::SwapOff(path) if path.ends_with("stuck") => Err("stuck".to_owned()),
                _ => Ok(()),
            }
        }

        fn empty(&mut self, swap: &Path) -> Result<u64, String> {
            if swap.ends_with("stuck") {
                return Err("stuck".to_owned());
            }
            Ok(7)
        }
    }

    fn run(input: &str) -> (String, Vec<String>, Vec<Undo>) {
        let (mut model, mut output) = (Model::default(), Vec::new());
        let troubles = serve(input.as_bytes(), &mut output, &mut model);
        (String::from_utf8(output).expect("text"), troubles, model.undone)
    }

    #[test]
    fn the_end_of_the_input_undoes_all_last_first() {
        let (output, troubles, undone) = run("{\"make\":\"a\"}\n{\"make\":\"b\"}\n");
        assert_eq!(output, "{\"ok\":\"A\"}\n{\"ok\":\"B\"}\n");
        assert!(troubles.is_empty());
        let off = |name: &str| Undo::SwapOff(name.into());
        assert_eq!(undone, [off("b"), file("b"), off("a"), file("a")]);
    }

    #[test]
    fn asked_for_it_undoes_the_last_thing_once() {
        let (output, _, undone) =
            run("{\"make\":\"a\"}\n{\"make\":\"b\"}\n{\"undo\":true}\n{\"undo\":true}\n{\"undo\":true}\n");
        assert!(
            output.ends_with("{\"error\":\"keeper: nothing to undo\"}\n"),
            "{output}"
        );
        assert_eq!(undone.len(), 4);
    }

    #[test]
    fn what_is_forgotten_is_not_undone() {
        let (output, _, undone) = run("{\"make\":\"a\"}\n{\"make\":\"b\"}\n{\"forget\":true}\n");
        assert!(output.ends_with("{\"ok\":\"\"}\n"), "{output}");
        assert_eq!(undone, [Undo::SwapOff("a".into()), file("a")]);
    }

    #[test]
    fn only_swap_on_the_list_is_emptied_and_it_stays_there() {
        let (output, _, undone) = run("{\"make\":\"a\"}\n{\"empty\":\"a\"}\n{\"empty\":\"b\"}\n");
        assert!(
            output.ends_with("{\"ok\":\"7\"}\n{\"error\":\"keeper: b is no swap of ours\"}\n"),
            "{output}"
        );
        assert_eq!(undone, [Undo::SwapOff("a".into()), file("a")]);
        let (output, _, _) = run("{\"make\":\"stuck\"}\n{\"empty\":\"stuck\"}\n");
        assert!(output.ends_with("{\"error\":\"stuck\"}\n"), "{output}");
    }

    #[test]
    fn what_is_half_made_is_undone_at_once() {
        let (output, troubles, undone) = run("{\"make\":\"half\"}\n");
        assert_eq!(output, "{\"error\":\"only half\"}\n");
        assert_eq!((troubles.len(), undone), (0, vec![file("half")]));
    }

    #[test]
    fn a_step_that_fails_is_told_and_the_others_are_taken() {
        let (_, troubles, undone) = run("{\"make\":\"a\"}\n{\"make\":\"stuck\"}\nnonsense\n");
        assert_eq!(troubles, ["stuck"]);
        assert_eq!(undone.len(), 4);
    }
}
