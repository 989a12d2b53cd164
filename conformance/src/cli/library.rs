//! What commands that run on a driver library share: which one, which device, how much of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hostview::library::{CannotOpen, Choice, Layer, Limits, Paths, Summons, Watch, find, serve};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Exit, Wrong};

/// Which layer allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ViaChoice {
    /// The runtime, `libascendcl.so`
    Acl,
    /// The driver, by the runtime's own rule of page kinds
    Hal,
}

/// Which driver library, which device, and how much of it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "The driver library")]
pub(super) struct WhichLibrary {
    /// libascend_hal.so; looked for in LD_LIBRARY_PATH, ASCEND_HOME_PATH and the driver's own folders when left out
    #[arg(long, value_name = "FILE")]
    pub(super) hal: Option<PathBuf>,

    /// libascendcl.so; beside the other, or looked for as that is, when left out
    #[arg(long, value_name = "FILE")]
    acl: Option<PathBuf>,

    /// Which layer allocates; the runtime where there is one
    #[arg(long, value_enum)]
    via: Option<ViaChoice>,

    /// The device, or several with commas; from TASK_DEVICE or CTEST_RESOURCE_GROUP_0_NPUS, or 0, when left out
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    device: Vec<u32>,

    /// Device memory to take at a time, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(64..=1 << 24))]
    memory_limit: u64,
}

/// A driver library in a process of its own.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "The driver library")]
pub(super) struct LibraryArguments {
    #[command(flatten)]
    which: WhichLibrary,

    /// Seconds that a call may take
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    call_limit: f64,

    /// The driver's log file, to be followed: laws about its words are checked then
    #[arg(long, value_name = "FILE")]
    driver_log: Option<PathBuf>,
}

/// A number of seconds over 0.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "give seconds, as 10 or 0.5".to_owned())?;
    if value.is_finite() && value > 0.0 && value <= 1e6 { Ok(value) } else { Err("give seconds over 0".to_owned()) }
}

/// The command that a process with the library runs. Not for people.
pub(super) const SERVE: &str = "serve-library";

impl WhichLibrary {
    /// The devices, from the command line or the environment of the job.
    pub(super) fn devices(&self) -> Result<Vec<u32>, Wrong> {
        if !self.device.is_empty() {
            return Ok(self.device.clone());
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        if let Some(value) = variable("TASK_DEVICE") {
            return parse_list(&value).ok_or_else(|| {
                Wrong(format!("TASK_DEVICE is `{value}`; a device number is meant, or several with commas"))
            });
        }
        if let Some(value) = variable("CTEST_RESOURCE_GROUP_0_NPUS") {
            return parse_ctest(&value).ok_or_else(|| {
                Wrong(format!("CTEST_RESOURCE_GROUP_0_NPUS is `{value}`; ctest gives `id:3,slots:1` there"))
            });
        }
        Ok(vec![0])
    }

    /// Whether a library is asked for at all, where the simulator is what a command runs on otherwise.
    pub(super) fn is_given(&self) -> bool {
        self.hal.is_some() || self.acl.is_some() || self.via.is_some() || !self.device.is_empty()
    }

    /// The libraries; inside, why there are none.
    pub(super) fn paths(&self) -> Result<Paths, CannotOpen> {
        let via = self.via.map(|via| match via {
            ViaChoice::Acl => Layer::Acl,
            ViaChoice::Hal => Layer::Hal,
        });
        find(&Choice { hal: self.hal.clone(), acl: self.acl.clone(), via })
    }

    /// What may be taken of the machine.
    pub(super) fn limits(&self) -> Result<Limits, Wrong> {
        let devices = self.devices()?;
        let twice = |at: &usize| devices[..*at].contains(&devices[*at]);
        if let Some(at) = (0..devices.len()).find(twice) {
            return Err(Wrong(format!("device {} is named twice; laws about two devices need two", devices[at])));
        }
        Ok(Limits { devices, memory: self.memory_limit << 20 })
    }
}

impl LibraryArguments {
    /// Whether a library is asked for at all, where the simulator is what a command runs on otherwise.
    pub(super) fn is_given(&self) -> bool {
        self.which.is_given()
    }

    /// What a call may take.
    pub(super) fn call_limit(&self) -> Duration {
        Duration::from_secs_f64(self.call_limit)
    }

    /// How processes with the library are started; inside, why there is none.
    pub(super) fn summons(&self) -> Result<Result<Summons, CannotOpen>, Wrong> {
        let limits = self.which.limits()?;
        if let Some(log) = self.driver_log.as_ref().filter(|log| !log.is_file()) {
            // Its words would be missed, and the driver blamed for that.
            return Err(Wrong(format!("{}: is no file; give the file that the driver logs to", log.display())));
        }
        let paths = match self.which.paths() {
            Ok(paths) => paths,
            Err(error) => return Ok(Err(error)),
        };
        let program = std::env::current_exe().map_err(|error| Wrong(format!("this program is not found: {error}")))?;
        Ok(Ok(Summons {
            program,
            arguments: vec![SERVE.to_owned()],
            paths,
            limits,
            call_limit: self.call_limit(),
            driver_log: self.driver_log.clone(),
            watch: Arc::new(Watch::default()),
        }))
    }
}

/// Ends the run in order at the first SIGTERM or SIGINT, and at once at the second.
pub(super) fn heed_signals(watch: &Watch) -> Result<(), Wrong> {
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, watch.stop.clone())?;
        signal_hook::flag::register(signal, watch.stop.clone())?;
    }
    Ok(())
}

fn parse_list(text: &str) -> Option<Vec<u32>> {
    text.split(',').map(|part| part.trim().parse().ok()).collect()
}

/// `id:3,slots:1`, several with semicolons between.
fn parse_ctest(text: &str) -> Option<Vec<u32>> {
    text.split(';')
        .map(|group| group.split(',').find_map(|part| part.trim().strip_prefix("id:"))?.trim().parse().ok())
        .collect()
}

/// Says why a library cannot be opened.
pub(super) fn cannot_open(error: &CannotOpen) -> Exit {
    eprintln!("hostview: {error}");
    Exit::CannotOpen
}

/// `hostview serve-library`.
pub(super) fn run_serve() -> Result<Exit, Wrong> {
    serve()?;
    Ok(Exit::Holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_from_what_task_submit_and_ctest_set() {
        assert_eq!(parse_list("3"), Some(vec![3]));
        assert_eq!(parse_list("3, 4"), Some(vec![3, 4]));
        assert_eq!(parse_list("auto"), None);
        assert_eq!(parse_ctest("id:3,slots:1"), Some(vec![3]));
        assert_eq!(parse_ctest("id:3,slots:1;id:5,slots:1"), Some(vec![3, 5]));
        assert_eq!(parse_ctest("slots:1"), None);
    }
}
