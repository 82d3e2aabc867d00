//! Pure decisions. Each file answers one question; none needs a kernel or a clock.

pub mod authz;
pub mod deadlines;
pub mod egress;
pub mod idle;
pub mod origin;
pub mod placement;
pub mod providers;
pub mod queue;
pub mod quota;
pub mod resize;
