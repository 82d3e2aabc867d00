//! Shell scripts that run in a sandbox through the toolbox's `process/execute`, and what they print.
//!
//! That call has one text for both streams, no input, no signal and no process id. So a process is run below a supervisor, which
//! keeps everything about it in a folder:
//!
//! ```text
//! /tmp/.atoll/TOKEN/  pid, meta            the process; its arguments and tag
//!                     o, e ─► out, err     its streams: pipes, copied to files, so that no byte is lost between two calls
//!                     in, holder           its standard input, and a process that keeps it open
//!                     exit                 status, whether it was late, the last signal that was sent
//! ```
//!
//! A script takes only what POSIX shells, coreutils and busybox have in common. The token makes a start idempotent: the same call
//! again tells about the process that runs already.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// The folder of all processes.
pub(crate) const FOLDER: &str = "/tmp/.atoll";

/// Removes what an earlier instance left, and makes the working directory `$1`.
pub(crate) const PREPARE: &str = r#"rm -rf /tmp/.atoll; [ -d "$1" ] || mkdir -p "$1" || exit 1; echo ok"#;

/// Starts `$@` after nine other arguments and waits a moment for its end: token, folder, `i` for input, time limit or `-`, meta,
/// tokens to forget, the supervisor, bytes of output, seconds to wait.
pub(crate) const START: &str = r#"B=/tmp/.atoll; [ -d $B ] || mkdir -p -m 700 $B || exit 95
for f in $6; do rm -rf "$B/$f"; done
D=$B/$1 W=$8
if mkdir "$D" 2>/dev/null; then
  cd "$2" 2>/dev/null || { rm -rf "$D"; echo c; exit 0; }
  printf '%s\n' "$5" >"$D/meta"; mkfifo "$D/done" || exit 95
  exec 6<>"$D/done"
  i=$3 T=$4 s=$7 w=$9
  shift 9
  command -v "$1" >/dev/null 2>&1 || { rm -rf "$D"; echo m; exit 0; }
  S=; command -v setsid >/dev/null 2>&1 && S=setsid
  $S sh -c "$s" atoll "$D" "$i" "$T" "$S" "$@" </dev/null >/dev/null 2>&1 6>&- &
  (sleep "$w"; echo) >&6 2>/dev/null </dev/null &
  read -r x <&6
fi
n=0; while [ ! -s "$D/pid" ] && [ $n -lt 250 ]; do n=$((n+1)); sleep 0.02; done
[ -s "$D/pid" ] || exit 95
x=; [ -s "$D/exit" ] && read -r x <"$D/exit"
read -r q <"$D/pid"; echo "p $q"
[ -s "$D/out" ] && { echo o; head -c "$W" "$D/out" | base64; echo .; }
[ -s "$D/err" ] && { echo e; head -c "$W" "$D/err" | base64; echo .; }
[ -n "$x" ] && echo "x $x"
exit 0"#;

/// Runs a process in the folder `$1` and notes how it ended.
pub(crate) const SUPERVISOR: &str = r#"D=$1 i=$2 T=$3 S=$4 h= k=; shift 4
echo $$ >"$D/sup"; mkfifo "$D/o" "$D/e" || exit; : >"$D/out"; : >"$D/err"
(cat <"$D/o" >>"$D/out"; : >"$D/o.end") &
(cat <"$D/e" >>"$D/err"; : >"$D/e.end") &
if [ "$i" = i ]; then
  mkfifo "$D/in"; exec 9<>"$D/in"; exec 7<"$D/in" 8>"$D/in"; exec 9<&-
  sleep 2147483647 >&8 7<&- 8>&- & h=$!; echo $h >"$D/holder"
else
  exec 7</dev/null 8>/dev/null
fi
$S "$@" <&7 >"$D/o" 2>"$D/e" 7<&- 8>&- & p=$!
exec 7<&- 8>&-
echo $p >"$D/pid"
if [ "$T" != - ]; then
  (sleep "$T" & echo $! >"$D/timer"; wait; [ -s "$D/exit" ] || { : >"$D/late"; kill -9 -$p || kill -9 $p; }) &
fi
wait $p; s=$?
n=0; until [ -e "$D/o.end" ] && [ -e "$D/e.end" ]; do
  n=$((n+1)); [ $n -gt 320 ] && break; [ $n -gt 300 ] && sleep 0.01
done
l=0; [ -e "$D/late" ] && l=1
g=0; [ -s "$D/sig" ] && read -r g <"$D/sig"
echo "$s $l $g" >"$D/exit"
echo 1<>"$D/done"
[ -s "$D/timer" ] && { read -r k <"$D/timer"; kill $k; }
[ -n "$h" ] && { kill $h; mv "$D/in" "$D/in.ended"; : <>"$D/in.ended"; }
exit 0"#;

/// New output of a process, or its end: token, positions in both streams, bytes, how many times it is looked.
pub(crate) const READ: &str = r#"D=/tmp/.atoll/$1 O=$2 E=$3 W=$4 N=$5 n=0
[ -s "$D/pid" ] || { echo n; exit 0; }
[ "$O" -gt 8388608 ] && fallocate -p -o 0 -l "$O" "$D/out" 2>/dev/null
while :; do
  x=; [ -s "$D/exit" ] && read -r x <"$D/exit"
  set -- $(stat -c %s "$D/out" "$D/err")
  [ -n "$x" ] || [ "$1" -gt "$O" ] || [ "$2" -gt "$E" ] || [ $n -ge "$N" ] && break
  n=$((n+1)); if [ $n -lt 10 ]; then sleep 0.02; else sleep 0.1; fi
done
[ "$1" -gt "$O" ] && { echo o; tail -c +$((O+1)) "$D/out" | head -c "$W" | base64; echo .; }
[ "$2" -gt "$E" ] && { echo e; tail -c +$((E+1)) "$D/err" | head -c "$W" | base64; echo .; }
[ -n "$x" ] && echo "x $x"
[ -n "$x" ] || { read -r s <"$D/sup"; kill -0 "$s" 2>/dev/null || echo l; }
exit 0"#;

/// The processes that run: token, process id, meta.
pub(crate) const LIST: &str = r#"cd /tmp/.atoll 2>/dev/null || exit 0
for d in *; do
  [ -s "$d/pid" ] && [ ! -s "$d/exit" ] || continue
  read -r q <"$d/pid"; kill -0 "$q" 2>/dev/null || continue
  read -r m <"$d/meta"; echo "$d $q $m"
done
exit 0"#;

/// Sends a signal `$2` to the process and its group.
pub(crate) const SIGNAL: &str = r#"D=/tmp/.atoll/$1
[ -s "$D/pid" ] && [ ! -s "$D/exit" ] || { echo n; exit 0; }
read -r p <"$D/pid"; echo "$2" >"$D/sig"
kill "-$2" "-$p" 2>/dev/null || kill "-$2" "$p" 2>/dev/null || { echo n; exit 0; }
echo ok"#;

/// Writes `$2`, in base64, to the standard input of a process.
pub(crate) const INPUT: &str = r#"D=/tmp/.atoll/$1
[ -p "$D/in" ] && [ ! -s "$D/exit" ] || { echo n; exit 0; }
printf %s "$2" | base64 -d >"$D/in" 2>/dev/null && echo ok || echo n"#;

/// Closes the standard input of a process.
pub(crate) const CLOSE_INPUT: &str = r#"D=/tmp/.atoll/$1
[ -s "$D/pid" ] || { echo n; exit 0; }
[ -s "$D/holder" ] && { read -r h <"$D/holder"; kill "$h" 2>/dev/null; }
echo ok"#;

/// Puts a terminal's program, in base64 `$2`, where its shell finds it; meta `$3`, program `$4`.
pub(crate) const TERMINAL: &str = r#"B=/tmp/.atoll; [ -d $B ] || mkdir -p -m 700 $B || exit 95
D=$B/$1; mkdir -p "$D" && printf '%s\n' "$3" >"$D/meta" || exit 95
command -v "$4" >/dev/null 2>&1 || { rm -rf "$D"; echo m; exit 0; }
printf %s "$2" | base64 -d >"$D/run" && echo ok"#;

/// Puts an uploaded file `$1` in the place of `$2`, with the mode `$3` or that of the file before.
pub(crate) const REPLACE: &str = r#"[ -d "$2" ] && { rm -f "$1"; echo d; exit 0; }
m=$3; [ "$m" = - ] && m=$(stat -c %a "$2" 2>/dev/null || echo 644)
chmod "$m" "$1" && mv -f "$1" "$2" && echo ok"#;

/// Renames `$1` to `$2`.
pub(crate) const RENAME: &str = r#"[ -e "$1" ] || [ -L "$1" ] || { echo n; exit 0; }
[ -d "$2" ] && [ ! -L "$2" ] && { echo d; exit 0; }
p=${2%/*}; [ -z "$p" ] || [ -d "$p" ] || mkdir -p "$p" || exit 1
mv -f "$1" "$2" && echo ok"#;

/// A line for any shell that runs a script with arguments.
pub(crate) fn line<'a>(script: &str, arguments: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = format!("exec /bin/sh -c {} atoll", quoted(script));
    for argument in arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

/// A word in single quotes.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// How a process ended, as the supervisor noted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotedExit {
    pub(crate) status: i32,
    pub(crate) is_late: bool,
    /// The last signal that was sent through the toolbox; 0: none.
    pub(crate) signal: i32,
}

/// What [`START`] and [`READ`] print.
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
    /// `None`: a script did not print this.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut report = Self::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            match (line, line.split_once(' ')) {
                ("o", _) => report.out = content(&mut lines)?,
                ("e", _) => report.err = content(&mut lines)?,
                ("l", _) => report.is_lost = true,
                ("n", _) => report.missing = Some(MissingPart::Process),
                ("m", _) => report.missing = Some(MissingPart::Program),
                ("c", _) => report.missing = Some(MissingPart::Folder),
                (_, Some(("p", pid))) => report.pid = Some(pid.parse().ok()?),
                (_, Some(("x", exit))) => report.exit = Some(noted_exit(exit)?),
                _ => return None,
            }
        }
        Some(report)
    }
}

fn content<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Bytes> {
    let mut encoded = String::new();
    loop {
        match lines.next()? {
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
    fn words_are_the_same_behind_a_shell() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(line("echo", ["a b", ""]), "exec /bin/sh -c 'echo' atoll 'a b' ''");
    }

    #[test]
    fn reports_are_read() {
        let report = Report::parse("p 42\no\naGVs\nbG8=\n.\nx 143 0 15\n").unwrap();
        assert_eq!((report.pid, report.out.as_ref()), (Some(42), &b"hello"[..]));
        assert_eq!(report.exit, Some(NotedExit { status: 143, is_late: false, signal: 15 }));
        assert_eq!(Report::parse("m\n").unwrap().missing, Some(MissingPart::Program));
        assert_eq!(Report::parse("").unwrap(), Report::default());
        for bad in ["sh: base64: not found", "o\naGVs", "o\n!\n.", "x 1", "x 2147483647 0 1", "p x"] {
            assert_eq!(Report::parse(bad), None, "{bad:?}");
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
