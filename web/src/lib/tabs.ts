export const TABS = [
  { id: 'overview', label: 'Overview' },
  { id: 'terminal', label: 'Terminal' },
  { id: 'files', label: 'Files' },
  { id: 'run', label: 'Run' },
  { id: 'processes', label: 'Processes' },
  { id: 'logs', label: 'Logs' },
  { id: 'metrics', label: 'Metrics' },
  { id: 'egress', label: 'Egress' },
  { id: 'snapshots', label: 'Snapshots' },
  { id: 'events', label: 'Events' },
  { id: 'settings', label: 'Settings' },
] as const;
