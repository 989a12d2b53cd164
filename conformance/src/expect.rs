//! What must come of a step, against what came.

use hostview_cache::Held;
use hostview_sim::Fault;

use crate::case::{ExpectTable, Step};
use crate::code::ErrorCode;

/// What came of a step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Came {
    /// The error, when a call failed.
    pub error: Option<ErrorCode>,
    /// The fault, when an access met one.
    pub fault: Option<Fault>,
    /// The subject's reason, when it refused the call itself.
    pub refused: Option<String>,
    /// The bytes that a read gave.
    pub bytes: Option<Vec<u8>>,
    /// The address of an allocation.
    pub address: Option<u64>,
    /// The device of an allocation, where the driver tells.
    pub on_device: Option<u32>,
    /// How many pages a registration covers, where the driver can be asked.
    pub pages: Option<u64>,
    /// What the call cost, in nanoseconds, where virtual time is kept.
    pub cost_ns: Option<u64>,
    /// Whether acquire gave a view.
    pub view: Option<bool>,
    /// What the subject reports to hold.
    pub held: Option<Held>,
}

impl Came {
    fn number(&self) -> u32 {
        self.error.map_or(0, |error| error.0)
    }

    /// In words, without the bytes.
    #[must_use]
    pub fn describe(&self) -> String {
        match (&self.error, &self.fault, &self.refused) {
            (Some(error), ..) => error.to_string(),
            (_, Some(fault), _) => fault.to_string(),
            (_, _, Some(reason)) => format!("refused: {reason}"),
            (None, None, None) => "ok".to_owned(),
        }
    }
}

/// A step that did not do what it must.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// What must have come.
    pub expected: String,
    /// What came.
    pub came: String,
}

/// What the rest of the sequence knows: the log so far, and where names lie.
pub trait Context {
    /// The lines that the driver wrote so far.
    fn log(&self) -> &[String];
    /// Whether what the driver writes can be seen at all.
    fn keeps_log(&self) -> bool;
    /// The last address of a name.
    fn address_of(&self, name: &str) -> Option<u64>;
}

/// The first thing about a step that is not as it must be.
pub fn judge(step: &Step, came: &Came, context: &dyn Context) -> Option<Mismatch> {
    let differs = |expected: String, came: String| Some(Mismatch { expected, came });
    if let Some(code) = step.code
        && code != came.number()
    {
        return differs(describe_number(code), came.describe());
    }
    if let Some(address) = &step.address
        && crate::case::address(address) != came.address
    {
        return differs(address.clone(), came.address.map_or_else(|| came.describe(), |at| format!("{at:#x}")));
    }
    let expect = &step.expect.0;
    if let Some(mismatch) = judge_outcome(expect, step, came) {
        return Some(mismatch);
    }
    if let Some(name) = &expect.same_address_as
        && context.address_of(name) != came.address
    {
        let other = context.address_of(name).map_or_else(|| "nowhere".to_owned(), |at| format!("{at:#x}"));
        let here = came.address.map_or_else(|| "nowhere".to_owned(), |at| format!("{at:#x}"));
        return differs(format!("the address of `{name}`, {other}"), here);
    }
    if let Some(hex) = &expect.bytes {
        let found = came.bytes.as_deref().map(hex_of).unwrap_or_default();
        if !found.eq_ignore_ascii_case(hex) {
            return differs(format!("bytes {hex}"), format!("bytes {found}"));
        }
    }
    if let (Some(pages), Some(covered)) = (expect.pages, came.pages)
        && pages != covered
    {
        return differs(format!("{pages} pages registered"), format!("{covered} pages registered"));
    }
    if let (Some(expected), Some(device)) = (expect.on_device, came.on_device)
        && expected != device
    {
        return differs(format!("memory of device {expected}"), format!("memory of device {device}"));
    }
    // Both are rounded from finer figures.
    if let (Some(expected), Some(cost)) = (expect.cost_ns, came.cost_ns)
        && expected.abs_diff(cost) > 1
    {
        return differs(format!("a cost of {expected} ns"), format!("a cost of {cost} ns"));
    }
    if let Some(view) = expect.view
        && came.view != Some(view)
    {
        let said = |view| if view { "a view" } else { "device copies" };
        return differs(said(view).to_owned(), came.view.map_or_else(|| came.describe(), |view| said(view).to_owned()));
    }
    if let (Some(expected), Some(held)) = (expect.held, came.held)
        && (expected.count, expected.bytes) != (held.count, held.bytes)
    {
        return differs(
            format!("{} views of {} bytes held", expected.count, expected.bytes),
            format!("{} views of {} bytes held", held.count, held.bytes),
        );
    }
    if let Some(text) = &expect.log
        && context.keeps_log()
        && !context.log().iter().any(|line| line.contains(text.as_str()))
    {
        let last = context.log().last().map_or("nothing", String::as_str);
        return differs(format!("a log line with `{text}`"), format!("the last line is `{last}`"));
    }
    None
}

fn judge_outcome(expect: &ExpectTable, step: &Step, came: &Came) -> Option<Mismatch> {
    let differs = |expected: String| Some(Mismatch { expected, came: came.describe() });
    if let Some(name) = &expect.error {
        let code = ErrorCode::from_name(name);
        return if came.error == code && code.is_some() { None } else { differs(describe_name(name)) };
    }
    if let Some(code) = expect.code {
        return if came.number() == code && came.fault.is_none() { None } else { differs(describe_number(code)) };
    }
    if expect.fault {
        return if came.fault.is_some() { None } else { differs("a fault".to_owned()) };
    }
    if expect.any {
        return None;
    }
    if expect.refused {
        return if came.refused.is_some() || came.error.is_some() { None } else { differs("a refusal".to_owned()) };
    }
    let failed = came.error.is_some() || came.fault.is_some() || came.refused.is_some();
    // A recorded step states its number apart, and was judged by it.
    if failed && step.code.is_none() { differs("ok".to_owned()) } else { None }
}

fn describe_name(name: &str) -> String {
    ErrorCode::from_name(name).map_or_else(|| name.to_owned(), |code| code.to_string())
}

fn describe_number(code: u32) -> String {
    if code == 0 { "ok".to_owned() } else { ErrorCode(code).to_string() }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
