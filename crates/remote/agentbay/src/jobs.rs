//! Commands that run in the background of a session, each with a folder for its output:
//!
//! ```text
//! JOBS/NAME/{argv, tag}     as it was started
//!           pid             the process of the command, the leader of its session
//!           out, err        what it wrote
//!           late            its time was over
//!           exit            its exit code, once it has ended
//! ```
//!
//! The tool `shell` waits for its command, tells no output before the end, and ends a command after a while. So a command is
//! started in the background, and its output is asked for again and again. A start may be repeated: the name is chosen before.

use std::time::Duration;

use atoll_agentapi::{ExitStatus, ProcessEvent};
use atoll_model::ErrorKind;
use atoll_provider::{ProcessSpec, ProviderError, RunningProcess};
use atoll_remote::{CallError, Repeat};
use bytes::Bytes;

use crate::api::AgentbayApi;
use crate::shell::{SCRIPT_MAX, ScriptError, decoded, encoded, quoted, refused};

/// Where the folders are. Also partial files and long results of scripts.
pub(crate) const JOBS: &str = "/tmp/.atoll-jobs";
/// LIMIT: bytes of output in one answer, before their encoding.
const OUT_MAX: u32 = 30_000;
const ERR_MAX: u32 = 6_000;
/// How long the start of a command waits for its end, in steps of 20 ms: most commands need no second call.
const FIRST_STEPS: u32 = 12;
/// The same for later calls.
const NEXT_STEPS: u32 = 25;

/// In a session of its own: starts the command in another one, waits for it, and ends it when its time is over.
const RUNNER: &str = r#"unset J T C W R; J=$1 T=$2; shift 2
setsid "$@" >$J/out 2>$J/err </dev/null &
C=$!
echo $C >$J/pid.new; mv $J/pid.new $J/pid
[ $T = 0 ] || { setsid sh -c 'sleep $1; : >$2/late; kill -9 -$3 || kill -9 $3' sh $T $J $C & W=$!; }
wait $C; R=$?
[ -z "$W" ] || kill -9 -$W
echo $R >$J/exit.new; mv $J/exit.new $J/exit"#;

/// What is known of the output of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobCursor {
    /// The name of its folder.
    pub(crate) name: String,
    /// Bytes that were read.
    out: u64,
    err: u64,
}

impl JobCursor {
    /// That of a new command.
    pub(crate) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }
}

/// What one look at a command found.
#[derive(Debug, Default)]
pub(crate) struct JobLook {
    pub(crate) pid: String,
    pub(crate) events: Vec<ProcessEvent>,
    /// Its exit, once all output was read.
    pub(crate) exit: Option<ExitStatus>,
}

/// Waits for news of a command, and prints them.
fn report(cursor: &JobCursor, steps: u32) -> String {
    let JobCursor { name, out, err } = cursor;
    format!(
        r#"J={JOBS}/{name}; [ -d $J ] || no missing "the process is not there"
N=0; while :; do
X=; [ -e $J/exit ] && X=$(cat $J/exit)
O=$(wc -c <$J/out || echo 0); E=$(wc -c <$J/err || echo 0)
[ -n "$X" ] && break; [ -e $J/pid ] && [ $((O + E)) -gt {seen} ] && break
N=$((N + 1)); [ $N -gt {steps} ] && [ -e $J/pid ] && break; [ $N -gt 500 ] && break
sleep 0.02; done
L=0; [ -e $J/late ] && L=1
echo $(cat $J/pid) ${{X:--}} $L $((O)) $((E))
tail -c +{from_out} $J/out | head -c {OUT_MAX} | base64 | tr -d '\n'; echo
tail -c +{from_err} $J/err | head -c {ERR_MAX} | base64 | tr -d '\n'; echo"#,
        seen = out + err,
        from_out = out + 1,
        from_err = err + 1,
    )
}

/// Starts a command, unless it was started under this name before.
fn start(name: &str, what: &ProcessSpec, finished: &[String]) -> Result<String, ProviderError> {
    let invalid = |message: String| refused(ErrorKind::Invalid, message);
    let program = what.argv.first().ok_or_else(|| invalid("there is no program to start".to_owned()))?;
    let mut settings = if what.env.is_empty() { String::new() } else { "env ".to_owned() };
    for (name, value) in &what.env {
        let is_name = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(invalid(format!("{name:?} cannot be the name of a variable at this provider")));
        }
        // Variables of the command must not become those of the scripts around it.
        settings.push_str(&format!("{} ", quoted(&format!("{name}={value}"))));
    }
    let done: String = finished.iter().map(|name| format!(" {JOBS}/{name}")).collect();
    let done = if done.is_empty() { String::new() } else { format!("rm -rf{done}\n") };
    let cwd = what.cwd.as_deref().map_or_else(String::new, |cwd| {
        format!(
            "cd {} || {{ rm -rf {JOBS}/{name}; no missing {}; }}\n",
            quoted(cwd),
            quoted(&format!("there is no folder {cwd}"))
        )
    });
    let timeout = what
        .timeout
        .map_or_else(|| "0".to_owned(), |timeout| format!("{:.3}", timeout.as_secs_f64().max(0.001)));
    let path = what.env.get("PATH").map_or_else(String::new, |path| format!("PATH={}; ", quoted(path)));
    let argv: Vec<String> = what.argv.iter().map(|arg| quoted(arg)).collect();
    let stored = encoded(&serde_json::to_vec(&what.argv).unwrap_or_default());
    Ok(format!(
        r#"J={JOBS}/{name}
{done}find {JOBS} -name exit -mmin +60 | while read -r F; do rm -rf "${{F%/exit}}"; done
mkdir -p {JOBS}; chmod 700 {JOBS}
if mkdir $J; then
{cwd}P={program}
case $P in */*) [ -f "$P" ] && [ -x "$P" ] ;; *) ({path}command -v "$P" >/dev/null) ;; esac || {{ rm -rf {JOBS}/{name}; no missing {no_program}; }}
echo {stored} >$J/argv; echo {tag} >$J/tag; : >$J/out; : >$J/err
setsid sh -c {runner} sh $J {timeout} {settings}{argv} >/dev/null 2>&1 </dev/null &
fi
"#,
        program = quoted(program),
        no_program = quoted(&format!("command not found: '{program}'")),
        tag = encoded(what.tag.as_bytes()),
        runner = quoted(RUNNER),
        argv = argv.join(" "),
    ))
}

/// The look that a report printed.
fn read(cursor: &mut JobCursor, lines: &[String]) -> Result<JobLook, CallError> {
    let cut = || CallError::Unanswered { why: "the report about a process cannot be read".to_owned() };
    let head: Vec<&str> = lines.first().ok_or_else(cut)?.split(' ').collect();
    let &[pid, exit, late, out_size, err_size] = head.as_slice() else { return Err(cut()) };
    let content = |line: usize| decoded(lines.get(line).map_or("", String::as_str));
    let (out, err) = (content(1)?, content(2)?);
    cursor.out += out.len() as u64;
    cursor.err += err.len() as u64;
    let mut look = JobLook { pid: pid.to_owned(), ..JobLook::default() };
    if !out.is_empty() {
        look.events.push(ProcessEvent::Stdout(Bytes::from(out)));
    }
    if !err.is_empty() {
        look.events.push(ProcessEvent::Stderr(Bytes::from(err)));
    }
    let size = |text: &str| text.parse::<u64>().map_err(|_| cut());
    let is_read = cursor.out >= size(out_size)? && cursor.err >= size(err_size)?;
    if exit != "-" && is_read {
        let timed_out = late == "1";
        let code = exit.parse().map_err(|_| cut())?;
        // Its time ended it with a signal.
        let (code, signal) = if timed_out { (None, Some(9)) } else { (Some(code), None) };
        look.exit = Some(ExitStatus { code, signal, timed_out, core_dumped: false });
    }
    Ok(look)
}

impl AgentbayApi {
    /// Starts a command; the look has what it said at once. `finished`: folders of commands that are not needed any more.
    pub(crate) async fn start_job(
        &self,
        id: &str,
        cursor: &mut JobCursor,
        what: &ProcessSpec,
        finished: &[String],
    ) -> Result<JobLook, ScriptError> {
        let too_long = |len: usize| {
            let message = format!("the command has {len} bytes; this provider takes at most {SCRIPT_MAX}");
            ScriptError::Refused(ErrorKind::Invalid, message)
        };
        let script = match start(&cursor.name, what, finished) {
            Ok(script) => script + &report(cursor, FIRST_STEPS),
            Err(ProviderError::Refused { kind, message }) => return Err(ScriptError::Refused(kind, message)),
            Err(other) => return Err(ScriptError::Refused(ErrorKind::Invalid, other.to_string())),
        };
        if script.len() > SCRIPT_MAX {
            return Err(too_long(script.len()));
        }
        let lines = self.script(id, &script, Repeat::Always).await?;
        Ok(read(cursor, &lines)?)
    }

    /// Asks for news of a command.
    pub(crate) async fn look_at_job(&self, id: &str, cursor: &mut JobCursor) -> Result<JobLook, ScriptError> {
        let lines = self.script(id, &report(cursor, NEXT_STEPS), Repeat::Always).await?;
        Ok(read(cursor, &lines)?)
    }

    /// Commands that run: the name of the folder, and the process.
    pub(crate) async fn jobs(&self, id: &str) -> Result<Vec<(String, RunningProcess)>, ScriptError> {
        let script = format!(
            r#"for J in {JOBS}/*/; do [ -e $J/exit ] || [ ! -e $J/pid ] && continue
C=$(cat $J/pid); [ -d /proc/$C ] || continue
echo ${{J%/}} $C $(cat $J/argv) $(stat -c %Y $J/pid) $(cat $J/tag); done"#
        );
        let lines = self.script(id, &script, Repeat::Always).await?;
        Ok(lines.iter().filter_map(|line| running(line)).collect())
    }

    /// The command with this process id, from the output that it writes from now on.
    pub(crate) async fn find_job(&self, id: &str, pid: &str) -> Result<Option<JobCursor>, ScriptError> {
        let found = self.jobs(id).await?.into_iter().find(|(_, process)| process.id == pid);
        let Some((name, _)) = found else { return Ok(None) };
        let sizes = format!("echo $(wc -c <{JOBS}/{name}/out) $(wc -c <{JOBS}/{name}/err)");
        let lines = self.script(id, &sizes, Repeat::Always).await?;
        let mut sizes = lines.first().into_iter().flat_map(|line| line.split(' ')).flat_map(str::parse);
        let (out, err) = (sizes.next().unwrap_or(0), sizes.next().unwrap_or(0));
        Ok(Some(JobCursor { name, out, err }))
    }
}

/// Reads one line of a list.
fn running(line: &str) -> Option<(String, RunningProcess)> {
    let mut words = line.split(' ');
    let name = words.next()?.strip_prefix(JOBS)?.trim_start_matches('/').to_owned();
    let pid = words.next()?.to_owned();
    let argv = serde_json::from_slice(&decoded(words.next()?).ok()?).ok()?;
    let started_at_s: u64 = words.next()?.parse().ok()?;
    let tag = decoded(words.next().unwrap_or_default()).ok()?;
    let process = RunningProcess {
        id: pid,
        argv,
        tag: String::from_utf8(tag).ok()?,
        started_at_ms: started_at_s.saturating_mul(1_000),
        ..RunningProcess::default()
    };
    Some((name, process))
}

/// How long a reader waits between two looks: commands that say nothing are asked for less and less often.
#[derive(Debug)]
pub(crate) struct LookPace(Duration);

impl Default for LookPace {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

impl LookPace {
    const FIRST: Duration = Duration::from_millis(20);
    /// LIMIT: how late the end of a quiet command is noticed.
    const LAST: Duration = Duration::from_secs(2);

    /// The next wait.
    pub(crate) fn next(&mut self, was_quiet: bool) -> Duration {
        let wait = if was_quiet { self.0 } else { Duration::ZERO };
        self.0 = if was_quiet { (self.0 * 2).min(Self::LAST) } else { Self::FIRST };
        wait
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        vec![text.to_owned(), encoded(b"out"), encoded(b"er")]
    }

    #[test]
    fn a_command_has_ended_when_all_of_its_output_was_read() {
        let mut cursor = JobCursor { name: "n".to_owned(), ..JobCursor::default() };
        let look = read(&mut cursor, &line("12 3 0 6 2")).unwrap();
        assert_eq!((look.pid.as_str(), look.exit, look.events.len()), ("12", None, 2));
        let look = read(&mut cursor, &line("12 3 0 6 4")).unwrap();
        assert_eq!(look.exit.unwrap().code, Some(3));
        let late = read(&mut cursor, &line("12 137 1 6 2")).unwrap().exit.unwrap();
        assert!(late.timed_out && late.code.is_none());
        assert!(read(&mut cursor, &line("12 3")).is_err() && read(&mut cursor, &[]).is_err());
    }

    #[test]
    fn a_start_quotes_everything_and_refuses_what_it_cannot_say() {
        let argv = vec!["it's".to_owned(), "$(x)".to_owned()];
        let script = start("n", &ProcessSpec { argv: argv.clone(), ..ProcessSpec::default() }, &[]).unwrap();
        assert!(script.contains(r"'it'\''s' '$(x)' >/dev/null"), "{script}");
        let env = [("a b".to_owned(), String::new())].into();
        assert!(start("n", &ProcessSpec { argv, env, ..ProcessSpec::default() }, &[]).is_err());
        assert!(start("n", &ProcessSpec::default(), &[]).is_err());
    }

    #[test]
    fn a_list_is_read() {
        let text = format!("{JOBS}/ab 7 {} 12 {}", encoded(br#"["sleep","9"]"#), encoded(b"tag"));
        let (name, process) = running(&text).unwrap();
        assert_eq!((name.as_str(), process.id.as_str(), process.tag.as_str()), ("ab", "7", "tag"));
        assert_eq!((process.argv.len(), process.started_at_ms), (2, 12_000));
        assert!(running("").is_none() && running("/elsewhere/x 7").is_none());
    }

    #[test]
    fn a_quiet_command_is_asked_for_less_and_less_often() {
        let mut pace = LookPace::default();
        let waits: Vec<_> = (0..10).map(|_| pace.next(true)).collect();
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]) && waits[9] == LookPace::LAST);
        assert_eq!(pace.next(false), Duration::ZERO);
        assert_eq!(pace.next(true), LookPace::FIRST);
    }
}
