//! Shell scripts that run in a sandbox through the toolbox's `process/execute`, and what they print.
//!
//! That call has one text for both streams, no input, no signal and no process id. So a process is run below a supervisor, which
//! keeps everything about it in files:
//!
//! ```text
//! /tmp/.atoll/TOKEN.  start                made once: the same call again tells about the process that runs already
//!                     pid, sup, meta       the process, its supervisor; its arguments and tag
//!                     out, err             what was copied from the pipes that are its streams
//!                     in, holder           its standard input, and a process that keeps it open
//!                     sig, late, timer     the last signal that was sent; whether it took too long; the process that waits for that
//!                     exit                 status, whether it was late, the last signal
//!                     end                  the copies of its output are complete
//! ```
//!
//! A script takes only what POSIX shells, coreutils and busybox have in common. Only [`start_line`] has a faster variant for bash.
//! No variable of a caller is in the environment of a script: [`with_environment`] puts them in front of the program. Variables of
//! a script begin with `atoll_` where a program starts below it, so that none of the sandbox's own variables changes.

mod report;

use std::collections::BTreeMap;

pub(crate) use report::{MissingPart, NotedExit, Report};

/// The folder of all processes.
pub(crate) const FOLDER: &str = "/tmp/.atoll";

const FIND: &str = include_str!("scripts/find.sh");
const START: &str = include_str!("scripts/start.sh");
const SUPERVISE: &str = include_str!("scripts/supervise.sh");
const BASH: &str = include_str!("scripts/bash.sh");
const SH: &str = include_str!("scripts/sh.sh");
const SH_SUPERVISOR: &str = include_str!("scripts/sh_supervisor.sh");

/// Removes what an earlier instance left, and makes the working directory `$1`. The same call again, for the instance `$2`, removes
/// nothing: it may arrive when commands run already.
const PREPARE: &str = r#"[ ! -e "/tmp/.atoll/$2" ] || { echo ok; exit 0; }
[ ! -e /tmp/.atoll ] || rm -rf /tmp/.atoll
[ -d "$1" ] || mkdir -p "$1" || exit 1
mkdir -p -m 700 /tmp/.atoll && true >"/tmp/.atoll/$2" && echo ok"#;

/// New output of a process, or its end: token, positions in both streams, bytes, how many times it is looked.
pub(crate) const READ: &str = r#"D=/tmp/.atoll/$1 O=$2 E=$3 W=$4 N=$5 n=0 g=0
[ -s "$D.pid" ] || { echo n; echo end; exit 0; }
[ "$O" -gt 8388608 ] && fallocate -p -o 0 -l "$O" "$D.out" 2>/dev/null
while :; do
  x=; [ -e "$D.end" ] || [ $g -ge 10 ] && read -r x <"$D.exit"
  set -- $(stat -c %s "$D.out" "$D.err")
  [ -n "$x" ] || [ "$1" -gt "$O" ] || [ "$2" -gt "$E" ] || [ $n -ge "$N" ] && break
  [ -s "$D.exit" ] && { g=$((g+1)); n=0; }
  n=$((n+1)); if [ $n -lt 10 ]; then sleep 0.02; else sleep 0.1; fi
done
[ "$1" -gt "$O" ] && { echo o; tail -c +$((O+1)) "$D.out" | head -c "$W" | base64; echo .; }
[ "$2" -gt "$E" ] && { echo e; tail -c +$((E+1)) "$D.err" | head -c "$W" | base64; echo .; }
[ -n "$x" ] && echo "x $x"
[ -n "$x" ] || { read -r s <"$D.sup"; kill -0 "$s" 2>/dev/null || echo l; }
echo end
exit 0"#;

/// The bytes of both streams of a process.
pub(crate) const SIZES: &str = r#"D=/tmp/.atoll/$1
[ -s "$D.pid" ] && stat -c %s "$D.out" "$D.err"
exit 0"#;

/// The processes that run: token, process id, meta.
pub(crate) const LIST: &str = r#"cd /tmp/.atoll 2>/dev/null || exit 0
for f in *.pid; do
  d=${f%.pid}; [ -s "$f" ] && [ ! -s "$d.exit" ] || continue
  read -r q <"$f"; kill -0 "$q" 2>/dev/null || continue
  read -r m <"$d.meta"; echo "$d $q $m"
done
exit 0"#;

/// Sends a signal `$2` to the process and its group.
pub(crate) const SIGNAL: &str = r#"D=/tmp/.atoll/$1
[ -s "$D.pid" ] && [ ! -s "$D.exit" ] || { echo n; exit 0; }
read -r p <"$D.pid"; echo "$2" >"$D.sig"
kill "-$2" "-$p" 2>/dev/null || kill "-$2" "$p" 2>/dev/null || { echo n; exit 0; }
echo ok"#;

/// Writes `$2`, in base64, to the standard input of a process.
pub(crate) const INPUT: &str = r#"D=/tmp/.atoll/$1
[ -p "$D.in" ] && [ ! -s "$D.exit" ] || { echo n; exit 0; }
printf %s "$2" | base64 -d >"$D.in" 2>/dev/null && echo ok || echo n"#;

/// Closes the standard input of a process.
pub(crate) const CLOSE_INPUT: &str = r#"D=/tmp/.atoll/$1
[ -s "$D.pid" ] || { echo n; exit 0; }
[ -s "$D.holder" ] && { read -r h <"$D.holder"; kill "$h" 2>/dev/null; }
echo ok"#;

/// Puts a terminal's program, in base64 `$2`, where its shell finds it: meta `$3`, folder `$4`, program `$5`, search path `$6`.
const TERMINAL: &str = r#"B=/tmp/.atoll; [ -d $B ] || mkdir -p -m 700 $B || exit 95
cd "$4" 2>/dev/null || { echo c; exit 0; }
atoll_has "$5" "${6:-$PATH}" || { echo m; exit 0; }
D=$B/$1; printf '%s\n' "$3" >"$D.meta" && printf %s "$2" | base64 -d >"$D.run" && echo ok"#;

/// Puts an uploaded file `$1` in the place of `$2`, with the mode `$3` or that of the file before. The same call again, with the
/// token `$4`, changes nothing. A link stays a link.
pub(crate) const REPLACE: &str = r#"M=/tmp/.atoll/$4.moved; [ -e "$M" ] && { echo ok; exit 0; }
t=$2; [ -L "$t" ] && t=$(readlink -f "$t")
[ -n "$t" ] || { echo "Not a directory"; exit 0; }
[ -d "$t" ] && { rm -f "$1"; echo d; exit 0; }
m=$3; [ "$m" = - ] && m=$(stat -c %a "$t" 2>/dev/null || echo 644)
{ chmod "$m" "$1" && mv -f "$1" "$t"; } 2>&1 && { true >"$M"; echo ok; } 2>/dev/null
exit 0"#;

/// Renames `$1` to `$2`. The same call again, with the token `$3`, changes nothing.
pub(crate) const RENAME: &str = r#"M=/tmp/.atoll/$3.moved; [ -e "$M" ] && { echo ok; exit 0; }
[ -e "$1" ] || [ -L "$1" ] || { echo n; exit 0; }
[ "$1" != "$2" ] || { echo ok; exit 0; }
[ -d "$2" ] && [ ! -L "$2" ] && { echo d; exit 0; }
p=${2%/*}; [ -z "$p" ] || [ -d "$p" ] || mkdir -p "$p" 2>&1 || exit 0
[ -L "$2" ] && [ -d "$2" ] && rm -f "$2"
mv -f "$1" "$2" 2>&1 && { true >"$M"; echo ok; } 2>/dev/null
exit 0"#;

/// What a link leads to: `d` for a folder, `o` for what is no file, `n` for nothing, or the size and the mode of a file.
pub(crate) const LINK_TARGET: &str = r#"if [ -d "$1" ]; then echo d; elif [ -f "$1" ]; then stat -L -c '%s %a' "$1"
elif [ -e "$1" ]; then echo o; else echo n; fi
exit 0"#;

/// The script that prepares a terminal.
pub(crate) fn terminal() -> String {
    format!("{FIND}{TERMINAL}")
}

/// A line for any POSIX shell that prepares a sandbox. The shell runs it by itself, so that no other is started.
pub(crate) fn prepare_line(folder: &str, instance: &str) -> String {
    format!("{}\n{PREPARE}", words("set --".to_owned(), [folder, instance]))
}

/// A line for any shell that runs a script with arguments.
pub(crate) fn line<'a>(script: &str, arguments: impl IntoIterator<Item = &'a str>) -> String {
    words(format!("exec /bin/sh -c {} atoll", quoted(script)), arguments)
}

/// A line for any POSIX shell that starts a command. A bash that is new enough runs it by itself: each program that is not started
/// saves about a millisecond.
pub(crate) fn start_line<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    let supervisor = quoted(&format!("{SUPERVISE}{SH_SUPERVISOR}"));
    let other = quoted(&format!("atoll_supervisor={supervisor}\n{SH}{FIND}{START}"));
    let arguments = words("set --".to_owned(), arguments);
    format!(
        "{arguments}\ncase ${{BASH_VERSION-}} in 5.[1-9]*|[6-9].*) ;; *) exec /bin/sh -c {other} atoll \"$@\";; esac\n\
         {SUPERVISE}{BASH}{FIND}{START}"
    )
}

fn words<'a>(begin: String, words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().fold(begin, |mut line, word| {
        line.push(' ');
        line.push_str(&quoted(word));
        line
    })
}

/// A word in single quotes.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command that sets variables of the environment for its program only.
pub(crate) fn with_environment(env: &BTreeMap<String, String>, argv: &[String]) -> Vec<String> {
    if env.is_empty() {
        return argv.to_vec();
    }
    let mut command = vec!["env".to_owned()];
    command.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
    // `env` would take such a name for a variable.
    if argv.first().is_some_and(|program| program.contains('=')) {
        command.extend(["/bin/sh", "-c", r#"exec "$@""#, "sh"].map(str::to_owned));
    }
    command.extend_from_slice(argv);
    command
}

#[cfg(test)]
mod tests;
