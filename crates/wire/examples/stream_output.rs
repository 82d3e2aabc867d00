//! Follows the output of a command while it runs.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to the terminal")]

use std::io::Write;

use atoll_client::Client;
use atoll_client::exec::{ExecBody, ExecEvent};
use atoll_client::sandbox_requests::CreateBody;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("ATOLL_URL").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::connect(&address, Some(&std::env::var("ATOLL_API_KEY")?))?;
    let body = CreateBody { timeout_s: Some(300), ..CreateBody::default() };
    let sandbox = client.create_sandbox(&body, true, None).await?;
    let script = "for n in 1 2 3; do echo line $n; sleep 0.2; done; echo done >&2";
    let command = ExecBody { command: Some(script.to_owned()), ..ExecBody::default() };
    let mut events = client.exec_stream(&sandbox.id, &command).await?;
    while let Some(event) = events.next_exec().await? {
        match event {
            ExecEvent::Stdout(chunk) => {
                std::io::stdout().write_all(&chunk.into_bytes().unwrap_or_default())?
            }
            ExecEvent::Stderr(chunk) => {
                std::io::stderr().write_all(&chunk.into_bytes().unwrap_or_default())?
            }
            ExecEvent::Exit(exit) => println!("exit code {}", exit.exit_code),
            other => println!("{other:?}"),
        }
    }
    client.delete_sandbox(&sandbox.id).await?;
    Ok(())
}
