//! The state of the agent, shared by its tasks.

use crate::hold::Holds;
use crate::identity::Workers;
use crate::logs::LogBuffer;
use crate::metrics::Meter;
use crate::process::Table;
use crate::settings::Settings;
use crate::watch::WatcherRegistry;

pub(crate) struct Agent {
    pub(crate) settings: Settings,
    pub(crate) processes: Table,
    pub(crate) logs: LogBuffer,
    pub(crate) workers: Workers,
    pub(crate) watchers: WatcherRegistry,
    pub(crate) meter: Meter,
    pub(crate) holds: Holds,
}

impl Agent {
    pub(crate) fn new(token: Vec<u8>) -> Self {
        Self {
            settings: Settings::new(token),
            processes: Table::default(),
            logs: LogBuffer::default(),
            workers: Workers::new(),
            watchers: WatcherRegistry::default(),
            meter: Meter::default(),
            holds: Holds::default(),
        }
    }
}
