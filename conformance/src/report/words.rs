//! A step as a person would tell it.

use hostview_sim::ByteCount;

use crate::case::{By, Op, Pause, Step, Via};

/// A step in one line: `alloc a: 4 KiB, huge_first`.
#[must_use]
pub fn describe_step(step: &Step) -> String {
    let target = step.target.as_deref().unwrap_or("");
    let place = match step.offset {
        0 => target.to_owned(),
        offset if offset > 1 << 63 => format!("{target} - {}", ByteCount(offset.wrapping_neg())),
        offset => format!("{target} + {}", ByteCount(offset)),
    };
    let range = match step.bytes {
        Some(bytes) if bytes > 1 << 62 => format!("{place}, {bytes} bytes"),
        Some(bytes) => format!("{place}, {}", ByteCount(bytes)),
        None => place.clone(),
    };
    let mut text = match step.op {
        Op::Alloc => {
            let name = step.name.as_deref().unwrap_or("?");
            let policy = step.policy.name();
            format!("alloc {name}: {}, {policy}", ByteCount(step.bytes.unwrap_or(0)))
        }
        Op::Finalize => "finalize".to_owned(),
        Op::Free | Op::Release | Op::Unregister => format!("{} {place}", step.op.name()),
        _ => format!("{} {range}", step.op.name()),
    };
    if let Some(fill) = step.fill {
        text += &format!(" of {fill:#04x}");
    }
    if let Some(data) = &step.data {
        text += &format!(" = {data}");
    }
    if step.device != 0 {
        text += &format!(", device {}", step.device);
    }
    match step.via {
        Via::Rt => {}
        Via::Acl => text += ", through ACL",
        Via::Hal => text += ", straight at the HAL",
    }
    if step.by == Some(By::View) {
        text += ", by the view's address";
    }
    if step.read_only {
        text += ", read-only";
    }
    if let Some(flags) = step.flags {
        text += &format!(", flags {flags:#x}");
    }
    if step.hold {
        text += ", and hold the view";
    }
    if let Some(fail) = &step.fail {
        let which = match fail.nth {
            nth if fail.lasting => format!("every {} from number {nth} on", fail.call),
            1 => format!("the next {}", fail.call),
            nth => format!("{} number {nth} from here", fail.call),
        };
        text += &format!("   ({which} fails: {})", fail.error);
    }
    let stands_still = match step.pause {
        None => return text,
        Some(Pause::Before(nth)) => format!("before its call {nth}"),
        Some(Pause::After(nth)) => format!("after its call {nth}"),
    };
    text + &format!("   (stands still {stands_still}, and the next step runs)")
}

/// Breaks a text at 80 columns, the first line and the others each behind their indent.
#[must_use]
pub fn wrapped(text: &str, first: &str, rest: &str) -> String {
    const COLUMNS: usize = 80;
    let (mut done, mut line) = (String::new(), first.to_owned());
    let mut at_start = true;
    for word in text.split_whitespace() {
        if at_start {
            line += word;
            at_start = false;
        } else if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            done += &line;
            line = format!("\n{rest}{word}");
        } else {
            line += &format!(" {word}");
        }
    }
    done + &line
}

#[cfg(test)]
mod tests {
    use hostview_sim::PagePolicy;

    use super::*;
    use crate::case::Fail;
    use crate::expect::hex_of;

    #[test]
    fn a_step_reads_as_it_would_be_told() {
        let alloc = Step { device: 1, ..Step::alloc("a", 1_048_577, PagePolicy::HugeOnly) };
        assert_eq!(describe_step(&alloc), "alloc a: 1 MiB + 1 B, huge_only, device 1");
        let write = Step { fill: Some(0x5a), ..Step::on(Op::Write, "a").range(64, 4096) };
        assert_eq!(describe_step(&write), "write a + 64 B, 4 KiB of 0x5a");
        let fail = Fail {
            call: hostview_sim::CallKind::Unregister,
            nth: 1,
            error: "DRV_ERROR_BUSY".to_owned(),
            lasting: false,
        };
        let free = Step { fail: Some(fail), ..Step::on(Op::Free, "a") };
        assert_eq!(describe_step(&free), "free a   (the next unregister fails: DRV_ERROR_BUSY)");
        assert_eq!(hex_of(&[0x5a, 0x01]), "5a01");
    }
}
