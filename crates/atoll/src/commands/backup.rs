//! `atoll server backup|restore`: a data folder in one file, and back. Runs here and not in the server: a backup is made beside it,
//! and a restore without one.

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use atoll_backup::{
    BackupError, BackupFile, BackupOptions, BackupReport, KeySource, RestoreError, RestoreOptions,
    RestoreReport,
};
use atoll_disk::{Guarded, Purpose, Reserve, is_full};
use atoll_service::{Clock, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr},
};

use super::{CommandContext, progress::Progress};
use crate::{
    cli::backup::{Backup, Restore},
    failure::Failure,
    human::{bytes, harmless},
    serve::FailAt,
};

/// LIMIT: how long the reader of `backup -` may take nothing. The copies in the pool are kept meanwhile.
const TAKES_WITHIN_S: i64 = 600;
/// What a pipe takes without waiting, once it takes anything.
const PIPE_PIECE: usize = 4_096;
/// LIMIT: a passphrase.
const PASSPHRASE_MAX: u64 = 4_096;

pub(super) async fn backup(context: &CommandContext, args: Backup) -> Result<(), Failure> {
    need_root("a backup reads files of every user")?;
    let data = context.global.data_dir();
    let data = data.canonicalize().map_err(|e| {
        Failure::new("no_server", format!("{} cannot be read: {e}", data.display()))
            .hint("choose another folder with --data or ATOLL_DATA")
    })?;
    let passphrase = match args.with_keys {
        true => Some(passphrase(args.passphrase_file.as_deref(), PassphrasePrompt::Twice)?),
        false => None,
    };
    let made_at = format!("{:.0}", jiff::Timestamp::now());
    let reserve = Reserve::new(args.disk_reserve.0 << 20);
    let mut output = BackupOutput::open(&args, &data, &reserve)?;
    let mut progress = Progress::new(context.out, false);
    let transfer = progress.transfer("backup", None);
    let told = transfer.clone();
    let work = move |cancelled: &AtomicBool| {
        let options = BackupOptions {
            data: &data,
            version: env!("CARGO_PKG_VERSION"),
            made_at,
            passphrase: passphrase.as_deref(),
        };
        let fail_at = FailAt::wanted();
        let progress = |count, place: &str| {
            fail_at.reach(place);
            told.add(count);
        };
        let made = atoll_backup::backup(&options, &mut output, &progress, cancelled);
        match made {
            Ok(report) => output.keep().map(|()| report).map_err(BackupError::Write),
            Err(error) => {
                output.discard();
                Err(error)
            }
        }
        .map_err(|error| backup_failure(&error))
    };
    let report = interruptible(work).await;
    transfer.done();
    show_backup(context, &args.file, &report?)
}

pub(super) async fn restore(context: &CommandContext, args: Restore) -> Result<(), Failure> {
    need_root("a restore makes files of every user")?;
    let data = context.global.data_dir();
    let clock =
        SystemClock::open().map_err(|e| Failure::new("io", format!("the boot cannot be identified: {e}")))?;
    let reserve = Reserve::new(args.disk_reserve.0 << 20);
    let mut progress = Progress::new(context.out, false);
    let transfer = progress.transfer("restore", None);
    let told = transfer.clone();
    let to = data.clone();
    let work = move |cancelled: &AtomicBool| {
        let input = open_input(&args.file)?;
        let opened = BackupFile::open(BufReader::with_capacity(1 << 20, input));
        let backup = opened.map_err(|error| restore_failure(&error, &to))?;
        let key = match (args.key_file, args.passphrase_file) {
            (Some(file), _) => KeySource::File(file),
            (None, Some(file)) => KeySource::Passphrase(passphrase(Some(&file), PassphrasePrompt::Once)?),
            (None, None) if backup.header.keys.is_some() => {
                KeySource::Passphrase(passphrase(None, PassphrasePrompt::Once)?)
            }
            (None, None) => KeySource::Unknown,
        };
        let options = RestoreOptions { data: &to, key, reserve, now: clock.now() };
        let fail_at = FailAt::wanted();
        let progress = |count, place: &str| {
            fail_at.reach(place);
            told.add(count);
        };
        let restored = atoll_backup::restore(backup, &options, &progress, cancelled);
        restored.map_err(|error| restore_failure(&error, &to))
    };
    let report = interruptible(work).await;
    transfer.done();
    show_restore(context, &data, &report?)
}

/// Runs blocking work, and asks it to end when the user does.
async fn interruptible<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot = |e: io::Error| Failure::new("io", format!("signals cannot be received: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cancelled);
    let mut work = tokio::task::spawn_blocking(move || work(&seen));
    loop {
        tokio::select! {
            done = &mut work => {
                return done.map_err(|e| Failure::new("internal", format!("the work ended early: {e}")))?;
            }
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        // It may wait for its input, which may never come: a second signal ends it as a kill does.
        if cancelled.swap(true, Ordering::Relaxed) {
            return Err(Failure::new("cancelled", "ended at once").exit(130));
        }
    }
}

fn need_root(why: &str) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("forbidden", format!("this command needs root: {why}")).hint("use sudo"))
}

/// Where a backup goes: a file beside its final name until it is whole, or stdout.
enum BackupOutput {
    File {
        file: Guarded<File>,
        partial: PathBuf,
        to: PathBuf,
    },
    /// A file that the disk reserve does not concern.
    Elsewhere {
        file: File,
        partial: PathBuf,
        to: PathBuf,
    },
    Stdout(PatientStdout),
}

impl BackupOutput {
    fn open(args: &Backup, data: &Path, reserve: &Arc<Reserve>) -> Result<Self, Failure> {
        if args.file == Path::new("-") {
            return PatientStdout::open().map(Self::Stdout);
        }
        let to = args.file.clone();
        let cannot = |e: io::Error| Failure::new("io", format!("{} cannot be written: {e}", to.display()));
        if to.exists() && !args.force {
            let message = format!("{} exists already", to.display());
            return Err(
                Failure::new("exists", message).hint("choose another name, or replace it with --force")
            );
        }
        let mut name = to.file_name().ok_or_else(|| cannot(io::ErrorKind::IsADirectory.into()))?.to_owned();
        name.push(".partial");
        let partial = to.with_file_name(name);
        let mut options = File::options();
        let file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(cannot)?;
        let device = |about: io::Result<std::fs::Metadata>| about.map(|about| about.dev());
        let is_on_data =
            device(file.metadata()).map_err(cannot)? == device(data.metadata()).map_err(cannot)?;
        if !is_on_data {
            return Ok(Self::Elsewhere { file, partial, to });
        }
        let space = reserve.writer(&partial, Purpose::Data).map_err(cannot)?;
        Ok(Self::File { file: Guarded::new(file, space), partial, to })
    }

    /// The backup is whole: it gets its name once it is on disk.
    fn keep(self) -> io::Result<()> {
        let (file, partial, to) = match self {
            Self::File { file, partial, to } => (file.into_inner(), partial, to),
            Self::Elsewhere { file, partial, to } => (file, partial, to),
            Self::Stdout(_) => return Ok(()),
        };
        file.sync_all()?;
        std::fs::rename(partial, &to)?;
        let parent = to.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }

    fn discard(self) {
        if let Self::File { partial, .. } | Self::Elsewhere { partial, .. } = self {
            // It has no name that counts; the next backup of this name writes over it.
            let _ = std::fs::remove_file(partial);
        }
    }
}

impl Write for BackupOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { file, .. } => file.write(bytes),
            Self::Elsewhere { file, .. } => file.write(bytes),
            Self::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stdout whose reader must not hold the copies in the pool for ever.
struct PatientStdout {
    stdout: io::Stdout,
    is_pipe: bool,
}

impl PatientStdout {
    fn open() -> Result<Self, Failure> {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            let hint = "redirect it: atoll server backup - > FILE";
            return Err(Failure::usage("a backup is not written to a terminal", hint));
        }
        let about = stdout.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
        let is_pipe = about.is_ok_and(|about| !about.is_file() && !about.file_type().is_block_device());
        Ok(Self { stdout, is_pipe })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stdout.as_fd()
    }
}

impl Write for PatientStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_pipe {
            return Ok(rustix::io::write(self.fd(), bytes)?);
        }
        let within = Timespec { tv_sec: TAKES_WITHIN_S, tv_nsec: 0 };
        if poll(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::OUT)], Some(&within))? == 0 {
            let why = format!("nobody read from it for {TAKES_WITHIN_S} seconds");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let most = bytes.len().min(PIPE_PIECE);
        Ok(rustix::io::write(self.fd(), &bytes[..most])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The file, checked as a whole where it can be read twice; otherwise stdin, which is checked as it is read.
fn open_input(path: &Path) -> Result<File, Failure> {
    let stdin = || io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let opened = if path == Path::new("-") { stdin() } else { File::open(path) };
    let cannot = |e: io::Error| Failure::new("io", format!("{} cannot be read: {e}", path.display()));
    let mut file = opened.map_err(cannot)?;
    if path != Path::new("-") && file.metadata().map_err(cannot)?.is_file() {
        // The head first: a file of another kind is no damaged backup.
        BackupFile::open(BufReader::new(&file)).map_err(|error| file_failure(&error, path))?;
        io::Seek::rewind(&mut file).map_err(cannot)?;
        atoll_backup::check_file(&mut file).map_err(|error| file_failure(&error, path))?;
    }
    Ok(file)
}

/// How often a passphrase is asked for on the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassphrasePrompt {
    Once,
    Twice,
}

/// The first line of a file, or what is typed.
fn passphrase(file: Option<&Path>, prompt: PassphrasePrompt) -> Result<String, Failure> {
    let text = match file {
        Some(path) => {
            let mut text = String::new();
            let read = File::open(path).and_then(|file| file.take(PASSPHRASE_MAX).read_to_string(&mut text));
            read.map_err(|e| Failure::new("io", format!("{} cannot be read: {e}", path.display())))?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        None => {
            let first = typed("Passphrase of the keys: ")?;
            if prompt == PassphrasePrompt::Twice && typed("Once more: ")? != first {
                return Err(Failure::usage("the two passphrases differ", "nothing was written; try again"));
            }
            first
        }
    };
    if text.is_empty() {
        return Err(Failure::usage("the passphrase is empty", "write one line into the file"));
    }
    Ok(text)
}

/// A line from the terminal, which does not show it.
fn typed(prompt: &str) -> Result<String, Failure> {
    let cannot = |_| {
        let message = "the passphrase is asked for on a terminal, and there is none";
        Failure::usage(message, "name a file with --passphrase-file")
    };
    let mut terminal = File::options().read(true).write(true).open("/dev/tty").map_err(cannot)?;
    terminal.write_all(prompt.as_bytes()).map_err(cannot)?;
    let before = tcgetattr(&terminal).map_err(|e| cannot(e.into()))?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&terminal, OptionalActions::Flush, &quiet).map_err(|e| cannot(e.into()))?;
    let mut line = String::new();
    let read = io::BufRead::read_line(&mut BufReader::new((&terminal).take(PASSPHRASE_MAX)), &mut line);
    let _ = tcsetattr(&terminal, OptionalActions::Flush, &before);
    let _ = terminal.write_all(b"\n");
    read.map_err(cannot)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn show_backup(context: &CommandContext, file: &Path, report: &BackupReport) -> Result<(), Failure> {
    let is_stdout = file == Path::new("-");
    let out = context.out;
    if out.json {
        let text = serde_json::json!({ "file": file.display().to_string(), "backup": report });
        // Stdout has the backup itself.
        return if is_stdout {
            out.say(&text.to_string());
            Ok(())
        } else {
            out.json(&text)
        };
    }
    let line = format!(
        "backed up {} sandboxes, {} volumes and {} snapshots: {}, {} compressed",
        report.sandboxes,
        report.volumes,
        report.snapshots,
        bytes(report.content_bytes),
        bytes(report.file_bytes)
    );
    if is_stdout {
        out.say(&line)
    } else {
        out.line(&line)?
    }
    if !report.with_keys {
        out.say("the sealing key is not in the backup: keep a copy of DATA/secret.key, a restore needs it");
    }
    tell_list(context, "come back stopped, since their memory is not on disk", &report.stopped);
    tell_list(context, "are not in the backup and have to be made or pulled again", &report.by_reference);
    tell_list(context, "are kept by other providers and not in the backup", &report.elsewhere);
    Ok(())
}

fn show_restore(context: &CommandContext, data: &Path, report: &RestoreReport) -> Result<(), Failure> {
    let out = context.out;
    if out.json {
        let text = serde_json::json!({ "data": data.display().to_string(), "restored": report });
        return out.json(&text);
    }
    out.line(&format!(
        "restored {} sandboxes, {} volumes and {} snapshots ({}) into {}, as of {}",
        report.sandboxes,
        report.volumes,
        report.snapshots,
        bytes(report.content_bytes),
        data.display(),
        harmless(&report.made_at)
    ))?;
    tell_list(context, "are stopped, since their memory was not on disk", &report.stopped);
    tell_list(context, "have to be made or pulled again", &report.by_reference);
    tell_list(context, "are kept by other providers", &report.elsewhere);
    out.tell("start the server with: atoll serve");
    Ok(())
}

fn tell_list(context: &CommandContext, what: &str, names: &[String]) {
    /// LIMIT: names in one line; the JSON form has all.
    const SHOWN: usize = 8;
    if names.is_empty() {
        return;
    }
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| harmless(name)).collect();
    if names.len() > SHOWN {
        shown.push(format!("{} more", names.len() - SHOWN));
    }
    context.out.say(&format!("{} {what}", shown.join(", ")));
}

fn backup_failure(error: &BackupError) -> Failure {
    use atoll_storage::CopiesError;
    let failure = |code: &str| Failure::new(code, with_causes(error));
    match error {
        BackupError::NoDatabase(_) => failure("no_server")
            .hint("choose another folder with --data or ATOLL_DATA; a shared database is backed up with its own tools"),
        BackupError::SeveralNodes(_) => failure("unsupported")
            .hint("back up each server's folder and the shared database with the tools of your file system"),
        BackupError::WrongKey(_) => failure("conflict").hint("put the server's own secret.key back"),
        BackupError::Copies(CopiesError::NotBtrfs(_)) => failure("unsupported").hint(
            "start the server once, so that its pool is mounted; without btrfs (`atoll doctor`), stop sandboxes and server and copy the folder",
        ),
        BackupError::Copies(CopiesError::Busy(_)) => failure("conflict").hint("wait until it has ended"),
        BackupError::Write(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        BackupError::Write(cause) if is_full(cause) => {
            failure("no_capacity").hint("write it to another disk, or free space; --disk-reserve is kept free")
        }
        BackupError::Read { .. } => {
            failure("io").hint("something may have been removed meanwhile; run the command again")
        }
        BackupError::Cancelled => failure("cancelled").exit(130),
        BackupError::Copies(CopiesError::Io(_))
        | BackupError::Database(_)
        | BackupError::Images(_)
        | BackupError::Write(_) => failure("io").hint("nothing is left of the backup; run the command again"),
    }
}

fn file_failure(error: &RestoreError, path: &Path) -> Failure {
    let failure = Failure::new("invalid", format!("{}: {}", path.display(), with_causes(error)));
    match matches!(error, RestoreError::TooNew(_)) {
        true => failure.hint("use that version or a newer one"),
        false => failure.hint("nothing was changed; use another copy of the backup"),
    }
}

fn restore_failure(error: &RestoreError, data: &Path) -> Failure {
    let failure = |code: &str| Failure::new(code, with_causes(error));
    match error {
        RestoreError::NotEmpty(_) => failure("conflict")
            .hint("restore into a new folder with --data, or remove the server there with `atoll server uninstall`"),
        RestoreError::Busy(_) => failure("conflict").hint("wait until it has ended"),
        RestoreError::NotABackup => failure("invalid").hint("`atoll server backup FILE` makes one"),
        RestoreError::TooNew(_) => failure("invalid").hint("use that version or a newer one"),
        RestoreError::NeedsKey => failure("key_needed").hint(
            "--key-file with a copy of the server's DATA/secret.key: it opens secrets, the tokens of sandboxes and the settings of providers",
        ),
        RestoreError::WrongKey(_) => {
            failure("wrong_key").hint("the secret.key of the server that made the backup is needed; nothing was changed")
        }
        RestoreError::NeedsPassphrase => failure("key_needed").hint("name a file with --passphrase-file"),
        RestoreError::WrongPassphrase => failure("wrong_key").hint("nothing was changed; try again"),
        RestoreError::Write { cause, .. } if is_full(cause) => failure("no_capacity").hint(format!(
            "{} is empty again; free space on its disk, or choose another folder with --data",
            data.display()
        )),
        RestoreError::Cancelled => failure("cancelled").hint(emptied(data)).exit(130),
        RestoreError::Damaged(_) | RestoreError::Read(_) => {
            failure("invalid").hint(format!("{}; use another copy of the backup", emptied(data)))
        }
        RestoreError::Storage(_)
        | RestoreError::Database(_)
        | RestoreError::Store(_)
        | RestoreError::Write { .. } => failure("io").hint(emptied(data)),
    }
}

fn emptied(data: &Path) -> String {
    match atoll_backup::is_unfinished(data) {
        true => format!("{} is not whole; a second restore into it starts over", data.display()),
        false => format!("{} is as it was before", data.display()),
    }
}

/// The error with its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    text
}
