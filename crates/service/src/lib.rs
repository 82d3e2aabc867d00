//! The use cases: one driver per live sandbox, deadlines, quotas, events. The only writer of the store.

mod clock;
mod config;
mod error;
mod skeleton;
mod templates;
mod types;

pub use atoll_store::{KeyRecord, Page, ResourceSample, TenantRecord, Terminal};
pub use clock::{Clock, SystemClock, TestClock};
pub use config::Config;
pub use error::{Cause, ServiceError};
pub use skeleton::{Service, TerminalInput};
pub use templates::{MakeProgress, TemplateRecord, Templates};
pub use types::*;
