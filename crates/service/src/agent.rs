//! The agent of a running instance: how to connect to it, how to greet it, and what its refusals mean for a user.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_agentapi::{
    AgentClient, AgentError, AgentLimits, AgentToken, InitRequest, ProcessStream, RpcCode, StartProcess,
};
use atoll_model::{Code, InstanceId, Lease, SandboxId};
use atoll_provider::{AGENT_PORT, Provider, ProviderError, Target};
use atoll_session::SessionAdapter;

use crate::ServiceError;
use crate::company::Inside;

/// The tag of the process that runs the lease's own command.
pub(crate) const COMMAND_TAG: &str = "command";

/// A client that connects to the instance through its provider: to Atoll's agent in it, or where the provider has calls of its own
/// for commands and files, to the adapter that makes them. It is valid for this instance only: a later one has another token.
pub(crate) fn client(
    provider: &Arc<dyn Provider>,
    lease: &Lease,
    instance: &InstanceId,
    token: &str,
) -> AgentClient {
    let (provider, token) = (Arc::clone(provider), AgentToken::new(token));
    let target = Target { sandbox: lease.id.clone(), instance: Some(instance.clone()) };
    if provider.session_support().is_ok() {
        let adapter = SessionAdapter::new(provider, target, settings(lease, None, Inside::default()));
        return AgentClient::new(move || std::future::ready(Ok(adapter.connect())), &token);
    }
    let connect = move || {
        let (provider, target) = (Arc::clone(&provider), target.clone());
        async move { provider.dial(&target, AGENT_PORT).await.map_err(std::io::Error::other) }
    };
    AgentClient::new(connect, &token)
}

/// The start command of a lease, after the attempt to start it.
pub(crate) enum StartedCommand {
    /// The lease has none.
    None,
    /// It runs; the stream tells how it ends.
    Running { pid: u32, stream: ProcessStream },
    /// It could not be started: the status that a shell would report, and why.
    Failed { exit_code: i32, message: String },
}

/// Sends a new agent its settings and starts the lease's command.
pub(crate) async fn greet(
    agent: &AgentClient,
    lease: &Lease,
    inside: Inside<'_>,
) -> Result<StartedCommand, ServiceError> {
    let request = settings(lease, None, inside.company_alone());
    agent
        .init(&request)
        .await
        .map_err(|error| unavailable(error, "the agent did not accept its settings"))?;
    if !inside.is_empty() {
        trust(agent, lease, inside).await;
    }
    Ok(match &lease.command {
        Some(command) => start_command(agent, &lease.id, command).await,
        None => StartedCommand::None,
    })
}

/// Sends an agent its settings again.
pub(crate) async fn resettle(
    agent: &AgentClient,
    lease: &Lease,
    inside: Inside<'_>,
) -> Result<(), ServiceError> {
    let told = agent.init(&settings(lease, None, inside)).await;
    told.map(drop).map_err(|error| unavailable(error, "the agent did not accept its settings"))
}

/// Sends an agent the limits of its sandbox. The agent only reports them: if it does not answer, the enforced limits
/// are the same.
pub(crate) async fn tell_limits(agent: &AgentClient, lease: &Lease) {
    let told = InitRequest { limits: Some(limits(lease)), ..InitRequest::default() };
    if let Err(error) = agent.init(&told).await {
        tracing::warn!(sandbox = %lease.id, %error, "the agent still reports the old limits");
    }
}

/// Installs the files of the company and the sandbox's own certificate authority, and makes commands use them; no authority removes
/// it. A sandbox without room for them still runs: only requests that need them fail there.
pub(crate) async fn trust(agent: &AgentClient, lease: &Lease, inside: Inside<'_>) {
    if let Some(company) = inside.company
        && let Err(error) = company.put(agent, lease).await
    {
        tracing::warn!(sandbox = %lease.id, %error, "added authorities or mirrors could not be placed in the sandbox");
    }
    let put = match inside.authority {
        Some(authority) => crate::egress::trust::put(agent, authority).await,
        None => Ok(()),
    };
    let told = if put.is_ok() { inside } else { inside.company_alone() };
    let told = agent.init(&settings(lease, None, told)).await.map(|_| ());
    if let Err(error) = put.and(told) {
        tracing::warn!(sandbox = %lease.id, %error, "the certificate authority could not be placed in the sandbox");
    }
}

/// Sends an agent that was restored with its processes its settings and the last of the tokens; returns a client with
/// that token. It is not certain which of the tokens the agent knows: the server may have died during an earlier
/// attempt.
pub(crate) async fn greet_restored(
    provider: &Arc<dyn Provider>,
    lease: &Lease,
    instance: &InstanceId,
    tokens: &Tokens,
    inside: Inside<'_>,
) -> Result<(AgentClient, String), ServiceError> {
    let request = settings(lease, Some(tokens.newest().to_owned()), inside.company_alone());
    let mut refused = None;
    for token in tokens.all() {
        let agent = client(provider, lease, instance, token);
        match agent.init(&request).await {
            Ok(_) => return Ok((agent, tokens.newest().to_owned())),
            Err(error @ AgentError::Refused { .. }) => refused = Some(error),
            Err(error) => return Err(unavailable(error, "the restored agent did not accept its settings")),
        }
    }
    let error = refused.unwrap_or(AgentError::Argument("no token is known"));
    Err(unavailable(error, "the restored agent accepts none of its tokens"))
}

/// Tokens that an agent may know, the likeliest first; the last one is the new one. They are stored in one text.
pub(crate) struct Tokens(String);

impl Tokens {
    /// LIMIT: each failed restore adds one.
    const MOST: usize = 4;

    pub(crate) fn from_row(row: &str) -> Self {
        Self(row.to_owned())
    }

    /// The same tokens with a new one at the end.
    pub(crate) fn and_new(&self) -> Result<Self, ServiceError> {
        let fresh = hex::encode(crate::random::entropy::<32>()?);
        let known: Vec<&str> = self.all().take(Self::MOST - 1).collect();
        Ok(Self(format!("{} {fresh}", known.join(" "))))
    }

    /// The token that the agent knew first.
    pub(crate) fn first(&self) -> &str {
        self.all().next().unwrap_or_default()
    }

    /// Whether it is not certain which token the agent knows.
    pub(crate) fn is_open(&self) -> bool {
        self.all().count() > 1
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        self.0.split(' ').filter(|token| !token.is_empty())
    }

    fn newest(&self) -> &str {
        self.all().last().unwrap_or_default()
    }
}

fn limits(lease: &Lease) -> AgentLimits {
    const MIB: u64 = 1 << 20;
    AgentLimits {
        cpu_count: lease.limits.cpu_milli.div_ceil(1_000),
        memory_bytes: u64::from(lease.limits.memory_mib) * MIB,
        disk_bytes: u64::from(lease.limits.disk_mib) * MIB,
        disk_used_bytes: 0,
    }
}

fn settings(lease: &Lease, access_token: Option<String>, inside: Inside<'_>) -> InitRequest {
    let mut env = filled(lease);
    // Both name the same bundle; for programs with a list of their own the sandbox's authority counts, since its requests are changed.
    if inside.authority.is_some() {
        crate::egress::trust::add_env(&mut env);
    }
    if let Some(company) = inside.company {
        company.add_env(&mut env);
    }
    InitRequest {
        env_vars: Some(env),
        access_token,
        default_user: Some(lease.user.clone()),
        default_workdir: Some(lease.workdir.clone()),
        hostname: Some(hostname(lease)),
        limits: Some(limits(lease)),
    }
}

/// The environment of commands. A value that stands for a property of the sandbox is replaced here and not in the
/// lease: a fork and a sandbox of a snapshot inherit the placeholder, not its value.
fn filled(lease: &Lease) -> BTreeMap<String, String> {
    let fill = |value: &String| match value.as_str() {
        "{sandbox.id}" => lease.id.to_string(),
        "{sandbox.template}" => lease.template.clone(),
        _ => value.clone(),
    };
    let env = lease.env.iter().map(|(name, value)| (name.clone(), fill(value)));
    let secrets = lease.secrets.iter().map(|(name, secret)| (name.clone(), secret.placeholder.clone()));
    env.chain(secrets).collect()
}

/// The name if it can be a host name, otherwise the id.
pub(crate) fn hostname(lease: &Lease) -> String {
    let fits =
        |name: &&String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && !name.ends_with('-');
    lease.name.as_ref().filter(fits).map_or_else(|| lease.id.to_string(), Clone::clone)
}

/// A sandbox whose command cannot be started is kept, so that the user can find the reason.
async fn start_command(agent: &AgentClient, sandbox: &SandboxId, command: &[String]) -> StartedCommand {
    let Some((cmd, args)) = command.split_first() else { return StartedCommand::None };
    let process = StartProcess {
        cmd: cmd.clone(),
        args: args.to_vec(),
        envs: BTreeMap::new(),
        tag: COMMAND_TAG.to_owned(),
        logged: true,
        detached: true,
        ..Default::default()
    };
    match agent.start(process).await {
        Ok((started, stream)) => StartedCommand::Running { pid: started.pid, stream },
        Err(error) => {
            tracing::warn!(%sandbox, %error, "the sandbox's command could not be started");
            let is_missing = matches!(error, AgentError::Refused { code: RpcCode::NotFound, .. });
            // As in shells: the program does not exist, or it cannot be executed.
            let exit_code = if is_missing { 127 } else { 126 };
            StartedCommand::Failed { exit_code, message: refusal(AgentOperation::Start, error).message }
        }
    }
}

/// The refusal of a provider that cannot be connected to because it lacks a capability.
fn missing_capability(error: &AgentError) -> Option<ServiceError> {
    let AgentError::Connect(cause) = error else { return None };
    match cause.get_ref()?.downcast_ref::<ProviderError>()? {
        missing @ ProviderError::MissingCapability { hint, .. } => {
            Some(ServiceError::new(Code::Unsupported, missing.to_string()).hint(hint.clone()))
        }
        _ => None,
    }
}

fn unavailable(error: AgentError, message: &str) -> ServiceError {
    if let Some(missing) = missing_capability(&error) {
        return missing;
    }
    ServiceError::new(Code::SandboxUnavailable, message).retry_after(1).caused_by(error)
}

/// The operation that the agent refused; the same code has different meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentOperation {
    /// A file or directory.
    File,
    /// A process that should exist.
    Process,
    /// A process to be started.
    Start,
}

/// Translates an agent's refusal to an error of the service. The client has cleaned its text, which is safe to show.
pub(crate) fn refusal(about: AgentOperation, error: AgentError) -> ServiceError {
    if let Some(missing) = missing_capability(&error) {
        return missing;
    }
    match &error {
        AgentError::Refused { code, message } => refused(about, *code, message.clone()),
        AgentError::Argument(why) => ServiceError::new(Code::InvalidArgument, *why),
        AgentError::Upload(_) => {
            ServiceError::new(Code::InvalidRequest, "the body ended before it was complete").caused_by(error)
        }
        AgentError::Deadline { .. } => {
            ServiceError::new(Code::DeadlineExceeded, "the sandbox did not answer in time").caused_by(error)
        }
        AgentError::Connect(_) | AgentError::Transport(_) | AgentError::Protocol(_) | AgentError::Ended => {
            unavailable(error, "the sandbox does not answer")
                .hint("check its phase; restart the sandbox if this persists")
        }
        _ => ServiceError::new(Code::Internal, "the agent failed").caused_by(error),
    }
}

fn refused(about: AgentOperation, code: RpcCode, message: String) -> ServiceError {
    let code = match (code, about) {
        (RpcCode::NotFound, AgentOperation::File) => Code::FileNotFound,
        (RpcCode::NotFound, AgentOperation::Process) => Code::ProcessNotFound,
        (RpcCode::NotFound, AgentOperation::Start) => Code::InvalidArgument,
        (RpcCode::InvalidArgument | RpcCode::OutOfRange, _) => Code::InvalidArgument,
        (RpcCode::PermissionDenied | RpcCode::FailedPrecondition | RpcCode::Aborted, _) => {
            Code::InvalidArgument
        }
        (RpcCode::AlreadyExists, _) => Code::AlreadyExists,
        // The agent has one code for a full disk and for every other limit; only its text distinguishes them.
        (RpcCode::ResourceExhausted, _) if message.contains("disk") => Code::DiskFull,
        (RpcCode::ResourceExhausted, AgentOperation::File) if !message.contains("too many") => Code::DiskFull,
        (RpcCode::ResourceExhausted, AgentOperation::File) => Code::SandboxExhausted,
        (RpcCode::ResourceExhausted, AgentOperation::Process | AgentOperation::Start) => {
            Code::SandboxExhausted
        }
        (RpcCode::Unimplemented, _) => Code::Unsupported,
        (RpcCode::DeadlineExceeded, _) => Code::DeadlineExceeded,
        // The protocol's code for a user that the sandbox does not have; the token of the request is valid.
        (RpcCode::Unauthenticated, AgentOperation::Start | AgentOperation::File) => Code::InvalidArgument,
        (RpcCode::Unavailable | RpcCode::Canceled | RpcCode::Unauthenticated, _) => Code::SandboxUnavailable,
        (RpcCode::Internal | RpcCode::DataLoss | RpcCode::Unknown, _) => Code::Internal,
    };
    let error = ServiceError::new(code, message);
    match code {
        Code::DiskFull => error.hint("remove files, or give the sandbox a larger disk_mib"),
        Code::SandboxExhausted => error.hint("end processes, or give the sandbox more pids or memory_mib"),
        Code::Unsupported => error.hint("`atoll provider ls --wide` shows what each provider can do"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_word_means_what_it_was_about() {
        let refused =
            |about, code| refusal(about, AgentError::Refused { code, message: "no".to_owned() }).code;
        assert_eq!(refused(AgentOperation::File, RpcCode::NotFound), Code::FileNotFound);
        assert_eq!(refused(AgentOperation::Process, RpcCode::NotFound), Code::ProcessNotFound);
        assert_eq!(refused(AgentOperation::File, RpcCode::ResourceExhausted), Code::DiskFull);
        assert_eq!(refused(AgentOperation::Start, RpcCode::ResourceExhausted), Code::SandboxExhausted);
        assert_eq!(refused(AgentOperation::Start, RpcCode::Unavailable), Code::SandboxUnavailable);
        assert_eq!(refused(AgentOperation::Start, RpcCode::Unauthenticated), Code::InvalidArgument);
    }
}
