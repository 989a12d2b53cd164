//! The rules of the simulated device, and a case by them, as a person reads them.

use std::collections::BTreeSet;

use hostview_sim::{Access, ByteCount, Call, Event, Outcome, Profile, RegisterFlags, Rule, RuleId, Then, VirtualTime};
use serde_json::{Value, json};

use super::words::{describe_step, wrapped};
use crate::case::Case;
use crate::explain::{Explained, Told};

/// Where the text of a rule begins, in a list and in a case.
const LIST: &str = "          ";
const CASE: &str = "               ";

/// A rule: when it decides, what comes of it, and how that is known.
#[must_use]
pub fn rule_text(rule: &Rule) -> String {
    rule_within(rule, LIST)
}

fn rule_within(rule: &Rule, indent: &str) -> String {
    let comes = match rule.then {
        Then::Fails(error) => error.to_string(),
        Then::Does(what) => what.to_owned(),
    };
    let first = format!("{}{:<8}", &indent[8..], rule.id);
    let evidence = format!("{}: {}", rule.evidence.name(), rule.place);
    format!(
        "{}\n{}\n",
        wrapped(&format!("{} -> {comes}", rule.when), &first, indent),
        wrapped(&evidence, indent, indent)
    )
}

/// What a profile says of the keys that a rule follows; empty where it follows none.
#[must_use]
pub fn keys_text(rule: &Rule, profile: &Profile) -> String {
    keys_within(rule, profile, LIST)
}

fn keys_within(rule: &Rule, profile: &Profile, indent: &str) -> String {
    let Ok(table) = toml::Table::try_from(profile) else { return String::new() };
    let said = |key: &&str| {
        let value = key.split('.').try_fold(None, |place: Option<&toml::Value>, part| {
            let table = place.map_or(Some(&table), toml::Value::as_table)?;
            table.get(part).map(Some)
        })??;
        Some(format!("{key} {}", value_text(key, value)))
    };
    let comes = granted(rule, profile).map(|granted| if granted { "so: yes" } else { "so: no" }.to_owned());
    let said: Vec<String> = rule.keys.iter().filter_map(said).chain(comes).collect();
    if said.is_empty() {
        return String::new();
    }
    format!("{}\n", wrapped(&format!("on {}: {}", profile.name, said.join(", ")), indent, indent))
}

/// A value of a profile; costs in microseconds, the least and the median.
fn value_text(key: &str, value: &toml::Value) -> String {
    match value {
        toml::Value::Integer(number) => match u64::try_from(*number) {
            Ok(address) if key.ends_with("_start") || key.ends_with("_offset") => format!("{address:#x}"),
            Ok(bytes) if bytes >= 4096 => ByteCount(bytes).to_string(),
            _ => number.to_string(),
        },
        toml::Value::Table(cost) => {
            let micros = |point| cost.get(point).map_or_else(String::new, toml::Value::to_string);
            format!("{} / {} µs", micros("min"), micros("median"))
        }
        other => other.to_string(),
    }
}

/// What a rule about a capability comes to on a profile.
fn granted(rule: &Rule, profile: &Profile) -> Option<bool> {
    let capabilities = profile.capabilities();
    match rule.id.name() {
        "P1" => Some(capabilities.bar_mem),
        "P2" => Some(capabilities.bar_huge_mem),
        "P3" => Some(capabilities.dev_mem_map_host),
        _ => None,
    }
}

/// A rule as JSON.
#[must_use]
pub fn rule_as_json(rule: &Rule) -> Value {
    let (answers, does) = match rule.then {
        Then::Fails(error) => (Some(error), None),
        Then::Does(what) => (None, Some(what)),
    };
    json!({
        "id": rule.id, "topic": rule.topic, "when": rule.when, "answers": answers, "does": does,
        "evidence": rule.evidence, "place": rule.place, "keys": rule.keys,
    })
}

/// A case, step by step: what the device did, and each rule where it first decides. All steps, or those alone that break a law or do
/// not come to what the case says.
#[must_use]
pub fn case_text(case: &Case, profile: &Profile, explained: &[Explained], differing_alone: bool) -> String {
    let mut text = String::new();
    if !case.title.is_empty() {
        text += &format!("{}\n", wrapped(&case.title, "", "  "));
    }
    text += &format!("{}\n", wrapped(&format!("on {}: {}", profile.name, profile.summary), "", "  "));
    let mut shown: BTreeSet<RuleId> = BTreeSet::new();
    let differs = |explained: &&Explained| explained.mismatch.is_some() || !explained.breaches.is_empty();
    for Explained { steps, told, mismatch, breaches } in explained.iter().filter(|it| !differing_alone || differs(it)) {
        text.push('\n');
        for index in steps.clone() {
            text +=
                &format!("{}\n", wrapped(&describe_step(&case.steps[index]), &format!("{:>3}  ", index + 1), "     "));
        }
        if steps.len() > 1 {
            text += "     in two threads\n";
        }
        if told.is_empty() {
            text += "     The device is not asked.\n";
        }
        for told in told {
            text += &format!("{}\n", wrapped(&told_text(told), "     ", "       "));
            for rule in rules_of(told).into_iter().flatten().filter(|id| shown.insert(*id)).filter_map(RuleId::rule) {
                text += &rule_within(rule, CASE);
                text += &keys_within(rule, profile, CASE);
            }
        }
        for breach in breaches {
            text += &format!("{}\n", wrapped(&format!("{} breaks: {}", breach.law, breach.what), "     ", "       "));
        }
        if let Some(mismatch) = mismatch {
            let otherwise = format!("The case says {}; what came is {}.", mismatch.expected, mismatch.came);
            text += &format!("{}\n", wrapped(&otherwise, "     ", "       "));
        }
    }
    let count = explained.iter().filter(differs).count();
    text + &match count {
        0 => "\nEvery step comes to what the case says.\n".to_owned(),
        count => {
            format!(
                "\n{count} of {} steps: a law breaks there, or what comes is not what the case says.\n",
                case.steps.len()
            )
        }
    }
}

fn rules_of(told: &Told) -> [Option<RuleId>; 2] {
    let besides = if let Told::Called(event) = told { event.besides } else { None };
    [told.rule(), besides]
}

fn told_text(told: &Told) -> String {
    match told {
        Told::Called(event) => event_text(event),
        Told::MadeToFail { call, error } => format!("{call} is made to fail with {error}; the device is not asked"),
        Told::Accessed { access, address, bytes, rule, faults } => {
            let what = match access {
                Access::Read => "load",
                Access::Write => "store",
            };
            let came = if *faults { "faults" } else { "ok" };
            format!("{what} {} at {address}: {came} [{rule}]", ByteCount(*bytes))
        }
    }
}

fn event_text(event: &Event) -> String {
    let call = match event.call {
        Call::Alloc { device, bytes, kind } => {
            format!("alloc {} of {kind} pages on device {device}", ByteCount(bytes))
        }
        Call::Free { address } => format!("free {address}"),
        Call::Register { address, bytes, flags, device } => {
            let flags = if flags == RegisterFlags::VIEW.0 { String::new() } else { format!(" with flags {flags:#x}") };
            let device = if device == 0 { String::new() } else { format!(" for device {device}") };
            format!("register {} from {address}{flags}{device}", ByteCount(bytes))
        }
        Call::Unregister { address, device, flags } => {
            let flags = flags.map_or_else(String::new, |flags| format!(" with flags {flags:#x}"));
            let device = if device == 0 { String::new() } else { format!(" for device {device}") };
            format!("unregister {address}{flags}{device}")
        }
        Call::CopyIn { address, bytes } => format!("copy {} to {address}", ByteCount(bytes)),
        Call::CopyOut { address, bytes } => format!("copy {} from {address}", ByteCount(bytes)),
    };
    let came = match event.outcome {
        Outcome::Done => "ok".to_owned(),
        Outcome::Allocated(base) => base.to_string(),
        Outcome::Registered(view) => format!("the view {view}"),
        Outcome::Failed(error) => error.to_string(),
    };
    let cost = if event.cost > VirtualTime::ZERO { format!(", {}", event.cost) } else { String::new() };
    let why = match (event.rule, event.besides) {
        (Some(rule), Some(besides)) => format!("{rule}, {besides}"),
        (Some(rule), None) => rule.to_string(),
        (None, _) => "a planned fault".to_owned(),
    };
    format!("{call}: {came}{cost} [{why}]")
}
