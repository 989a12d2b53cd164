//! What the environment says. A bad value is an error at the first call, with a message, and never a silent default.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use hostview_sim::{CallKind, DrvError, PlannedFault, Profile};

/// Where lines go.
pub(crate) type Sink = Box<dyn Write + Send>;

/// The environment, read and checked.
pub(crate) struct Config {
    pub(crate) profile: Profile,
    pub(crate) log: Option<Sink>,
    pub(crate) journal: Option<Sink>,
    /// What stands at the top of a journal: the profile as the environment names it, so that the calls can be made again.
    pub(crate) title: String,
    pub(crate) faults: Vec<PlannedFault>,
    pub(crate) pace: bool,
}

impl Config {
    /// A profile, and nothing else.
    pub(crate) fn plain(profile: Profile) -> Self {
        Self { profile, log: None, journal: None, title: String::new(), faults: Vec::new(), pace: false }
    }

    pub(crate) fn from_environment() -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let name = variable("HOSTVIEW_PROFILE").unwrap_or_else(|| "a2a3".to_owned());
        let mut profile = Profile::find(&name).map_err(|error| format!("HOSTVIEW_PROFILE: {error}"))?;
        if let Some(count) = variable("HOSTVIEW_DEVICES") {
            let wrong = || format!("HOSTVIEW_DEVICES is `{count}`; give 1 to 64");
            profile.device.count = count.parse().map_err(|_| wrong())?;
            profile.check("HOSTVIEW_DEVICES").map_err(|_| wrong())?;
        }
        let pace = match variable("HOSTVIEW_PACE").as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(other) => return Err(format!("HOSTVIEW_PACE is `{other}`; give 1 or 0")),
        };
        let title = serde_json::json!({
            "title": "what a program called",
            "profile": absolute(&name),
            "profile_override": { "device": { "count": profile.device.count } },
        });
        Ok(Self {
            profile,
            title: title.to_string(),
            log: variable("HOSTVIEW_LOG").map(|to| sink("HOSTVIEW_LOG", &to)).transpose()?,
            journal: variable("HOSTVIEW_JOURNAL").map(|to| sink("HOSTVIEW_JOURNAL", &to)).transpose()?,
            faults: variable("HOSTVIEW_FAULTS").map_or(Ok(Vec::new()), |text| faults(&text))?,
            pace,
        })
    }
}

/// A profile's name, or its file from wherever it is looked at.
fn absolute(name: &str) -> String {
    let path = std::path::absolute(name).ok().filter(|_| Profile::is_path(name));
    path.map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

/// `stderr`, or a file that is added to; `%p` in its name is the process, so that several do not write into one.
fn sink(name: &str, to: &str) -> Result<Sink, String> {
    if to == "stderr" {
        return Ok(Box::new(std::io::stderr()));
    }
    let path = PathBuf::from(to.replace("%p", &std::process::id().to_string()));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.map(|file| Box::new(file) as Sink).map_err(|error| format!("{name}: {to}: cannot be written: {error}"))
}

/// `call:nth:ERROR`, several with commas between: `unregister:1:DRV_ERROR_BUSY`.
fn faults(text: &str) -> Result<Vec<PlannedFault>, String> {
    text.split(',')
        .map(|part| {
            let wrong = |what: &str| {
                format!("HOSTVIEW_FAULTS: `{part}`: {what}; give call:nth:ERROR, as unregister:1:DRV_ERROR_BUSY")
            };
            let mut fields = part.trim().split(':');
            let (Some(call), Some(nth), Some(error), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(wrong("is no fault"));
            };
            let call = CallKind::ALL.into_iter().find(|kind| kind.name() == call);
            Ok(PlannedFault {
                call: call.ok_or_else(|| wrong("unknown call"))?,
                nth: nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(|| wrong("nth counts from 1"))?,
                error: DrvError::from_name(error).ok_or_else(|| wrong("unknown error"))?,
                lasting: false,
            })
        })
        .collect()
}
