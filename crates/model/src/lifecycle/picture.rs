//! The table as documentation: a diagram, and tables in Markdown. Generated from the table itself, so that the
//! documents are always correct.

use std::fmt::Write as _;

use super::{Effect, Event, TABLE, phase_deadline_ms};
use crate::Phase;

/// A Mermaid state diagram. Deletions, which are possible in every phase, are one note instead of an arrow each.
#[must_use]
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> creating\n");
    for from in Phase::ALL {
        for to in Phase::ALL {
            let events = between(from, to);
            if from != to && !events.is_empty() {
                line(
                    &mut text,
                    format_args!("    {} --> {}: {}", from.as_str(), to.as_str(), events.join(", ")),
                );
            }
        }
    }
    text.push_str("    deleted --> [*]\n    note right of deleting: delete leads here from every phase\n");
    let passing: Vec<_> =
        Phase::ALL.iter().filter(|p| phase_deadline_ms(**p).is_some()).map(|p| p.as_str()).collect();
    text.push_str("    classDef passing font-style:italic,stroke-dasharray:4\n");
    line(&mut text, format_args!("    class {} passing", passing.join(",")));
    text
}

/// The events that lead from one phase to another, without `delete`.
fn between(from: Phase, to: Phase) -> Vec<String> {
    let rows = TABLE.iter().filter(|row| (row.0, row.2) == (from, to) && row.1 != Event::Delete);
    rows.map(|row| word(&row.1)).collect()
}

/// Every phase with every event: the next phase, and in brackets the effect at the provider. An empty cell is a
/// refusal.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("| from \\ event |");
    for event in Event::ALL {
        let _ = write!(text, " {} |", word(&event));
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(Event::ALL.len()));
    text.push('\n');
    for phase in Phase::ALL {
        let cells: Vec<_> = Event::ALL.iter().map(|event| cell(phase, *event)).collect();
        line(&mut text, format_args!("| **{}** | {} |", phase.as_str(), cells.join(" | ")));
    }
    text
}

fn cell(phase: Phase, event: Event) -> String {
    match super::step(phase, event) {
        Err(_) => String::new(),
        Ok((to, Effect::None)) => to.as_str().to_owned(),
        Ok((to, effect)) => format!("{} ({})", to.as_str(), word(&effect)),
    }
}

/// How long each passing phase may last.
#[must_use]
pub fn deadlines() -> String {
    let mut text = String::from("| phase | may last |\n|---|---|\n");
    for phase in Phase::ALL {
        let last = match phase_deadline_ms(phase) {
            None => "without limit".to_owned(),
            Some(ms) if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
            Some(ms) => format!("{} s", ms / 1_000),
        };
        line(&mut text, format_args!("| {} | {last} |", phase.as_str()));
    }
    text
}

fn word<T: std::fmt::Debug>(of: &T) -> String {
    format!("{of:?}").to_lowercase()
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{content}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- generated from the table: begin -->";
    const END: &str = "<!-- generated from the table: end -->";

    /// `UPDATE=1 cargo test -p atoll-model picture` regenerates it.
    #[test]
    fn the_document_shows_the_table_as_it_is() {
        let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let path = format!("{folder}/../../docs/lifecycle.md");
        let document = std::fs::read_to_string(&path).expect("docs/lifecycle.md is there");
        let (before, rest) = document.split_once(BEGIN).expect("the block begins");
        let (shown, after) = rest.split_once(END).expect("the block ends");
        let wanted = format!("\n```mermaid\n{}```\n\n{}\n{}", mermaid(), table(), deadlines());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("it can be written");
        } else {
            assert!(shown == wanted, "docs/lifecycle.md is old: UPDATE=1 cargo test -p atoll-model picture");
        }
    }

    #[test]
    fn the_note_on_deletions_is_true() {
        for phase in Phase::ALL {
            let (to, _) = super::super::step(phase, Event::Delete).expect("delete is never refused");
            assert_eq!(to, if phase == Phase::Deleted { Phase::Deleted } else { Phase::Deleting });
        }
    }
}
