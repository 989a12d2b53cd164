//! A case that fails, as short as it can be: a journal of ten thousand calls comes down to the few that matter.

use hostview_sim::RuleId;

use crate::case::{Case, Expect, ExpectTable, Step, Through};
use crate::driver_run::DriverRun;
use crate::expect::Mismatch;
use crate::explain::Told;
use crate::laws::{LawId, view_laws};
use crate::replay::Prepared;
use crate::report::describe_step;
use crate::sequence::Setting;
use crate::shrink::shrink;
use crate::site::Simulator;

/// A case made shorter.
#[derive(Clone, PartialEq, Debug)]
pub struct Shortened {
    /// The case; it fails as the longer one does.
    pub case: Case,
    /// What fails about its last step.
    pub what: String,
    /// How many steps there were.
    pub before: usize,
}

/// Why a case cannot be made shorter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotShortened {
    /// It does not fail.
    #[error("every step comes to what the case says; --profile NAME runs it as another machine would")]
    Passes,
    /// An expectation of a case through a cache, with every law kept.
    #[error("no law breaks; what its steps expect cannot be kept while steps go")]
    NoLaw,
    /// Only addresses differ, which follow from all that was called before.
    #[error("it differs only in where step {0} finds memory, which every step before it has a part in")]
    Addresses(usize),
    /// It cannot be run here.
    #[error("{0}")]
    Hindered(String),
}

impl Prepared {
    /// The shortest case that fails in the same way: that breaks the same law, or whose last step is answered the same by the same
    /// rule.
    ///
    /// # Errors
    ///
    /// It does not fail, or not in a way that a shorter one could.
    pub fn shortened(&self) -> Result<Shortened, NotShortened> {
        let (steps, what) = match self.case.through {
            Through::Driver => self.fewer_calls()?,
            Through::Cache => self.fewer_operations()?,
        };
        let mut case = Case { steps, ..self.case.clone() };
        case.expect_law_broken.truncate(1);
        Ok(Shortened { case, what, before: self.case.steps.len() })
    }

    fn fewer_calls(&self) -> Result<(Vec<Step>, String), NotShortened> {
        let whole = &self.case.steps;
        let explained = self.explain().map_err(|hindrance| NotShortened::Hindered(hindrance.0))?;
        let first = explained.iter().position(|explained| explained.mismatch.is_some()).ok_or(NotShortened::Passes)?;
        // Where memory lies follows from everything before: what is left out moves it.
        let anywhere = |step: &Step| Step { address: None, ..step.clone() };
        let steps: Vec<Step> = whole[..=first].iter().map(anywhere).collect();
        let wanted = self.last_of(&steps).ok_or(NotShortened::Addresses(first + 1))?;
        let steps = shrink(steps, |candidate| {
            self.last_of(candidate).is_some_and(|(found, rule)| (&found.came, rule) == (&wanted.0.came, wanted.1))
        });
        let (Mismatch { expected, came }, _) = wanted;
        // What the others come to is not what this is about.
        let settled = self.settled(steps);
        let last = settled.last().map_or_else(String::new, describe_step);
        Ok((settled, format!("{last}: {came}, and not {expected}")))
    }

    /// How the last of some steps fails, and by which rule; none where it does not.
    fn last_of(&self, steps: &[Step]) -> Option<(Mismatch, Option<RuleId>)> {
        let mut platform = self.platform();
        let mut run = DriverRun::new(&mut platform);
        let (last, others) = steps.split_last()?;
        for step in others {
            run.step(step);
        }
        let calls = run.calls();
        let mismatch = run.step(last)?;
        Some((mismatch, run.told_since(calls).last().and_then(Told::rule)))
    }

    /// The same steps, of which only the last is not as it says.
    fn settled(&self, mut steps: Vec<Step>) -> Vec<Step> {
        let mut platform = self.platform();
        let mut run = DriverRun::new(&mut platform);
        let last = steps.len() - 1;
        for (index, step) in steps.iter_mut().enumerate() {
            if run.step(step).is_some() && index < last {
                *step = whatever_comes(step);
            }
            // Success needs no number.
            step.code = step.code.filter(|code| *code != 0);
        }
        steps
    }

    fn fewer_operations(&self) -> Result<(Vec<Step>, String), NotShortened> {
        // Of a case that is about a law the others are not asked.
        let wanted = self.case.expect_law_broken.first();
        let others = view_laws().iter().map(|law| law.law.id).filter(|id| wanted.is_some_and(|wanted| wanted != id.0));
        let without: Vec<LawId> = others.collect();
        let setting = Setting { site: &Simulator, profile: self.profile(), subject: self.subject(), without: &without };
        let breach = |steps: &[Step]| {
            let run = setting.run_fresh(steps).map_err(|hindrance| NotShortened::Hindered(hindrance.0));
            run.map(|result| result.breach)
        };
        let Some(found) = breach(&self.case.steps)? else {
            return Err(if self.run().discord.is_some() { NotShortened::NoLaw } else { NotShortened::Passes });
        };
        let steps: Vec<Step> = self.case.steps[..=found.step.min(self.case.steps.len() - 1)].to_vec();
        let breaks = |candidate: &[Step]| breach(candidate).ok().flatten().is_some_and(|other| other.law == found.law);
        let steps = shrink(steps, breaks);
        let what = breach(&steps)?.map_or(found.what, |breach| breach.what);
        Ok((self.quiet(steps), format!("{} breaks: {what}", found.law)))
    }

    /// The same operations, that ask for nothing which does not come.
    fn quiet(&self, steps: Vec<Step>) -> Vec<Step> {
        let plain = |step: Step| Step { code: None, expect: Expect::default(), ..step };
        let mut steps: Vec<Step> = steps.into_iter().map(plain).collect();
        match self.with_steps(steps.clone()).explain() {
            Ok(explained) => {
                for explained in explained.iter().filter(|explained| explained.mismatch.is_some()) {
                    for step in &mut steps[explained.steps.clone()] {
                        *step = whatever_comes(step);
                    }
                }
                steps
            }
            // Of a subject in a process of its own nobody knows here.
            Err(_) => steps.iter().map(whatever_comes).collect(),
        }
    }
}

/// A step of which nothing is asked but that it answers: what the case is about is another.
fn whatever_comes(step: &Step) -> Step {
    Step { code: None, expect: Expect(ExpectTable { any: true, ..ExpectTable::default() }), ..step.clone() }
}
