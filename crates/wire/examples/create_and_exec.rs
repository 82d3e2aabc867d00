//! Creates a sandbox, runs a command in it and deletes it.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use atoll_client::Client;
use atoll_client::exec::ExecBody;
use atoll_client::sandbox_requests::CreateBody;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("ATOLL_URL").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::connect(&address, Some(&std::env::var("ATOLL_API_KEY")?))?;
    // A full server lets this create wait. The lifetime removes the sandbox even if this program dies.
    let body = CreateBody { queue: true, timeout_s: Some(300), ..CreateBody::default() };
    let sandbox = client.create_sandbox(&body, true, None).await?;
    let command = ExecBody { command: Some("uname -sm; id -un".to_owned()), ..ExecBody::default() };
    let result = client.exec(&sandbox.id, &command).await?;
    print!("{}", result.stdout);
    client.delete_sandbox(&sandbox.id).await?;
    Ok(())
}
