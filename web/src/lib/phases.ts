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

/** Where the memory of a paused sandbox is. */
export const memoryText = (held: NonNullable<Sandbox['held']>) => (held === 'disk' ? 'on disk' : 'in memory, frozen');

/** What happens to a sandbox at the end of the server, or of its thread. */
export const ON_EXIT_TEXT: Record<string, string> = { keep: 'it is kept', pause: 'it is paused', destroy: 'it is deleted' };

/** The key that created a sandbox, by its name if it has one. */
export const creatorText = (sandbox: Sandbox) => sandbox.created_by_key?.name || sandbox.created_by_key?.id;
