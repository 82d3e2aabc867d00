//! Log lines on stderr, or in files of the data folder for a server in the background: JSON for programs, text for people. They never contain a key, a body or a header.

use std::{path::Path, sync::Mutex};

use tracing_subscriber::{EnvFilter, fmt, fmt::writer::BoxMakeWriter};

use crate::{
    cli::serve::{LogFormat, Serve},
    failure::Failure,
    out::Out,
    server::log_files::RotatingLog,
};

/// Sets up the one subscriber of the process.
pub(super) fn start(args: &Serve, data: &Path, out: Out) -> Result<(), Failure> {
    // A person at the terminal wants to see problems, not every request and every sandbox. A filter matches the
    // beginning of a target: a bare `atoll` would match every crate of Atoll.
    let usual = if out.talks() { "warn,atoll::serve=info" } else { "info" };
    let said = args.log.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(said).map_err(|e| {
        Failure::usage(format!("{said:?} is not a log filter: {e}"), "write info, debug or crate=level")
    })?;
    let format = args.log_format.unwrap_or(if out.talks() { LogFormat::Text } else { LogFormat::Json });
    let writer = match args.background {
        true => {
            std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
            BoxMakeWriter::new(Mutex::new(RotatingLog::open(data)?))
        }
        false => BoxMakeWriter::new(std::io::stderr),
    };
    let lines = fmt().with_env_filter(filter).with_writer(writer).with_target(true);
    let started = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
        LogFormat::Text => lines.compact().with_ansi(out.colours_talk()).try_init(),
    };
    started.map_err(|e| Failure::new("internal", format!("logging cannot start: {e}")))
}
