//! Connections to ports inside a container: sockets made in its network namespace where the daemon is on this machine, else
//! one exec stream for all of them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_network::DialError;
use atoll_provider::{ByteStream, DialSupport, ProviderError, Target};

use crate::exec_stream::{ExecDialError, ExecStream};
use crate::slot::{ContainerAccess, HeldStream, LiveContainer};
use crate::{DockerProvider, Shared, failed};

/// LIMIT: a connection inside the machine.
const DIAL_WITHIN: Duration = Duration::from_secs(5);

#[async_trait]
impl DialSupport for DockerProvider {
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let live = self.shared.live(target).await?;
        match self.shared.connect(&live, port, DIAL_WITHIN).await {
            Err(ProviderError::PortClosed { port }) if !live.is_dead() => {
                Err(ProviderError::PortClosed { port })
            }
            Err(_) if self.shared.has_ended(&live, target).await => {
                Err(ProviderError::Gone { sandbox: target.sandbox.clone() })
            }
            other => other,
        }
    }
}

impl Shared {
    /// A connection to a port inside a live container.
    pub(crate) async fn connect(
        &self,
        live: &LiveContainer,
        port: u16,
        within: Duration,
    ) -> Result<Box<dyn ByteStream>, ProviderError> {
        match &live.access {
            ContainerAccess::Local { network, .. } => {
                match self.dialer.dial(network.as_fd(), port, within).await {
                    Ok(stream) => Ok(Box::new(stream)),
                    Err(refusal) => Err(dial_error(refusal, within)),
                }
            }
            ContainerAccess::Remote(held) => {
                let late = |_| late(port, within);
                tokio::time::timeout(within, self.connect_by_exec(&live.id, held, port))
                    .await
                    .map_err(late)?
            }
        }
    }

    async fn connect_by_exec(
        &self,
        id: &str,
        held: &HeldStream,
        port: u16,
    ) -> Result<Box<dyn ByteStream>, ProviderError> {
        let current = held.lock().await.clone().filter(|stream| !stream.is_closed());
        if let Some(stream) = current {
            match stream.connect(port).await {
                // Somebody inside, or the network in between, has ended it.
                Err(ExecDialError::Ended(_)) => {}
                other => return connected(other, port),
            }
        }
        let stream = self.exec_stream(id, held).await?;
        connected(stream.connect(port).await, port)
    }

    /// The stream of a container; opened when there is none, or when it has ended.
    async fn exec_stream(&self, id: &str, held: &HeldStream) -> Result<Arc<ExecStream>, ProviderError> {
        let mut held = held.lock().await;
        if let Some(stream) = held.as_ref().filter(|stream| !stream.is_closed()) {
            return Ok(Arc::clone(stream));
        }
        let pipes = self.daemon.exec_agent(id).await?;
        let stream = ExecStream::open(pipes).await.map_err(failed("opening a stream into the container"))?;
        Ok(Arc::clone(held.insert(Arc::new(stream))))
    }

    /// Whether the processes of a container have ended. A daemon on another machine is asked.
    async fn has_ended(&self, live: &LiveContainer, target: &Target) -> bool {
        match &live.access {
            // Its network namespace is held open, so it outlives the container.
            ContainerAccess::Local { .. } => live.is_dead(),
            ContainerAccess::Remote(_) => {
                let found = self.find(&target.sandbox).await;
                found.is_ok_and(|found| found.is_none_or(|found| found.activity.is_none()))
            }
        }
    }
}

fn connected<S: ByteStream + 'static>(
    outcome: Result<S, ExecDialError>,
    port: u16,
) -> Result<Box<dyn ByteStream>, ProviderError> {
    match outcome {
        Ok(stream) => Ok(Box::new(stream)),
        Err(ExecDialError::PortClosed) => Err(ProviderError::PortClosed { port }),
        Err(ExecDialError::Refused(status)) => {
            Err(failed("connecting through the container's stream")(format!("status {status}")))
        }
        Err(ExecDialError::Ended(error)) => Err(ProviderError::Transient {
            what: "connecting through the container's stream".to_owned(),
            why: error.to_string(),
        }),
    }
}

fn late(port: u16, after: Duration) -> ProviderError {
    ProviderError::Late { what: format!("connecting to port {port}"), after }
}

fn dial_error(refusal: DialError, within: Duration) -> ProviderError {
    match refusal {
        DialError::Refused { port } => ProviderError::PortClosed { port },
        DialError::TimedOut { port } => late(port, within),
        DialError::Busy => ProviderError::Exhausted { what: "room for connections".to_owned() },
        other @ DialError::Failed { .. } => failed("connecting")(other),
    }
}
