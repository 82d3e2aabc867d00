//! Refusals of the adapter, and their only mapping to the protocol.

use atoll_agentapi::RpcCode;
use atoll_model::ErrorKind;
use atoll_provider::ProviderError;
use connectrpc::ConnectError;
use http::StatusCode;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRefusal {
    pub(crate) code: RpcCode,
    pub(crate) message: String,
}

impl SessionRefusal {
    pub(crate) fn new(code: RpcCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(RpcCode::InvalidArgument, message)
    }

    /// The HTTP status of a refusal outside of the RPC services.
    pub(crate) fn status(&self) -> StatusCode {
        match self.code {
            RpcCode::InvalidArgument => StatusCode::BAD_REQUEST,
            RpcCode::NotFound => StatusCode::NOT_FOUND,
            RpcCode::PermissionDenied | RpcCode::Unauthenticated => StatusCode::FORBIDDEN,
            RpcCode::AlreadyExists | RpcCode::FailedPrecondition | RpcCode::Aborted => StatusCode::CONFLICT,
            RpcCode::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            RpcCode::OutOfRange => StatusCode::RANGE_NOT_SATISFIABLE,
            RpcCode::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            RpcCode::Unavailable | RpcCode::Canceled => StatusCode::SERVICE_UNAVAILABLE,
            RpcCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            RpcCode::Internal | RpcCode::DataLoss | RpcCode::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<ProviderError> for SessionRefusal {
    fn from(error: ProviderError) -> Self {
        let code = match &error {
            // The instance is gone, not a file of it.
            ProviderError::Gone { .. } => RpcCode::Unavailable,
            ProviderError::Late { .. } => RpcCode::DeadlineExceeded,
            ProviderError::Failed { step, cause } => {
                tracing::warn!(%step, %cause, "a call of the provider failed");
                RpcCode::Internal
            }
            other => code_of(other.kind()),
        };
        Self::new(code, error.to_string())
    }
}

const fn code_of(kind: ErrorKind) -> RpcCode {
    match kind {
        ErrorKind::NotFound => RpcCode::NotFound,
        ErrorKind::Exists => RpcCode::AlreadyExists,
        ErrorKind::Conflict => RpcCode::FailedPrecondition,
        ErrorKind::Invalid => RpcCode::InvalidArgument,
        ErrorKind::Unauthenticated | ErrorKind::Forbidden => RpcCode::PermissionDenied,
        ErrorKind::Exhausted => RpcCode::ResourceExhausted,
        ErrorKind::Unavailable => RpcCode::Unavailable,
        ErrorKind::Unsupported => RpcCode::Unimplemented,
        ErrorKind::Internal => RpcCode::Internal,
    }
}

impl From<SessionRefusal> for ConnectError {
    fn from(refusal: SessionRefusal) -> Self {
        let say = match refusal.code {
            RpcCode::InvalidArgument => Self::invalid_argument,
            RpcCode::NotFound => Self::not_found,
            RpcCode::AlreadyExists => Self::already_exists,
            RpcCode::PermissionDenied | RpcCode::Unauthenticated => Self::permission_denied,
            RpcCode::FailedPrecondition | RpcCode::Aborted => Self::failed_precondition,
            RpcCode::ResourceExhausted => Self::resource_exhausted,
            RpcCode::OutOfRange => Self::out_of_range,
            RpcCode::Unimplemented => Self::unimplemented,
            RpcCode::Unavailable | RpcCode::Canceled => Self::unavailable,
            RpcCode::DeadlineExceeded => Self::deadline_exceeded,
            RpcCode::Internal | RpcCode::DataLoss | RpcCode::Unknown => Self::internal,
        };
        say(refusal.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_provider::Capability;

    #[test]
    fn a_missing_capability_keeps_its_name() {
        let missing = ProviderError::MissingCapability {
            provider: "folder",
            capability: Capability::Stdin,
            hint: String::new(),
        };
        let refusal = SessionRefusal::from(missing);
        assert_eq!((refusal.code, refusal.status()), (RpcCode::Unimplemented, StatusCode::NOT_IMPLEMENTED));
        assert!(refusal.message.ends_with("provider folder lacks the capability stdin"), "{refusal:?}");
    }

    #[test]
    fn every_status_is_read_back_as_a_refusal_of_the_same_kind() {
        for code in [
            RpcCode::InvalidArgument,
            RpcCode::NotFound,
            RpcCode::AlreadyExists,
            RpcCode::PermissionDenied,
            RpcCode::ResourceExhausted,
            RpcCode::OutOfRange,
            RpcCode::Unimplemented,
            RpcCode::Unavailable,
        ] {
            assert_eq!(RpcCode::from_http(SessionRefusal::new(code, "").status().as_u16()), code);
        }
    }
}
