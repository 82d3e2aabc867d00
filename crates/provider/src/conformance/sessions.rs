//! Cases of a session by the provider's own calls. Commands are those that every Linux has, and name files relative to their folder.

use atoll_agentapi::{EntryKind, ExitStatus, ProcessEvent, Range};
use atoll_model::ErrorKind;
use bytes::Bytes;
use futures::StreamExt;

use super::*;
use crate::{FileContent, ProcessOutput, ProcessSpec, SessionSupport, StartedProcess};

fn session(fixture: &Fixture) -> &dyn SessionSupport {
    fixture.provider.session_support().expect("the capability says so")
}

fn shell(text: &str) -> ProcessSpec {
    let argv = ["sh", "-c", text].map(str::to_owned).to_vec();
    ProcessSpec { argv, cwd: Some("/project".to_owned()), ..ProcessSpec::default() }
}

fn upload(content: &[u8]) -> atoll_agentapi::UploadStream {
    let content = Bytes::copy_from_slice(content);
    futures::stream::once(async move { Ok(content) }).boxed()
}

fn refusal<T>(outcome: Result<T, ProviderError>) -> ErrorKind {
    match outcome.err().expect("refused") {
        ProviderError::Refused { kind, .. } => kind,
        other => panic!("{other}"),
    }
}

/// A live instance with the folder `/project`.
async fn begun<'a>(fixture: &'a Fixture, spec: &InstanceSpec) -> Live<'a> {
    let live = fixture.create(spec).await;
    session(fixture).make_folder(&live.target, "/project", None, None).await.expect("made");
    live
}

/// All output, and how the process ended.
async fn read(mut output: ProcessOutput) -> (Vec<u8>, Vec<u8>, ExitStatus) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = tokio::time::timeout(STEP, output.next()).await.expect("in time") {
        match event.expect("an event") {
            ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => stdout.extend_from_slice(&data),
            ProcessEvent::Stderr(data) => stderr.extend_from_slice(&data),
            ProcessEvent::Dropped(bytes) => panic!("{bytes} bytes were lost"),
            ProcessEvent::Exit(status) => return (stdout, stderr, status),
        }
    }
    panic!("the output ended without an exit")
}

async fn run(fixture: &Fixture, live: &Live<'_>, what: ProcessSpec) -> (Vec<u8>, Vec<u8>, ExitStatus) {
    let StartedProcess { output, .. } =
        session(fixture).start_process(&live.target, what).await.expect("started");
    read(output).await
}

async fn content(content: FileContent) -> Vec<u8> {
    content.stream.map(|chunk| chunk.expect("read").to_vec()).concat().await
}

pub(super) async fn a_command_tells_its_output_and_its_exit(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let (out, err, status) = run(&fixture, &live, shell("echo out; echo err >&2; exit 3")).await;
    assert_eq!((out.as_slice(), err.as_slice(), status.code), (&b"out\n"[..], &b"err\n"[..], Some(3)));
    let env = [("GREETING".to_owned(), "hello".to_owned())].into();
    let (out, ..) = run(&fixture, &live, ProcessSpec { env, ..shell("echo $GREETING > a; cat a") }).await;
    assert_eq!(out, b"hello\n", "with its environment, in its folder");
    let (out, ..) = run(&fixture, &live, shell("head -c 3000000 /dev/zero")).await;
    assert_eq!(out.len(), 3_000_000, "no byte is lost");
    fixture.destroy(&spec).await;
}

pub(super) async fn a_command_that_takes_too_long_is_ended(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let timeout = Some(Duration::from_millis(300));
    let (_, _, status) = run(&fixture, &live, ProcessSpec { timeout, ..shell("exec sleep 600") }).await;
    assert!(status.timed_out, "{status:?}");
    fixture.destroy(&spec).await;
}

pub(super) async fn running_commands_are_listed_and_end_with_their_instance(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let what = ProcessSpec { tag: "long".to_owned(), ..shell("exec sleep 600") };
    let started = session(&fixture).start_process(&live.target, what).await.expect("started");
    let listed = session(&fixture).processes(&live.target).await.expect("listed");
    assert!(listed.iter().any(|process| process.id == started.id), "{listed:?}");
    fixture.provider.halt(&live.target).await.expect("halted");
    assert!(is_gone(session(&fixture).processes(&live.target).await));
    assert!(is_gone(session(&fixture).start_process(&live.target, shell("true")).await));
    assert!(is_gone(session(&fixture).stat(&live.target, "/project", None).await));
    let mut output = started.output;
    let ends = async { while output.next().await.is_some() {} };
    tokio::time::timeout(STEP, ends).await.expect("its output ends");
    fixture.destroy(&spec).await;
}

pub(super) async fn input_is_read_until_it_is_closed(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let (session, what) = (session(&fixture), ProcessSpec { stdin: true, ..shell("cat") });
    let started = session.start_process(&live.target, what).await.expect("started");
    for piece in ["one ", "two"] {
        session.write_stdin(&live.target, &started.id, Bytes::from(piece)).await.expect("written");
    }
    session.close_stdin(&live.target, &started.id).await.expect("closed");
    assert_eq!(read(started.output).await.0, b"one two");
    fixture.destroy(&spec).await;
}

pub(super) async fn a_signal_ends_a_command(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let started =
        session(&fixture).start_process(&live.target, shell("exec sleep 600")).await.expect("started");
    session(&fixture).signal(&live.target, &started.id, 15).await.expect("sent");
    assert_eq!(read(started.output).await.2.signal, Some(15));
    fixture.destroy(&spec).await;
}

pub(super) async fn files_are_written_read_listed_renamed_and_removed(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let (session, at) = (session(&fixture), &live.target);
    let written =
        session.write_file(at, "/project/sub/a", None, Some(0o600), Some(10), upload(b"0123456789"));
    written.await.expect("written, with the folder above it");
    let entry = session.stat(at, "/project/sub/a", None).await.expect("described");
    assert_eq!((entry.kind, entry.size, entry.mode), (EntryKind::File, 10, 0o600));
    assert_eq!((entry.name.as_slice(), entry.path.as_slice()), (&b"a"[..], &b"/project/sub/a"[..]));
    let part = |start, len| session.read_file(at, "/project/sub/a", None, Some(Range { start, len }));
    assert_eq!(
        content(session.read_file(at, "/project/sub/a", None, None).await.expect("read")).await,
        b"0123456789"
    );
    assert_eq!(content(part(2, Some(3)).await.expect("read")).await, b"234");
    assert_eq!(content(part(8, None).await.expect("read")).await, b"89");
    let beyond = part(50, None).await.expect("read");
    assert_eq!((beyond.size, content(beyond).await.len()), (10, 0));
    session.rename(at, "/project/sub/a", "/project/new/b", None).await.expect("renamed");
    let listed = session.list_folder(at, "/project", None).await.expect("listed");
    let mut names: Vec<_> = listed.into_iter().map(|entry| (entry.path, entry.kind)).collect();
    names.sort_by(|one, other| one.0.cmp(&other.0));
    let folder = |path: &str| (path.as_bytes().to_vec(), EntryKind::Directory);
    assert_eq!(names, [folder("/project/new"), folder("/project/sub")]);
    session.remove(at, "/project/new", None).await.expect("removed");
    assert_eq!(refusal(session.stat(at, "/project/new/b", None).await), ErrorKind::NotFound);
    fixture.destroy(&spec).await;
}

pub(super) async fn a_broken_upload_changes_nothing(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let (session, at) = (session(&fixture), &live.target);
    session.write_file(at, "/project/a", None, None, None, upload(b"old")).await.expect("written");
    let pieces = [Ok(Bytes::from_static(b"ne")), Err(std::io::Error::other("cut"))];
    let cut = futures::stream::iter(pieces).boxed();
    assert!(session.write_file(at, "/project/a", None, None, Some(3), cut).await.is_err());
    let kept = session.read_file(at, "/project/a", None, None).await.expect("read");
    assert_eq!(content(kept).await, b"old");
    assert_eq!(session.list_folder(at, "/project", None).await.expect("listed").len(), 1);
    fixture.destroy(&spec).await;
}

pub(super) async fn what_is_not_there_is_refused(fixture: Fixture) {
    let spec = fixture.spec();
    let live = begun(&fixture, &spec).await;
    let (session, at) = (session(&fixture), &live.target);
    let no_program = ProcessSpec { argv: vec!["no-such-program".to_owned()], ..shell("") };
    assert_eq!(refusal(session.start_process(at, no_program).await), ErrorKind::NotFound);
    assert_eq!(refusal(session.read_file(at, "/project/none", None, None).await), ErrorKind::NotFound);
    assert_eq!(refusal(session.list_folder(at, "/project/none", None).await), ErrorKind::NotFound);
    assert_eq!(refusal(session.rename(at, "/project/none", "/project/b", None).await), ErrorKind::NotFound);
    assert_eq!(refusal(session.remove(at, "/project/none", None).await), ErrorKind::NotFound);
    assert_eq!(refusal(session.make_folder(at, "/project", None, None).await), ErrorKind::Exists);
    assert_eq!(refusal(session.attach_process(at, "4000000000").await), ErrorKind::NotFound);
    let gone = target(&fixture.spec());
    assert!(is_gone(session.stat(&gone, "/project", None).await));
    fixture.destroy(&spec).await;
}
