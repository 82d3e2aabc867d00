//! Randomness for ids and keys, from the kernel.

use crate::ServiceError;
use atoll_model::Code;

/// New random bytes. Without them no secret can be made, so the request fails.
pub(crate) fn entropy<const N: usize>() -> Result<[u8; N], ServiceError> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|cause| {
        ServiceError::new(Code::Internal, "the kernel gave no randomness")
            .caused_by(std::io::Error::other(cause.to_string()))
    })?;
    Ok(bytes)
}
