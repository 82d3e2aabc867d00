//! Terminals over the sockets of the toolbox.
//!
//! The service's terminal runs a login shell and nothing else. So a script is left in the sandbox and typed into the shell, which it
//! replaces; what the shell printed before is dropped.

mod socket;

use std::sync::PoisonError;
use std::time::Duration;

use atoll_agentapi::{ProcessEvent, TerminalSize};
use atoll_model::ErrorKind;
use atoll_provider::{ProcessOutput, ProcessSpec, ProviderError, StartedProcess};
use atoll_remote::VendorAddress;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::HeaderValue;
use http::header::SEC_WEBSOCKET_PROTOCOL;
pub(crate) use socket::TerminalInput;
use socket::{Heard, PIECE_MAX, Socket, TerminalSocket, heard};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::process::{
    ProcessMeta, ToolboxCall, check_words, new_token, no_process, refused, search_path, seconds,
};
use crate::scripts::{self, quoted};
use crate::toolbox::{KnownProcess, ScriptRun, word};

/// With it the service tells how a terminal ended.
const EXIT_CONTROL: HeaderValue = HeaderValue::from_static("X-Daytona-Pty-Exit-Control");
/// LIMIT: a shell starts within seconds.
const OPEN_WITHIN: Duration = Duration::from_secs(20);
/// LIMIT: what a shell prints before its first command.
const GREETING_MAX: usize = 64 << 10;
/// LIMIT: pieces of input that wait for the socket.
const INPUT_MAX: usize = 64;
/// LIMIT: how often a terminal is connected again after its socket broke.
const ATTEMPTS: u32 = 3;
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// LIMIT: input that the terminal does not take.
const INPUT_WITHIN: Duration = Duration::from_secs(60);
/// Around the line by which the script says that it runs. A shell's echo of a command does not contain it.
const MARK: char = '\x1e';

/// Ends the terminal's process after a time, unless its process id belongs to another process by then.
const TIMER: &str = r#"atoll_started() {
  read -r atoll_stat <"/proc/$1/stat" || return
  set -- ${atoll_stat##*) }
  echo "${20}"
}
(
  atoll_at=$(atoll_started $$)
  sleep "$atoll_limit"
  [ "$(atoll_started $$)" = "$atoll_at" ] && kill -9 -$$
) </dev/null >/dev/null 2>&1 &
"#;

/// The script that replaces the shell.
fn program(token: &str, what: &ProcessSpec, folder: &str) -> String {
    let mut text = format!("echo $$ >{}/{token}.pid\ncd {}\n", scripts::FOLDER, quoted(folder));
    if let Some(limit) = what.timeout {
        text.push_str(&format!("atoll_limit={}\n{TIMER}", seconds(limit)));
    }
    let command = scripts::with_environment(&what.env, &what.argv);
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    text.push_str(&format!("printf '\\036%s:%s\\036' {token} $$\nexec {}\n", command.join(" ")));
    text
}

/// The process id behind the mark, and what follows it.
fn after_mark(greeting: &[u8], token: &str) -> Option<(u32, Bytes)> {
    let mark = format!("{MARK}{token}:");
    let start = greeting.windows(mark.len()).position(|part| part == mark.as_bytes())? + mark.len();
    let rest = &greeting[start..];
    let end = rest.iter().position(|byte| *byte == MARK as u8)?;
    let pid = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((pid, Bytes::copy_from_slice(&rest[end + 1..])))
}

impl ToolboxCall {
    pub(crate) async fn open_terminal(
        self,
        what: ProcessSpec,
        size: TerminalSize,
    ) -> Result<StartedProcess, ProviderError> {
        check_words(&what)?;
        let token = new_token()?;
        let folder = what.cwd.as_deref().unwrap_or_else(|| self.shared.settings.workdir());
        self.prepare_terminal(&what, folder, &token).await?;
        let (cols, rows) = (size.cols.clamp(1, 1_000), size.rows.clamp(1, 1_000));
        let path = format!("/process/pty/create-connect?id={token}&cols={cols}&rows={rows}");
        let opening = async {
            let mut socket = self.connect(&path).await?;
            let line = format!(" exec /bin/sh {}/{token}.run\r", scripts::FOLDER);
            socket.send(Message::Binary(line.into())).await.map_err(|error| self.broken(&error))?;
            let mut greeting = Vec::new();
            loop {
                match heard(socket.next().await).map_err(|why| self.broken(&why))? {
                    Heard::Output(data) => greeting.extend_from_slice(&data),
                    Heard::Nothing => continue,
                    Heard::Exit(_) | Heard::Closed => return Err(self.broken(&"the shell ended")),
                }
                if let Some((pid, first)) = after_mark(&greeting, &token) {
                    return Ok((socket, pid, first));
                }
                if greeting.len() > GREETING_MAX {
                    return Err(self.broken(&"the shell does not run a command"));
                }
            }
        };
        let late = |_| ProviderError::Late { what: "the shell of a terminal".into(), after: OPEN_WITHIN };
        let opened = tokio::time::timeout(OPEN_WITHIN, opening).await.map_err(late).and_then(|opened| opened);
        let (socket, pid, first) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.abandon(&token).await;
                return Err(error);
            }
        };
        self.access.remember_process(pid, KnownProcess { token: token.clone(), is_terminal: true });
        let output = Terminal::new(self, pid, token, socket).into_stream(first);
        Ok(StartedProcess { id: pid.to_string(), output })
    }

    /// Puts the script that replaces the shell into the sandbox.
    async fn prepare_terminal(
        &self,
        what: &ProcessSpec,
        folder: &str,
        token: &str,
    ) -> Result<(), ProviderError> {
        let program = STANDARD.encode(program(token, what, folder));
        let (meta, name) = (ProcessMeta::of(what).encoded(), what.argv[0].as_str());
        let script = scripts::terminal();
        let arguments = vec![token, &program, &meta, folder, name, search_path(what)];
        let printed = self.script(ScriptRun::new(&script, arguments)).await?;
        match self.told(word(&printed)).await? {
            "ok" => Ok(()),
            "m" => Err(refused(ErrorKind::NotFound, format!("command not found: '{name}'"))),
            "c" => Err(refused(ErrorKind::NotFound, format!("there is no folder {folder}"))),
            _ => Err(self.odd()),
        }
    }

    pub(crate) async fn attach_terminal(
        self,
        pid: u32,
        token: String,
    ) -> Result<ProcessOutput, ProviderError> {
        let socket = self.connect(&format!("/process/pty/{token}/connect")).await?;
        Ok(Terminal::new(self, pid, token, socket).into_stream(Bytes::new()))
    }

    /// Removes a terminal whose shell could not be used.
    async fn abandon(&self, token: &str) {
        if let Err(error) = self.access.remove_terminal(token).await
            && !error.is_status(404)
        {
            tracing::debug!(sandbox = %self.target.sandbox, %error, "a terminal could not be removed");
        }
        self.access.forget_files(token, 0);
    }

    /// Input to a terminal: through the socket that is open, or one of its own.
    pub(crate) async fn type_in(&self, pid: u32, token: &str, data: Bytes) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "input to a terminal".into(), after: INPUT_WITHIN };
        tokio::time::timeout(INPUT_WITHIN, self.type_pieces(pid, token, data)).await.map_err(late)?
    }

    async fn type_pieces(&self, pid: u32, token: &str, mut data: Bytes) -> Result<(), ProviderError> {
        let open = self.access.terminals.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned();
        while let Some(input) = &open
            && !data.is_empty()
        {
            let (taken, told) = oneshot::channel();
            let piece = data.slice(..data.len().min(PIECE_MAX));
            let len = piece.len();
            if input.send(TerminalInput { data: piece, taken }).await.is_err() {
                break;
            }
            // Whether a piece arrived is not known when its socket broke: it is not sent again.
            let told = told.await.unwrap_or_else(|_| Err("it broke while input was sent".to_owned()));
            told.map_err(|why| self.broken(&why))?;
            data = data.slice(len..);
        }
        if data.is_empty() { Ok(()) } else { self.type_alone(token, data).await }
    }

    /// Input through a socket of its own. The service has read it when it answers the close.
    async fn type_alone(&self, token: &str, data: Bytes) -> Result<(), ProviderError> {
        let mut socket = self.connect(&format!("/process/pty/{token}/connect")).await?;
        socket.send(Message::Binary(data)).await.map_err(|error| self.broken(&error))?;
        if socket.close(None).await.is_ok() {
            while let Some(Ok(_)) = socket.next().await {}
        }
        Ok(())
    }

    /// The text may be of the service.
    fn broken(&self, why: &dyn std::fmt::Display) -> ProviderError {
        let why = self.access.client.redacted(&why.to_string());
        ProviderError::Transient { what: "the connection to a terminal".to_owned(), why }
    }

    async fn connect(&self, path: &str) -> Result<Socket, ProviderError> {
        let url = format!("{}/{}{path}", self.access.base, self.access.id);
        let unusable = || self.broken(&"the address cannot be used");
        let api = VendorAddress::of_url(&self.shared.settings.api_url).ok_or_else(unusable)?;
        let address = VendorAddress::of_url(&url).ok_or_else(unusable)?.named_by(&api);
        let stream = self.shared.connector.connect(&address).await.map_err(|error| self.broken(&error))?;
        let request = url.replacen("http", "ws", 1).into_client_request();
        let mut request = request.map_err(|error| self.broken(&error))?;
        request.headers_mut().extend(self.access.client.key_header());
        request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, EXIT_CONTROL);
        request.headers_mut().extend(self.access.headers());
        let opened = tokio::time::timeout(
            OPEN_WITHIN,
            client_async_with_config(request, stream, Some(socket::config())),
        )
        .await;
        match opened.map_err(|_| self.broken(&"it took too long"))? {
            Ok((socket, _)) => Ok(socket),
            Err(SocketError::Http(answer)) if answer.status() == 404 => {
                let asked = self.shared.is_running(&self.target.sandbox, &self.object).await;
                Err(if asked {
                    no_process("of this terminal")
                } else {
                    atoll_remote::gone(&self.target.sandbox)
                })
            }
            Err(SocketError::Http(answer)) => {
                Err(self.broken(&format!("the service refused ({})", answer.status())))
            }
            Err(error) => Err(self.broken(&error)),
        }
    }
}

/// A terminal that is followed.
struct Terminal {
    call: ToolboxCall,
    pid: u32,
    token: String,
    socket: TerminalSocket,
    input: mpsc::Receiver<TerminalInput>,
    attempts: u32,
    is_over: bool,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.input.close();
        let mut terminals = self.call.access.terminals.lock().unwrap_or_else(PoisonError::into_inner);
        terminals.retain(|_, input| !input.is_closed());
    }
}

impl Terminal {
    fn new(call: ToolboxCall, pid: u32, token: String, socket: Socket) -> Self {
        let (sender, input) = mpsc::channel(INPUT_MAX);
        call.access.terminals.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, sender);
        let socket = TerminalSocket::new(socket, call.shared.timing.stream_silence);
        Self { call, pid, token, socket, input, attempts: ATTEMPTS, is_over: false }
    }

    fn into_stream(self, first: Bytes) -> ProcessOutput {
        let first = (!first.is_empty()).then(|| Ok(ProcessEvent::Pty(first)));
        let rest = futures::stream::unfold(self, |mut terminal| async move {
            let event = terminal.event().await?;
            Some((event, terminal))
        });
        futures::stream::iter(first).chain(rest).boxed()
    }

    async fn event(&mut self) -> Option<Result<ProcessEvent, ProviderError>> {
        while !self.is_over {
            let error = match self.socket.event(&mut self.input).await {
                Ok(Heard::Output(data)) => {
                    self.attempts = ATTEMPTS;
                    return Some(Ok(ProcessEvent::Pty(data)));
                }
                Ok(Heard::Exit(status)) => {
                    self.is_over = true;
                    self.call.access.forget_process(self.pid, &self.token, 0);
                    return Some(Ok(ProcessEvent::Exit(status)));
                }
                Ok(Heard::Nothing) => continue,
                Ok(Heard::Closed) => self.call.broken(&"the service closed it"),
                Err(why) => self.call.broken(&why),
            };
            if let Err(error) = self.connect_again(error).await {
                self.is_over = true;
                return Some(Err(error));
            }
        }
        None
    }

    async fn connect_again(&mut self, error: ProviderError) -> Result<(), ProviderError> {
        // Gone where it was halted or destroyed.
        self.call.shared.table.live(&self.call.target)?;
        if self.attempts == 0 {
            return Err(error);
        }
        self.attempts -= 1;
        tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
        let socket = self.call.connect(&format!("/process/pty/{}/connect", self.token)).await?;
        self.socket = TerminalSocket::new(socket, self.call.shared.timing.stream_silence);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_of_a_shell_is_dropped() {
        let printed = b"$ exec /bin/sh /tmp/.atoll/ab.run\r\n\x1eab:42\x1e# ";
        assert_eq!(after_mark(printed, "ab"), Some((42, Bytes::from_static(b"# "))));
        assert_eq!(after_mark(&printed[..40], "ab"), None, "the mark is not whole yet");
        assert_eq!(after_mark(printed, "cd"), None);
    }

    #[test]
    fn any_greeting_is_read_or_waited_for() {
        atoll_robustness::check("terminal_greeting", |bytes| {
            after_mark(bytes, "ab");
        });
    }
}
