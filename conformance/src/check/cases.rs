//! What broke, as a case file.

use hostview_sim::{PageKind, Profile};

use super::{CheckOptions, DRAWN_FROM, ProfileChoice, drawn_from};
use crate::case::{Case, Step, Through};
use crate::laws::{Draw, DriverLaw, LawId, Trial};
use crate::subject::SubjectChoice;

/// The sequence of a D-law on a profile, as a case.
///
/// # Errors
///
/// Why the law has none there.
pub fn law_as_case(law: &'static DriverLaw, profile: &Profile, argument: &str) -> Result<Case, String> {
    let trial = (law.trial)(profile, &Draw::shown(PageKind::Ordinary));
    let trial = match trial {
        // What ordinary pages do not show, huge ones may.
        Trial::NotApplicable(_) => (law.trial)(profile, &Draw::shown(PageKind::Huge)),
        other => other,
    };
    match trial {
        Trial::NotApplicable(reason) => Err(reason),
        Trial::Steps(steps) | Trial::Mirror(steps) => Ok(Case {
            title: format!("{}: {}", law.law.id, law.law.statement),
            source: law.law.source.to_owned(),
            profile: argument.to_owned(),
            through: Through::Driver,
            subject: None,
            expect_law_broken: Vec::new(),
            seed: None,
            bookkeeping: false,
            profile_override: toml::Table::new(),
            steps,
            is_journal: false,
        }),
    }
}

pub(super) fn case_of(
    options: &CheckOptions,
    choice: &ProfileChoice,
    profile: &Profile,
    law: LawId,
    subject: Option<&SubjectChoice>,
    steps: Vec<Step>,
) -> Case {
    let statement = crate::laws::find(law.0).map_or("", |law| law.statement);
    let (name, profile_override) = match choice {
        ProfileChoice::Given(_, argument) => (argument.clone(), toml::Table::new()),
        ProfileChoice::Machine(_, like) => (like.clone(), overrides(like, profile)),
        ProfileChoice::Drawn => (DRAWN_FROM.to_owned(), difference(&drawn_from(), profile)),
    };
    Case {
        title: format!("{law} is broken: {statement}"),
        source: format!("hostview check, seed {}", options.seed),
        profile: name,
        through: if subject.is_some() { Through::Cache } else { Through::Driver },
        subject: subject.map(|subject| subject.argument().to_owned()),
        expect_law_broken: Vec::new(),
        seed: Some(options.seed),
        bookkeeping: false,
        profile_override,
        steps,
        is_journal: false,
    }
}

/// The keys in which a profile differs from the one that an argument finds.
#[must_use]
pub fn overrides(argument: &str, profile: &Profile) -> toml::Table {
    Profile::find(argument).map_or_else(|_| toml::Table::new(), |named| difference(&named, profile))
}

/// The keys in which a profile differs from another.
fn difference(from: &Profile, to: &Profile) -> toml::Table {
    fn tables(from: &toml::Table, to: &toml::Table) -> toml::Table {
        to.iter()
            .filter(|(key, value)| from.get(*key) != Some(*value))
            .map(|(key, value)| match (from.get(key), value) {
                (Some(toml::Value::Table(from)), toml::Value::Table(to)) => {
                    (key.clone(), toml::Value::Table(tables(from, to)))
                }
                _ => (key.clone(), value.clone()),
            })
            .collect()
    }
    let table = |profile: &Profile| toml::Table::try_from(profile).unwrap_or_default();
    let mut changed = tables(&table(from), &table(to));
    // A name is no behaviour.
    for key in ["name", "summary", "source"] {
        changed.remove(key);
    }
    changed
}
