//! The table of capabilities in `docs/providers.md`. The suite of each provider checks its own column, and with `UPDATE=1`
//! writes it.

use std::path::Path;

use crate::{Capabilities, Capability};

/// Compares a column of the table in `file` with what a provider can do. `depends_on_machine`: a capability that is missing
/// here may be there elsewhere.
pub fn check_capability_table(file: &Path, column: &str, able: &Capabilities, depends_on_machine: bool) {
    let text = std::fs::read_to_string(file).unwrap();
    for capability in Capability::ALL {
        assert!(
            text.contains(&format!("\n| `{capability}` |")),
            "{} has no row for {capability}",
            file.display()
        );
    }
    let written = with_column(&text, column, |capability, is_documented| {
        able.has(capability) || (depends_on_machine && is_documented)
    });
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, written).unwrap();
    } else {
        assert_eq!(text, written, "{} is not what {column} can do; UPDATE=1 writes it", file.display());
    }
}

/// The text with the column as it should be; a missing one is added.
fn with_column(text: &str, column: &str, has: impl Fn(Capability, bool) -> bool) -> String {
    let mut place = None;
    let line = |line: &str| {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            place = None;
            return line.to_owned();
        };
        let mut cells: Vec<&str> = row.split(" | ").collect();
        if cells[0] == "capability" {
            place = Some(cells.iter().position(|cell| *cell == column).unwrap_or(cells.len()));
        }
        let Some(place) = place else { return line.to_owned() };
        let capability = Capability::ALL.into_iter().find(|one| cells[0] == format!("`{one}`"));
        let content = match capability {
            None if cells[0] == "capability" => column,
            None => "---",
            Some(capability) if has(capability, cells.get(place) == Some(&"yes")) => "yes",
            Some(_) => "no",
        };
        match cells.get_mut(place) {
            Some(cell) => *cell = content,
            None => cells.push(content),
        }
        format!("| {} |", cells.join(" | "))
    };
    text.lines().map(line).fold(String::new(), |text, line| text + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "before | x\n\n| capability | one |\n| --- | --- |\n| `dial` | yes |\n| `pause` | no |\n\n| a | b |\n";

    #[test]
    fn a_column_is_added_corrected_and_kept() {
        let only_pause = |capability: Capability, _: bool| capability == Capability::Pause;
        let added = with_column(TABLE, "two", only_pause);
        assert_eq!(
            added,
            "before | x\n\n| capability | one | two |\n| --- | --- | --- |\n| `dial` | yes | no |\n| `pause` | no | yes |\n\n| a | b |\n"
        );
        assert_eq!(with_column(&added, "two", only_pause), added);
        assert!(with_column(&added, "one", only_pause).contains("| `dial` | no | no |"));
        assert_eq!(with_column(TABLE, "one", |_, is_documented| is_documented), TABLE);
    }
}
