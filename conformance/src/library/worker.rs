//! The process that has the library: it answers one request after the other, and gives everything back when there are none.

#![allow(unsafe_code, reason = "standard output is kept from the library")]

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::FromRawFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::platform::LibraryPlatform;
use super::wire::{Bytes, Reply, Request, device_address, host_address};
use crate::platform::Platform as _;
use hostview_sim::{RegisterCall, RegisterFlags};

/// What a call may still take after the suite has gone, before this process gives up on it.
const AFTER_THE_END: Duration = Duration::from_secs(10);

/// Answers requests from standard input until it ends, then gives everything back.
///
/// # Errors
///
/// Standard input or output are not there.
pub fn serve() -> io::Result<()> {
    ignore_signals()?;
    let (requests, mut replies) = take_streams()?;
    let mut platform: Option<LibraryPlatform> = None;
    for line in requests {
        let Ok(request) = serde_json::from_str::<Request>(&line) else { break };
        let reply = answer(&mut platform, request);
        let mut line = serde_json::to_string(&reply).unwrap_or_default();
        line.push('\n');
        if replies.write_all(line.as_bytes()).and_then(|()| replies.flush()).is_err() {
            break;
        }
    }
    if let Some(platform) = &mut platform {
        platform.clean_up();
        platform.close();
    }
    Ok(())
}

/// A signal to the whole group is the suite's to act on; it then closes this process' input.
fn ignore_signals() -> io::Result<()> {
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, ignored.clone())?;
    }
    Ok(())
}

/// The requests, and where replies go. The library gets neither: what it prints goes to standard error.
fn take_streams() -> io::Result<(Receiver<String>, File)> {
    let duplicate = |descriptor: i32| -> io::Result<File> {
        // SAFETY: makes a new descriptor, which nobody else has.
        let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 100) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: open, just made, and owned by nobody else.
        Ok(unsafe { File::from_raw_fd(copy) })
    };
    let (input, output) = (duplicate(0)?, duplicate(1)?);
    let nothing = File::open("/dev/null")?;
    // SAFETY: standard input becomes empty, and standard output standard error; both are open descriptors of this process.
    let moved = unsafe {
        use std::os::fd::AsRawFd as _;
        libc::dup2(nothing.as_raw_fd(), 0) >= 0 && libc::dup2(2, 1) >= 0
    };
    if !moved {
        return Err(io::Error::last_os_error());
    }
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines() {
            if line.is_err() || sender.send(line.unwrap_or_default()).is_err() {
                break;
            }
        }
        drop(sender);
        // The suite has gone. A call that does not return must not keep this process for ever.
        std::thread::sleep(AFTER_THE_END);
        std::process::exit(1);
    });
    Ok((requests, output))
}

fn answer(platform: &mut Option<LibraryPlatform>, request: Request) -> Reply {
    let Some(platform) = platform else {
        let Request::Open { paths, limits } = request else {
            return Reply::CannotOpen("nothing is opened yet".to_owned());
        };
        return match LibraryPlatform::open(&paths, limits) {
            Ok(opened) => {
                let facts = Box::new(opened.facts().clone());
                *platform = Some(opened);
                Reply::Opened(facts)
            }
            Err(error) => Reply::CannotOpen(error.to_string()),
        };
    };
    let done =
        |result: Result<(), crate::ErrorCode>| result.map_or_else(|error| Reply::Error(error.0), |()| Reply::Done);
    let len = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
    match request {
        Request::Open { .. } => Reply::Opened(Box::new(platform.facts().clone())),
        Request::Alloc { device, bytes, policy, via } => match platform.alloc(device, bytes, policy, via) {
            Ok(base) => Reply::Address(base.get()),
            Err(error) => Reply::Error(error.0),
        },
        Request::Free { address, via } => done(platform.free(device_address(address), via)),
        Request::Register { address, bytes, flags, device, has_dst } => {
            let flags = RegisterFlags(flags);
            let call = RegisterCall { address: device_address(address), bytes, flags, device, has_dst };
            match platform.register(call) {
                Ok(view) => Reply::Address(view.get()),
                Err(error) => Reply::Error(error.0),
            }
        }
        Request::Unregister { address, device } => done(platform.unregister(device_address(address), device)),
        Request::UnregisterEx { address, device, flags } => {
            done(platform.unregister_ex(device_address(address), device, flags))
        }
        Request::CopyIn { address, data } => done(platform.copy_in(device_address(address), &data.0)),
        Request::CopyOut { address, bytes } => {
            let mut into = vec![0; len(bytes)];
            match platform.copy_out(device_address(address), &mut into) {
                Ok(()) => Reply::Bytes(Bytes(into)),
                Err(error) => Reply::Error(error.0),
            }
        }
        Request::HostRead { address, bytes } => {
            let mut into = vec![0; len(bytes)];
            match platform.host_read(host_address(address), &mut into) {
                Ok(()) => Reply::Bytes(Bytes(into)),
                Err(fault) => Reply::fault(fault),
            }
        }
        Request::HostWrite { address, data } => match platform.host_write(host_address(address), &data.0) {
            Ok(()) => Reply::Done,
            Err(fault) => Reply::fault(fault),
        },
        Request::MemoryAt { address } => Reply::Memory(platform.memory_at(device_address(address))),
        Request::CleanUp => Reply::Left(platform.clean_up()),
    }
}
