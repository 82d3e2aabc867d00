import type { Phase, Sandbox } from './api';

export const PHASES: Phase[] = [
  'running', 'paused', 'stopped', 'archived', 'failed', 'creating', 'starting', 'resuming', 'pausing', 'stopping', 'archiving', 'restoring', 'deleting',
];

const COLOURS: Partial<Record<Phase, string>> = { running: 'green', paused: 'amber', failed: 'red', stopped: '', archived: '', deleted: '', deleting: 'red' };

export function phaseColour(phase: Phase): string {
  return COLOURS[phase] ?? 'blue busy';
}

/** What will happen to a sandbox by itself, and when: its timeout. */
export function timeoutText(sandbox: Sandbox): string {
  return { delete: 'deleted', stop: 'stopped', pause: 'paused' }[sandbox.on_timeout];
}
