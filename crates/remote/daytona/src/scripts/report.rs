//! What the scripts print about a process.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// How a process ended, as the supervisor noted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotedExit {
    pub(crate) status: i32,
    pub(crate) is_late: bool,
    /// The last signal that was sent through the toolbox; 0: none.
    pub(crate) signal: i32,
}

/// What the scripts print that start a process or read its output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) pid: Option<u32>,
    pub(crate) out: Bytes,
    pub(crate) err: Bytes,
    pub(crate) exit: Option<NotedExit>,
    /// The supervisor is not there any more.
    pub(crate) is_lost: bool,
    /// There is no such process, program or folder.
    pub(crate) missing: Option<MissingPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingPart {
    Process,
    Program,
    Folder,
}

impl Report {
    /// `None`: a script did not print this, or its end is missing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (mut report, mut rest) = (Self::default(), text);
        while let Some((line, after)) = rest.split_once('\n') {
            rest = after;
            match (line, line.split_once(' ')) {
                ("end", _) => return Some(report),
                ("o", _) => report.out = encoded(&mut rest)?,
                ("e", _) => report.err = encoded(&mut rest)?,
                ("l", _) => report.is_lost = true,
                ("n", _) => report.missing = Some(MissingPart::Process),
                ("m", _) => report.missing = Some(MissingPart::Program),
                ("c", _) => report.missing = Some(MissingPart::Folder),
                (_, Some(("p", pid))) => report.pid = Some(pid.parse().ok()?),
                (_, Some(("x", exit))) => report.exit = Some(noted_exit(exit)?),
                (_, Some((stream @ ("O" | "E"), length))) => {
                    let length = length.parse().ok()?;
                    let Some(data) = verbatim(&mut rest, length).filter(|_| is_exact(text)) else {
                        return Some(Self { pid: report.pid, ..Self::default() });
                    };
                    *(if stream == "O" { &mut report.out } else { &mut report.err }) = data;
                }
                _ => return None,
            }
        }
        None
    }
}

/// Bytes that are no UTF-8 arrive as replacement characters: such output is read again, in base64.
fn is_exact(text: &str) -> bool {
    !text.contains(char::REPLACEMENT_CHARACTER)
}

/// So many bytes, and the end of a line.
fn verbatim(rest: &mut &str, length: usize) -> Option<Bytes> {
    let (data, after) = rest.split_at_checked(length)?;
    *rest = after.strip_prefix('\n')?;
    Some(Bytes::copy_from_slice(data.as_bytes()))
}

/// Lines of base64 up to one with a full stop.
fn encoded(rest: &mut &str) -> Option<Bytes> {
    let mut encoded = String::new();
    loop {
        let (line, after) = rest.split_once('\n')?;
        *rest = after;
        match line {
            "." => return STANDARD.decode(encoded).ok().map(Bytes::from),
            line => encoded.push_str(line),
        }
    }
}

fn noted_exit(text: &str) -> Option<NotedExit> {
    let mut words = text.split(' ').map(|word| word.parse::<u8>().ok());
    let (status, late, signal) = (words.next()??, words.next()??, words.next()??);
    Some(NotedExit { status: i32::from(status), is_late: late != 0, signal: i32::from(signal) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let report = Report::parse("p 42\no\naGVs\nbG8=\n.\nx 143 0 15\nend\n").unwrap();
        assert_eq!((report.pid, report.out.as_ref()), (Some(42), &b"hello"[..]));
        assert_eq!(report.exit, Some(NotedExit { status: 143, is_late: false, signal: 15 }));
        assert_eq!(Report::parse("m\nend\n").unwrap().missing, Some(MissingPart::Program));
        assert_eq!(Report::parse("end\n").unwrap(), Report::default());
        for bad in ["sh: base64: not found", "o\naGVs", "o\n!\n.", "x 1", "x 2147483647 0 1", "p x", "p 42"] {
            assert_eq!(Report::parse(&format!("{bad}\nend\n")).filter(|_| bad != "p 42"), None, "{bad:?}");
            assert_eq!(Report::parse(&format!("{bad}\n")), None, "{bad:?} has no end");
        }
    }

    #[test]
    fn text_is_taken_as_it_is_or_read_again() {
        let report = Report::parse("p 42\nO 9\né\nend\nx\n\nE 0\n\nx 0 0 0\nend\n").unwrap();
        assert_eq!(report.out.as_ref(), "é\nend\nx\n".as_bytes());
        assert_eq!((report.err.len(), report.exit.is_some()), (0, true));
        for changed in
            ["p 42\nO 2\na\u{fffd}\n", "p 42\nO 4\na\u{fffd}\n", "p 42\nO 9\na\n", "p 42\nO 1\né\n"]
        {
            let report = Report::parse(&format!("{changed}E 0\n\nx 0 0 0\nend\n")).unwrap();
            assert_eq!(report, Report { pid: Some(42), ..Report::default() }, "{changed:?}");
        }
    }

    #[test]
    fn any_text_of_a_script_is_read_or_refused() {
        atoll_robustness::check("process_report", |bytes| {
            if let Some(exit) = Report::parse(&String::from_utf8_lossy(bytes)).and_then(|report| report.exit)
            {
                crate::process::status(exit);
            }
        });
    }
}
