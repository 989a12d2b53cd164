//! `hostview explain`.

use std::path::Path;

use clap::Args;
use hostview::ErrorCode;
use hostview::replay::{Prepared, prepare};
use hostview::report::{case_text, keys_text, rule_as_json, rule_text};
use hostview_sim::config::nearest;
use hostview_sim::{AclError, Profile, Rule, Then, Topic};
use serde_json::Value;

use super::out::{say, say_line};
use super::{Exit, Wrong};

/// Says why the simulated device answers what it answers
///
/// Every allocation, free, registration, copy and access comes to a rule with a name. Without an argument all of them are listed, each with its
/// evidence: measured, read in the driver's source, seen in recorded sequences, reported, or assumed. A case is run step by step,
/// each call with the rule that decided it.
#[derive(Debug, Args)]
pub(super) struct ExplainArguments {
    /// A case, trace or journal; or a rule (v2-R11), a topic (register) or an error (DRV_ERROR_BUSY, 13, 507899)
    #[arg(value_name = "FILE|RULE|TOPIC|ERROR")]
    what: Option<String>,

    /// The profile that rules are looked up on; a case runs on its own when this is left out
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,

    /// Which sequence of a file that holds many; 1 is the first
    #[arg(long, value_name = "N", requires = "what", value_parser = clap::value_parser!(u32).range(1..))]
    sequence: Option<u32>,

    /// Of a case the steps alone that do not come to what it says
    #[arg(long, requires = "what")]
    differing: bool,

    /// The rules as JSON
    #[arg(long)]
    json: bool,
}

/// The profile that rules are looked up on when nobody says.
const LOOKED_UP_ON: &str = "a2a3";

pub(super) fn run(arguments: &ExplainArguments) -> Result<Exit, Wrong> {
    let what = arguments.what.as_deref();
    if let Some(file) = what.filter(|what| is_file(what)) {
        if arguments.json {
            return Err(Wrong("--json lists rules; a case is told in words".to_owned()));
        }
        let chosen = choose(Path::new(file), arguments.profile.as_deref(), arguments.sequence)?;
        let explained = chosen.explain().map_err(|hindrance| Wrong(format!("{file}: {}", hindrance.0)))?;
        say(&case_text(&chosen.case, chosen.profile(), &explained, arguments.differing));
        return Ok(Exit::Holds);
    }
    if arguments.differing {
        return Err(Wrong("--differing goes with a case".to_owned()));
    }
    let profile = arguments.profile.as_deref().map(Profile::find).transpose()?;
    if arguments.sequence.is_some() {
        return Err(Wrong("--sequence goes with a file of sequences".to_owned()));
    }
    let rules = match what {
        None => Rule::all().to_vec(),
        Some(what) => looked_up(what)?,
    };
    if arguments.json {
        say_line(&format!("{:#}", rules.iter().map(|rule| rule_as_json(rule)).collect::<Value>()));
        return Ok(Exit::Holds);
    }
    // What a profile says of its keys is of interest where it was asked for, or where rules are.
    let on = match (profile, what) {
        (Some(profile), _) => Some(profile),
        (None, Some(_)) => Some(Profile::find(LOOKED_UP_ON)?),
        (None, None) => None,
    };
    for (index, topic) in
        Topic::ALL.into_iter().filter(|topic| rules.iter().any(|rule| rule.topic == *topic)).enumerate()
    {
        if index > 0 {
            say_line("");
        }
        say_line(topic.name());
        for rule in rules.iter().filter(|rule| rule.topic == topic) {
            say(&rule_text(rule));
            if let Some(profile) = &on {
                say(&keys_text(rule, profile));
            }
        }
    }
    Ok(Exit::Holds)
}

fn is_file(what: &str) -> bool {
    let path = Path::new(what);
    what.contains(std::path::is_separator)
        || path.extension().is_some_and(|end| end == "toml" || end == "jsonl")
        || path.exists()
}

/// The rules that a word on the command line means.
fn looked_up(what: &str) -> Result<Vec<&'static Rule>, Wrong> {
    if let Some(rule) = Rule::find(what) {
        return Ok(vec![rule]);
    }
    if let Some(topic) = Topic::ALL.into_iter().find(|topic| topic.name() == what) {
        return Ok(Rule::all().iter().copied().filter(|rule| rule.topic == topic).collect());
    }
    let code = what.parse().ok().map(ErrorCode).or_else(|| ErrorCode::from_name(what));
    let Some(code) = code else {
        let words = || {
            Rule::all().iter().map(|rule| rule.id.name()).chain(Topic::ALL.map(Topic::name)).chain(ErrorCode::names())
        };
        let mend = nearest(what, words())
            .map_or_else(|| "`hostview explain` lists the rules".to_owned(), |near| format!("did you mean `{near}`?"));
        return Err(Wrong(format!("no rule, topic, error or file `{what}`; {mend}")));
    };
    let answers = |rule: &&Rule| match rule.then {
        Then::Fails(error) => ErrorCode::from(error) == code || ErrorCode::from(AclError::from(error)) == code,
        Then::Does(_) => false,
    };
    let rules: Vec<&'static Rule> = Rule::all().iter().copied().filter(answers).collect();
    if rules.is_empty() {
        return Err(Wrong(format!(
            "no rule of the simulated driver answers {code}; `hostview explain` lists the rules"
        )));
    }
    Ok(rules)
}

/// The one sequence of a file that is meant, on its own profile or on another.
pub(super) fn choose(file: &Path, profile: Option<&str>, sequence: Option<u32>) -> Result<Prepared, Wrong> {
    let mut prepared = prepare(file)?;
    let place = file.display();
    let chosen = match (sequence.map(|sequence| sequence as usize), prepared.len()) {
        (Some(sequence), held) if sequence > held => {
            return Err(Wrong(format!("{place}: has no sequence {sequence}; it holds {held}")));
        }
        (Some(sequence), _) => prepared.swap_remove(sequence - 1),
        (None, 1) => prepared.swap_remove(0),
        (None, held) => return Err(Wrong(format!("{place}: holds {held} sequences; say which: --sequence N"))),
    };
    match profile {
        Some(profile) => Ok(chosen.on(profile)?),
        None => Ok(chosen),
    }
}
