//! `hostview laws` and `hostview profiles`.

use clap::Args;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use hostview::case::to_toml;
use hostview::check::law_as_case;
use hostview::laws::{self, Need};
use hostview_sim::{Profile, ProfileError};
use serde_json::{Value, json};

use super::out::{say, say_line};
use super::{Exit, Wrong};

/// Lists the laws, with their sources
#[derive(Debug, Args)]
pub(super) struct LawsArguments {
    /// As JSON
    #[arg(long)]
    json: bool,

    /// Prints the sequence of a D-law as a case file instead
    #[arg(long, value_name = "ID", conflicts_with = "json")]
    case: Option<String>,

    /// The profile that the sequence is for
    #[arg(long, value_name = "NAME|FILE", default_value = "a2a3", requires = "case")]
    profile: String,
}

/// Lists the profiles that ship, with their sources
#[derive(Debug, Args)]
pub(super) struct ProfilesArguments {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The width of a terminal that everybody has.
const WIDTH: u16 = 80;

pub(super) fn laws(arguments: &LawsArguments) -> Result<Exit, Wrong> {
    if let Some(id) = &arguments.case {
        return law_case(id, &arguments.profile);
    }
    let needs = |needs: &[Need]| needs.iter().map(|need| need.words()).collect::<Vec<_>>();
    if arguments.json {
        let laws: Vec<Value> = laws::all()
            .map(|law| {
                json!({ "id": law.id, "statement": law.statement, "source": law.source, "needs": needs(law.needs) })
            })
            .collect();
        say_line(&format!("{:#}", Value::from(laws)));
        return Ok(Exit::Holds);
    }
    let mut table = table(["id", "statement", "source"]);
    for law in laws::all() {
        let needs = needs(law.needs);
        let needs = if needs.is_empty() { String::new() } else { format!("\nneeds {}", needs.join(", ")) };
        table.add_row([law.id.to_string(), format!("{}{needs}", law.statement), law.source.to_owned()]);
    }
    table.set_constraints([
        ColumnConstraint::Absolute(Width::Fixed(5)),
        ColumnConstraint::Absolute(Width::Fixed(46)),
        ColumnConstraint::Absolute(Width::Fixed(29)),
    ]);
    show(&table);
    Ok(Exit::Holds)
}

fn law_case(id: &str, profile: &str) -> Result<Exit, Wrong> {
    let Some(law) = laws::driver_laws().iter().find(|law| law.law.id.0.eq_ignore_ascii_case(id)) else {
        return Err(Wrong(match laws::find(id) {
            Some(law) => {
                format!("{} watches every sequence and has none of its own; `hostview check` draws them", law.id)
            }
            None => format!("no law `{id}`; `hostview laws` lists them"),
        }));
    };
    let found = Profile::find(profile)?;
    let case = law_as_case(law, &found, profile)
        .map_err(|reason| Wrong(format!("{} has no sequence on {profile}: {reason}", law.law.id)))?;
    say(&to_toml(&case));
    Ok(Exit::Holds)
}

pub(super) fn profiles(arguments: &ProfilesArguments) -> Result<Exit, Wrong> {
    let profiles: Vec<Profile> = Profile::shipped_names().map(Profile::shipped).collect::<Result<_, ProfileError>>()?;
    if arguments.json {
        let profiles: Vec<Value> = profiles
            .iter()
            .map(|profile| json!({ "profile": profile, "capabilities": profile.capabilities() }))
            .collect();
        say_line(&format!("{:#}", Value::from(profiles)));
        return Ok(Exit::Holds);
    }
    let mut table = table(["name", "host", "ordinary", "huge", "what it is"]);
    for profile in &profiles {
        let can = |kind| if profile.can_register(kind) { "yes" } else { "refused" };
        table.add_row([
            profile.name.clone(),
            format!("{}K", profile.host.page_size.bytes() >> 10),
            can(hostview_sim::PageKind::Ordinary).to_owned(),
            can(hostview_sim::PageKind::Huge).to_owned(),
            format!("{}\n{}", profile.summary, profile.source),
        ]);
    }
    table.set_constraints([
        ColumnConstraint::Absolute(Width::Fixed(10)),
        ColumnConstraint::Absolute(Width::Fixed(6)),
        ColumnConstraint::Absolute(Width::Fixed(10)),
        ColumnConstraint::Absolute(Width::Fixed(9)),
        ColumnConstraint::Absolute(Width::Fixed(45)),
    ]);
    show(&table);
    say_line("host: its page size. ordinary, huge: whether such pages can be registered there.");
    say_line("A file is a profile too: start from one in fixtures/profiles.");
    Ok(Exit::Holds)
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header);
    table
}

fn show(table: &Table) {
    for line in table.lines() {
        say_line(line.trim_end());
    }
}
