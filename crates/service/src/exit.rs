//! The end of what sandboxes are bound to: a thread of conversation, or the server itself.

use atoll_model::{Code, Lease, Principal};

use crate::ServiceError;
use crate::service::Service;

impl Service {
    /// Ends a thread: what is bound to it is paused or deleted, as each lease says. Answers what was touched.
    pub async fn end_thread(&self, _who: &Principal, _thread: &str) -> Result<Vec<Lease>, ServiceError> {
        Err(ServiceError::new(Code::Unsupported, "not yet"))
    }
}
