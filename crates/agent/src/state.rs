//! The state of the agent, shared by its tasks.

use crate::files::Readers;
use crate::hold::Holds;
use crate::host_mode::HostMode;
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
    pub(crate) readers: Readers,
    pub(crate) watchers: WatcherRegistry,
    pub(crate) meter: Meter,
    pub(crate) holds: Holds,
}

impl Agent {
    pub(crate) fn new(token: Vec<u8>, host: Option<HostMode>) -> Self {
        Self {
            settings: Settings::new(token, host),
            processes: Table::default(),
            logs: LogBuffer::default(),
            workers: Workers::new(),
            readers: Readers::default(),
            watchers: WatcherRegistry::default(),
            meter: Meter::default(),
            holds: Holds::default(),
        }
    }
}
