//! Promises to stay awake, longer lives, and the answer to why a sandbox is awake.

use atoll_model::{Code, Lease, Principal};

use crate::service::Service;
use crate::{Awake, HoldAsk, ServiceError};

impl Service {
    /// Keeps a sandbox from being idle until a deadline. A new hold takes the place of the one before.
    pub async fn hold(&self, who: &Principal, ident: &str, _ask: HoldAsk) -> Result<Lease, ServiceError> {
        self.driven(who, ident).await?;
        Err(ServiceError::new(Code::Unsupported, "not yet"))
    }

    /// Takes a hold back. Without one nothing happens.
    pub async fn release(&self, who: &Principal, ident: &str) -> Result<Lease, ServiceError> {
        self.driven(who, ident).await?;
        Err(ServiceError::new(Code::Unsupported, "not yet"))
    }

    /// Lets a sandbox live at least so many seconds from now on; never shortens.
    pub async fn extend(&self, who: &Principal, ident: &str, _seconds: u64) -> Result<Lease, ServiceError> {
        self.driven(who, ident).await?;
        Err(ServiceError::new(Code::Unsupported, "not yet"))
    }

    /// Why it is awake, since when, and what it does next by itself. Never wakes it.
    pub async fn awake(&self, who: &Principal, ident: &str) -> Result<Awake, ServiceError> {
        self.driven(who, ident).await?;
        Err(ServiceError::new(Code::Unsupported, "not yet"))
    }
}
