//! Pure decisions. Each file is one question; none of them needs a kernel or a clock.

pub mod authz;
pub mod deadlines;
pub mod egress;
pub mod idle;
pub mod origin;
pub mod placement;
pub mod quota;
pub mod resize;
