//! The table of a run: profile × subject × laws.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::words::wrapped;
use crate::check::{CheckOptions, LawResult, Report, Row, Standing};
use crate::laws::LawId;

const LEGEND: &str = ". passed   r refused as it must be   - not applicable   X broken";
const NOT_CHECKED: &str = "   ? not checked";

/// The tables of both families, each with its legend.
#[must_use]
pub fn matrix(report: &Report) -> String {
    let (driver, views): (Vec<&Row>, Vec<&Row>) = report.rows.iter().partition(|row| row.subject.is_none());
    let mut text = String::new();
    for (title, rows) in [("D-laws: how registration behaves", driver), ("V-laws: what a view cache keeps", views)] {
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title}\n{}\n", family(&rows));
    }
    if !text.is_empty() {
        let unchecked = |law: &LawResult| matches!(law.standing, Standing::NotChecked(_));
        let more = if report.rows.iter().flat_map(|row| &row.laws).any(unchecked) { NOT_CHECKED } else { "" };
        let _ = writeln!(text, "{LEGEND}{more}");
    }
    text
}

fn family(rows: &[&Row]) -> String {
    let with_subject = rows.iter().any(|row| row.subject.is_some());
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["profile".to_owned()];
    if with_subject {
        header.push("subject".to_owned());
    }
    header.push(ruler(&rows[0].laws));
    header.extend(["passed", "refused", "n/a", "broken"].map(str::to_owned));
    let columns = header.len();
    table.set_header(header);
    for row in rows {
        let mut cells = vec![row.profile.clone()];
        if with_subject {
            cells.push(row.subject.clone().unwrap_or_default());
        }
        cells.push(row.laws.iter().map(|law| mark(&law.standing)).collect());
        let count = |wanted: fn(&Standing) -> bool| row.laws.iter().filter(|law| wanted(&law.standing)).count();
        cells.push(count(|standing| *standing == Standing::Passed).to_string());
        cells.push(count(|standing| *standing == Standing::Refused).to_string());
        cells.push(count(|standing| matches!(standing, Standing::NotApplicable(_))).to_string());
        cells.push(count(|standing| *standing == Standing::Broken).to_string());
        table.add_row(cells);
    }
    for column in columns - 4..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The laws' numbers, read from top to bottom.
fn ruler(laws: &[LawResult]) -> String {
    let digit = |at: usize| laws.iter().map(|law| law.id.0.chars().nth(at).unwrap_or(' ')).collect::<String>();
    format!("{}\n{}", digit(1), digit(2))
}

fn mark(standing: &Standing) -> char {
    match standing {
        Standing::Passed => '.',
        Standing::Refused => 'r',
        Standing::NotApplicable(_) => '-',
        Standing::NotChecked(_) => '?',
        Standing::Broken => 'X',
    }
}

/// Why laws were not applicable or not checked: one line for each law and reason, with the rows that it is about.
#[must_use]
pub fn reasons(report: &Report) -> String {
    let mut rows: BTreeMap<(LawId, &str, &str), Vec<&Row>> = BTreeMap::new();
    let mut books: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &report.rows {
        for law in &row.laws {
            let (word, reason) = match &law.standing {
                Standing::NotApplicable(reason) => ("not applicable", reason),
                Standing::NotChecked(reason) => ("not checked", reason),
                Standing::Passed | Standing::Refused | Standing::Broken => continue,
            };
            rows.entry((law.id, word, reason)).or_default().push(row);
        }
        if let Some(reason) = &row.bookkeeping {
            books.entry(reason).or_default().push(&row.profile);
        }
    }
    // Laws that share a reason share a line.
    let mut lines: Vec<(Vec<String>, String)> = Vec::new();
    for ((law, word, reason), rows) in rows {
        let names = where_it_is(law, &rows, report);
        let said = format!("{word}: {reason} ({names})");
        match lines.iter_mut().find(|(_, other)| *other == said) {
            Some((laws, _)) => laws.push(law.to_string()),
            None => lines.push((vec![law.to_string()], said)),
        }
    }
    let mut text = String::new();
    for (laws, said) in lines {
        let _ = writeln!(text, "{}", wrapped(&format!("{} {said}", laws.join(", ")), "", "    "));
    }
    for (reason, mut profiles) in books {
        profiles.dedup();
        let _ = writeln!(
            text,
            "{}",
            wrapped(&format!("memory not protected, books only: {reason} ({})", profiles.join(", ")), "", "    ")
        );
    }
    text
}

/// The rows that a reason is about: a subject alone stands for its rows on every profile.
fn where_it_is(law: LawId, rows: &[&Row], report: &Report) -> String {
    let all: Vec<&Row> = report.rows.iter().filter(|row| row.laws.iter().any(|result| result.id == law)).collect();
    if rows.len() == all.len() && all.len() > 1 {
        return "everywhere".to_owned();
    }
    let whole = |subject: &String| {
        let of = |rows: &[&Row]| rows.iter().filter(|row| row.subject.as_ref() == Some(subject)).count();
        of(&all) > 1 && of(&all) == of(rows)
    };
    let names: BTreeSet<String> = rows
        .iter()
        .map(|row| match &row.subject {
            Some(subject) if whole(subject) => subject.clone(),
            Some(subject) => format!("{}/{subject}", row.profile),
            None => row.profile.clone(),
        })
        .collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// How much was run, and how it ended.
#[must_use]
pub fn summary(options: &CheckOptions, report: &Report) -> String {
    let sequences: u64 = report.rows.iter().map(|row| u64::from(row.sequences)).sum();
    let checks: u64 = report.rows.iter().flat_map(|row| &row.laws).map(|law| law.tally.held + law.tally.refused).sum();
    let mut broken: Vec<LawId> = report.failures.iter().map(|failure| failure.law).collect();
    broken.sort();
    broken.dedup();
    let broken: Vec<String> = broken.iter().map(LawId::to_string).collect();
    let verdict = match broken.len() {
        0 if checks == 0 => "No law could be checked".to_owned(),
        0 => "All laws hold".to_owned(),
        _ => format!("Broken: {}", broken.join(", ")),
    };
    format!(
        "{verdict}. {}, {sequences} sequences, {checks} checks of a law.\n\
         Seed {}, {} sequences for each profile and subject, {} trials for each D-law.",
        match options.profiles.len() {
            1 => "1 profile".to_owned(),
            profiles => format!("{profiles} profiles"),
        },
        options.seed,
        options.cases,
        options.trials
    )
}
