//! What the last long soak on this machine said. It is made by `make soak`; here it is only quoted.

use std::fmt::Write as _;

use serde_json::Value;

use crate::Options;
use crate::report::{Bar, Report};

pub(crate) fn quote(options: &Options, report: &mut Report) {
    let summary =
        std::fs::read(&options.soak).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let Some(summary) = summary else {
        return report
            .note(format!("the soak: there is no {} (`make soak` writes it)", options.soak.display()));
    };
    let number = |key: &str| summary[key].as_f64().unwrap_or(f64::NAN);
    report.figure("cycles of the soak (`make soak`)", number("cycles"), "", Some(Bar::AtLeast(5_000.0)));
    report.figure("losses in them", number("losses"), "", Some(Bar::AtMost(0.0)));
    report.figure("refusals in them", number("refusals"), "", Some(Bar::AtMost(0.0)));
    report.figure("kills of server and launcher in them", number("kills"), "", None);
    let mut text = format!(
        "Seed {}, {} s, {} sandboxes at once. Every step is followed by a look at all files and at the memory of a process.\n\n",
        summary["seed"], summary["seconds"], summary["sandboxes"]
    );
    for part in ["steps", "deaths", "died_at"] {
        let counts = summary[part].as_object().into_iter().flatten();
        let words: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
        let _ = writeln!(text, "- {}: {}", part.replace('_', " "), words.join(", "));
    }
    report.section("The soak", text);
}
