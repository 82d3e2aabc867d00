//! Formats numbers and tables for people. Never used with `--json`.

use jiff::Timestamp;

/// `just now`, `42s`, `3m`, `5h`, `12d`.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "-".to_owned(), |since| span(now.duration_since(since).as_secs().max(0)))
}

/// The time until `at`; `-` for never, `due` if it has passed.
pub(crate) fn left(at: Option<Timestamp>, now: Timestamp) -> String {
    match at.map(|at| at.duration_since(now).as_secs()) {
        None => "-".to_owned(),
        Some(secs) if secs <= 0 => "due".to_owned(),
        // Rounded to the nearest: a new hour is not shown as 59 minutes.
        Some(secs @ ..60) => span(secs),
        Some(secs @ 60..3_570) => span(secs + 30),
        // An hour and a half is shown exactly.
        Some(secs @ 3_570..84_600) => exact(u64::try_from((secs + 30) / 60 * 60).unwrap_or(0)),
        Some(secs) => span(secs + 43_200),
    }
}

fn span(secs: i64) -> String {
    match secs {
        ..60 => format!("{secs}s"),
        60..3_600 => format!("{}m", secs / 60),
        3_600..86_400 => format!("{}h", secs / 3_600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// `10m`, `1h30m`, `7d`: a duration as users type it, without rounding.
pub(crate) fn exact(secs: u64) -> String {
    let parts = [(secs / 86_400, 'd'), (secs / 3_600 % 24, 'h'), (secs / 60 % 60, 'm'), (secs % 60, 's')];
    let text: String =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// `17 B`, `4.2 KiB`, `512 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1_024.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 || value.fract() < 0.05 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Text from a sandbox in one line, safe for a terminal: control sequences are shown as text and have no effect.
pub(crate) fn harmless(text: &str) -> String {
    escaped(text, acts_on_terminal)
}

/// The same for a text of several lines, which may have tabs.
pub(crate) fn harmless_lines(text: &str) -> String {
    escaped(text, |c| acts_on_terminal(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, must_escape: impl Fn(char) -> bool) -> String {
    text.chars().flat_map(|c| if must_escape(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Control characters, and those that change the direction in which a line is read.
fn acts_on_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Aligned columns under a header, two spaces between them.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| harmless(cell)).collect());
    }

    /// The lines, header first; without trailing spaces.
    pub(crate) fn lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
                cells.chain([self.header[i].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let header: Vec<String> = self.header.iter().map(|cell| (*cell).to_owned()).collect();
        std::iter::once(&header).chain(&self.rows).map(|row| aligned(row, &widths)).collect()
    }
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in row.iter().zip(widths) {
        line.push_str(cell);
        let gap = width.saturating_sub(cell.chars().count()) + 2;
        line.extend(std::iter::repeat_n(' ', gap));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_second(1_000_000).expect("valid");
        let ago = |secs: i64| Timestamp::from_second(1_000_000 - secs).ok();
        for (secs, want) in [(0, "0s"), (59, "59s"), (60, "1m"), (7_300, "2h"), (200_000, "2d"), (-5, "0s")] {
            assert_eq!(age(ago(secs), now), want);
        }
        assert_eq!(age(None, now), "-");
        assert_eq!(
            (left(None, now), left(ago(1), now), left(ago(-90), now)),
            ("-".into(), "due".into(), "2m".into())
        );
    }

    #[test]
    fn what_is_left_is_said_to_the_nearest() {
        let now = Timestamp::from_second(1_000_000).expect("valid");
        let ahead = |secs: i64| left(Timestamp::from_second(1_000_000 + secs).ok(), now);
        for (secs, want) in
            [(59, "59s"), (899, "15m"), (3_569, "59m"), (3_599, "1h"), (5_400, "1h30m"), (7_199, "2h")]
        {
            assert_eq!(ahead(secs), want, "{secs}");
        }
        for (secs, want) in [(84_599, "23h30m"), (86_399, "1d"), (172_799, "2d")] {
            assert_eq!(ahead(secs), want, "{secs}");
        }
    }

    #[test]
    fn durations_are_shown_as_they_are_typed() {
        for (secs, want) in
            [(0, "0s"), (45, "45s"), (600, "10m"), (5_400, "1h30m"), (604_800, "7d"), (90_061, "1d1h1m1s")]
        {
            assert_eq!(exact(secs), want);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (count, want) in
            [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (512 << 20, "512 MiB"), (3 << 40, "3 TiB")]
        {
            assert_eq!(bytes(count), want);
        }
    }

    #[test]
    fn nothing_in_a_name_acts_on_the_terminal() {
        let name = "a\u{1b}[2J\u{9b}1m\r\nb\t\u{202e}c é";
        assert_eq!(harmless(name), r"a\u{1b}[2J\u{9b}1m\r\nb\t\u{202e}c é");
        assert_eq!(harmless_lines(name), "a\\u{1b}[2J\\u{9b}1m\\r\nb\t\\u{202e}c é");
    }

    #[test]
    fn columns_line_up_and_no_cell_moves_the_cursor() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(vec!["abc".into(), "x".into()]);
        table.row(vec!["a".into(), "evil\u{1b}[2J".into()]);
        assert_eq!(table.lines(), ["ID   NAME", "abc  x", "a    evil\\u{1b}[2J"]);
    }
}
