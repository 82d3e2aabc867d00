//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod access;
mod announced;
mod archive;
mod build;
mod crash;
mod egress;
mod egress_canary;
mod egress_log;
mod full_disk;
mod images;
mod lifecycle;
mod lifetimes;
mod nodes;
mod previews;
mod provider_settings;
mod providers;
mod queue;
mod session;
mod templates;
mod threads;
mod timers;
mod uploads;
mod verbs;
mod volumes;
mod wake;
mod world;
