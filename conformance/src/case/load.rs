//! Reading case files.

use std::collections::HashMap;
use std::path::Path;

use hostview_sim::config::{self, ConfigError};
use serde::de::DeserializeOwned;

use super::journal::Names;
use super::{Case, Op, Pause, Step, Through};
use crate::code::ErrorCode;
use crate::json::without_place;

/// Why a case file was refused.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// It cannot be read, or is wrong at a line.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It holds no sequence.
    #[error("{0}: is empty; a case needs a `profile` and at least one `[[step]]`")]
    Empty(String),
    /// A step that cannot be run.
    #[error("{place}: step {step} ({op}): {problem}")]
    Step {
        /// The file.
        place: String,
        /// The step, from 1.
        step: usize,
        /// Its operation.
        op: &'static str,
        /// What is wrong, and the mend.
        problem: String,
    },
    /// The header that cannot be.
    #[error("{place}: {problem}")]
    Header {
        /// The file.
        place: String,
        /// What is wrong, and the mend.
        problem: String,
    },
}

/// Reads the cases of a file: one from TOML or a trace, many from a sequence set.
///
/// # Errors
///
/// Names the file and the line or step.
pub fn load(path: &Path) -> Result<Vec<Case>, CaseError> {
    let text = config::read(path)?;
    load_text(&text, &path.display().to_string())
}

/// Reads the cases of a text; a `place` that ends in `.jsonl` is JSON Lines.
///
/// # Errors
///
/// As [`load`].
pub fn load_text(text: &str, place: &str) -> Result<Vec<Case>, CaseError> {
    if text.trim().is_empty() {
        return Err(CaseError::Empty(place.to_owned()));
    }
    let is_json = Path::new(place).extension().is_some_and(|ext| ext == "jsonl" || ext == "json");
    let cases = if is_json { json_lines(text, place)? } else { vec![config::from_toml(text, place)?] };
    for case in &cases {
        check(case, place)?;
    }
    Ok(cases)
}

fn json_lines(text: &str, place: &str) -> Result<Vec<Case>, CaseError> {
    let mut cases: Vec<Case> = Vec::new();
    let mut names = Names::default();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let is_step = line.trim_start().starts_with("{\"op\"") || from_json_key(line, "op");
        let is_call = !is_step && from_json_key(line, "call");
        match cases.last_mut() {
            Some(case) if is_step => case.steps.push(from_json::<Step>(line, place, index + 1)?),
            Some(case) if is_call => {
                case.is_journal = true;
                case.steps.extend(names.step(&from_json(line, place, index + 1)?));
            }
            // What is called after a device was closed is a sequence of its own, on a driver that remembers nothing.
            Some(case) if from_json_key(line, "closed") => {
                let next = Case { steps: Vec::new(), ..case.clone() };
                cases.push(next);
                names = Names::default();
            }
            None if is_step || is_call => {
                return Err(CaseError::Header {
                    place: format!("{place}:{}", index + 1),
                    problem: "a step or call before the header; the first line names the `profile`".to_owned(),
                });
            }
            Some(_) | None => {
                cases.push(from_json(line, place, index + 1)?);
                names = Names::default();
            }
        }
    }
    // A program that ends with closing its devices calls nothing more, and one that only asks calls nothing at all.
    if cases.iter().any(|case| case.is_journal) {
        cases.retain(|case| !case.steps.is_empty());
    }
    Ok(cases)
}

/// Whether a line is an object with this key at its top: a step has `op`, a header has not.
fn from_json_key(line: &str, key: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok_and(|map| map.contains_key(key))
}

fn from_json<T: DeserializeOwned>(line: &str, place: &str, number: usize) -> Result<T, ConfigError> {
    serde_json::from_str(line).map_err(|error| {
        let problem = format!("column {}: {}", error.column(), config::explain(&without_place(&error)));
        ConfigError::Line { place: place.to_owned(), line: number, problem }
    })
}

/// Names that need no step to make them.
const RESERVED: [&str; 2] = ["null", "nowhere"];

/// What one step may read or write: it goes through a buffer.
pub(super) const MOVES_AT_MOST: u64 = 64 << 20;

fn check(case: &Case, place: &str) -> Result<(), CaseError> {
    let header = |problem: String| CaseError::Header { place: place.to_owned(), problem };
    if case.steps.is_empty() {
        return Err(header("has no steps; add a [[step]]".to_owned()));
    }
    for id in &case.expect_law_broken {
        if crate::laws::find(id).is_none() {
            return Err(header(format!(
                "`expect_law_broken` names `{id}`, which is no law; `hostview laws` lists them"
            )));
        }
    }
    if case.through == Through::Driver && case.subject.is_some() {
        return Err(header("`subject` needs `through = \"cache\"`; add it or drop the subject".to_owned()));
    }
    let mut names: HashMap<&str, u64> = RESERVED.into_iter().map(|name| (name, 0)).collect();
    for (index, step) in case.steps.iter().enumerate() {
        check_step(step, case.through, &mut names).map_err(|problem| CaseError::Step {
            place: place.to_owned(),
            step: index + 1,
            op: step.op.name(),
            problem,
        })?;
    }
    Ok(())
}

fn check_step<'a>(step: &'a Step, through: Through, names: &mut HashMap<&'a str, u64>) -> Result<(), String> {
    match (through, step.op) {
        (Through::Driver, Op::Acquire | Op::Release | Op::Finalize) => {
            return Err("is a cache's operation; write `through = \"cache\"`".to_owned());
        }
        (Through::Cache, Op::Register | Op::Unregister) => {
            return Err("is the driver's operation; write `through = \"driver\"`, or `acquire`".to_owned());
        }
        _ => {}
    }
    if step.hold && step.op != Op::Acquire {
        return Err("has `hold`, and hands out nothing; `hold` goes with acquire".to_owned());
    }
    for (key, is_there) in
        [("cost_ns", step.expect.0.cost_ns.is_some()), ("on_device", step.expect.0.on_device.is_some())]
    {
        if is_there && through == Through::Cache {
            return Err(format!("expects `{key}`, which the driver is asked for; write `through = \"driver\"`"));
        }
    }
    if step.expect.0.on_device.is_some() && step.op != Op::Alloc {
        return Err("expects `on_device`, which goes with alloc".to_owned());
    }
    if through == Through::Driver && step.fail.as_ref().is_some_and(|fail| fail.lasting) {
        return Err("has a `lasting` fault; a driver's step makes one call".to_owned());
    }
    match step.pause {
        Some(_) if through == Through::Driver => {
            return Err("has `pause`; write `through = \"cache\"`".to_owned());
        }
        Some(Pause::Before(0) | Pause::After(0)) => {
            return Err("`pause` counts calls from 1".to_owned());
        }
        _ => {}
    }
    match step.op {
        Op::Alloc => {
            if step.bytes.is_none() {
                return Err("needs `bytes`".to_owned());
            }
            let name = step.name.as_deref().ok_or("needs a `name`")?;
            if RESERVED.contains(&name) {
                return Err(format!("`{name}` stands for an address of its own; choose another name"));
            }
            names.insert(name, step.bytes.unwrap_or(0));
        }
        Op::Finalize => {}
        _ => {
            let target = step.target.as_deref().ok_or("needs a `target`")?;
            if !names.contains_key(target) {
                let mend = match config::nearest(target, names.keys().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "an earlier alloc step must make it".to_owned(),
                };
                return Err(format!("no step before it makes `{target}`; {mend}"));
            }
        }
    }
    if matches!(step.op, Op::Read | Op::Write | Op::CopyIn | Op::CopyOut) {
        let whole = step.target.as_deref().and_then(|target| names.get(target)).copied().unwrap_or(0);
        let bytes = step.bytes.unwrap_or_else(|| whole.saturating_sub(step.offset));
        if bytes > MOVES_AT_MOST {
            return Err(format!("moves {bytes} bytes at once; give `bytes`, at most {MOVES_AT_MOST}"));
        }
    }
    if matches!(step.op, Op::Write | Op::CopyIn) && step.data.is_none() && step.fill.is_none() {
        return Err("needs `data = \"hex\"` or `fill = 0x5a`".to_owned());
    }
    for (key, hex) in [("data", &step.data), ("expect.bytes", &step.expect.0.bytes)] {
        if let Some(hex) = hex {
            bytes_of_hex(hex).map_err(|problem| format!("`{key}` {problem}"))?;
        }
    }
    for name in step.expect.0.error.iter().chain(step.fail.iter().map(|fail| &fail.error)) {
        if ErrorCode::from_name(name).is_none() {
            let mend = match config::nearest(name, ErrorCode::names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "give its number as `code`".to_owned(),
            };
            return Err(format!("unknown error `{name}`; {mend}"));
        }
    }
    if let Some(name) = &step.expect.0.same_address_as
        && !names.contains_key(name.as_str())
    {
        return Err(format!("`same_address_as` names `{name}`, which no step before it makes"));
    }
    if let Some(address) = &step.address {
        parse_address(address)?;
    }
    Ok(())
}

/// The bytes of a string of hexadecimal digits.
pub(crate) fn bytes_of_hex(hex: &str) -> Result<Vec<u8>, String> {
    if !hex.len().is_multiple_of(2) || !hex.is_ascii() {
        return Err(format!("is `{hex}`; give pairs of hexadecimal digits"));
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("is `{hex}`; give pairs of hexadecimal digits"))
}

/// An address as recorded sequences write it.
pub(crate) fn parse_address(text: &str) -> Result<u64, String> {
    text.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| format!("`address` is `{text}`; give 0x and hexadecimal digits"))
}
