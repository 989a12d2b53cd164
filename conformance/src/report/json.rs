//! A run as JSON. No wall time, no path of this machine: the same seed gives the same bytes.

use serde_json::{Value, json};

use super::story::{case_file_name, repeat_command};
use crate::check::{CheckOptions, Report, Standing};
use crate::laws;

/// The whole report.
#[must_use]
pub fn check_as_json(options: &CheckOptions, report: &Report) -> Value {
    let rows: Vec<Value> = report
        .rows
        .iter()
        .map(|row| {
            let laws: Vec<Value> = row
                .laws
                .iter()
                .map(|law| {
                    let (result, reason) = match &law.standing {
                        Standing::Passed => ("passed", None),
                        Standing::Refused => ("refused", None),
                        Standing::NotApplicable(reason) => ("not_applicable", Some(reason)),
                        Standing::NotChecked(reason) => ("not_checked", Some(reason)),
                        Standing::Broken => ("broken", None),
                    };
                    json!({
                        "id": law.id, "result": result, "reason": reason,
                        "held": law.tally.held, "refused": law.tally.refused,
                    })
                })
                .collect();
            json!({
                "profile": row.profile, "subject": row.subject, "sequences": row.sequences,
                "bookkeeping": row.bookkeeping, "laws": laws,
            })
        })
        .collect();
    let failures: Vec<Value> = report
        .failures
        .iter()
        .map(|failure| {
            json!({
                "law": failure.law,
                "statement": laws::find(failure.law.0).map(|law| law.statement),
                "profile": failure.profile, "subject": failure.subject,
                "step": failure.step + 1, "what": failure.what, "holding": failure.holding, "log": failure.log,
                "aftermath": failure.aftermath,
                "case": failure.case, "case_file": case_file_name(failure),
                "repeat": repeat_command(options, failure),
            })
        })
        .collect();
    json!({
        "suite": env!("CARGO_PKG_VERSION"), "seed": options.seed, "cases": options.cases,
        "holds": report.holds(), "rows": rows, "failures": failures,
    })
}
