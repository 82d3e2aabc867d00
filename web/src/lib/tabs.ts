import type { Capability } from './capabilities.svelte';

/** `running` says why a tab needs a running sandbox, `needs` what its provider must be able to do. */
export const TABS: { id: string; label: string; running?: string; needs?: Capability }[] = [
  { id: 'overview', label: 'Overview' },
  { id: 'terminal', label: 'Terminal', running: 'A terminal is a shell in the running sandbox.', needs: 'terminal' },
  { id: 'files', label: 'Files', running: 'Files can be read and changed while the sandbox runs.' },
  { id: 'run', label: 'Run', running: 'Code runs in the running sandbox.' },
  { id: 'processes', label: 'Processes', running: 'Processes and previews exist while the sandbox runs.' },
  { id: 'logs', label: 'Logs' },
  { id: 'metrics', label: 'Metrics' },
  { id: 'egress', label: 'Egress' },
  { id: 'snapshots', label: 'Snapshots' },
  { id: 'events', label: 'Events' },
  { id: 'settings', label: 'Settings' },
];
