// What can be done with a sandbox, as data: buttons, menus, bulk actions, the palette and "copy as" read the same table.
import { call, sandboxPath, type Phase, type Sandbox } from './api';
import { type Capability, isAble } from './capabilities.svelte';
import { live } from './live.svelte';
import { toasts } from './toasts.svelte';
import type { IconName } from './icons';

export interface Action {
  id: string;
  label: string;
  /** What has happened afterwards: `Paused box`. */
  past: string;
  icon: IconName;
  method: string;
  /** Path below the sandbox. */
  path: string[];
  /** The command of the command line, before the sandbox's name. */
  cli: string;
  phases: Phase[];
  /** What the provider of the sandbox must be able to do. */
  needs?: Capability[];
  dangerous?: boolean;
  /** The action that takes it back. */
  undo?: string;
}

export const ACTIONS: Action[] = [
  { id: 'pause', label: 'Pause', past: 'Paused', icon: 'pause', method: 'POST', path: ['pause'], cli: 'pause', phases: ['running'], needs: ['pause'], undo: 'resume' },
  { id: 'resume', label: 'Resume', past: 'Resumed', icon: 'play', method: 'POST', path: ['resume'], cli: 'resume', phases: ['paused'], undo: 'pause' },
  { id: 'start', label: 'Start', past: 'Started', icon: 'play', method: 'POST', path: ['start'], cli: 'start', phases: ['stopped', 'archived', 'failed'], undo: 'stop' },
  { id: 'stop', label: 'Stop', past: 'Stopped', icon: 'stop', method: 'POST', path: ['stop'], cli: 'stop', phases: ['running', 'paused'], needs: ['keep_files'] },
  { id: 'restart', label: 'Restart', past: 'Restarted', icon: 'restart', method: 'POST', path: ['restart'], cli: 'restart', phases: ['running'], needs: ['keep_files'] },
  { id: 'archive', label: 'Archive', past: 'Archived', icon: 'archive', method: 'POST', path: ['archive'], cli: 'archive', phases: ['running', 'paused', 'stopped'], needs: ['archive', 'keep_files'], undo: 'restore' },
  { id: 'restore', label: 'Restore', past: 'Restored', icon: 'archive', method: 'POST', path: ['restore'], cli: 'restore', phases: ['archived'] },
  { id: 'delete', label: 'Delete', past: 'Deleted', icon: 'trash', method: 'DELETE', path: [], cli: 'rm', phases: ['creating', 'running', 'paused', 'stopped', 'archived', 'failed'], dangerous: true },
];

export const actionById = (id: string) => ACTIONS.find((action) => action.id === id)!;

/** Whether an action is possible in the state of a sandbox and at its provider. */
export function isPossible(action: Action, sandbox: Sandbox): boolean {
  // Files in memory cannot be archived.
  const isInMemory = action.id === 'archive' && sandbox.storage === 'memory';
  return action.phases.includes(sandbox.phase) && !isInMemory && isAble(sandbox, ...(action.needs ?? []));
}

export const actionsFor = (sandbox: Sandbox): Action[] => ACTIONS.filter((action) => isPossible(action, sandbox));

export const nameOf = (sandbox: Sandbox) => sandbox.name ?? sandbox.id;

/** Runs an action on sandboxes, several at a time, and reports what happened. */
export async function perform(action: Action, sandboxes: Sandbox[]): Promise<void> {
  const targets = sandboxes.filter((sandbox) => isPossible(action, sandbox));
  if (!targets.length) return;
  const done: Sandbox[] = [];
  const failed: { sandbox: Sandbox; error: unknown }[] = [];
  const queue = [...targets];
  const working = targets.length > 1 ? toasts.add({ kind: 'working', text: `${action.label}: ${targets.length} sandboxes…` }) : 0;
  const worker = async () => {
    for (let sandbox = queue.shift(); sandbox; sandbox = queue.shift()) {
      try {
        const answer = await call<Sandbox>(action.method, sandboxPath(sandbox.id, ...action.path));
        live.put(answer);
        done.push(answer);
      } catch (error) {
        failed.push({ sandbox, error });
      }
    }
  };
  await Promise.all(Array.from({ length: 6 }, worker));
  if (working) toasts.remove(working);
  const [only] = done;
  if (only) {
    const what = done.length === 1 ? nameOf(only) : `${done.length} sandboxes`;
    const back = action.undo ? actionById(action.undo) : undefined;
    toasts.done(`${action.past} ${what}`, back && (() => void perform(back, done.map((one) => live.sandboxes.get(one.id) ?? one))));
  }
  for (const { sandbox, error } of failed.slice(0, 3)) toasts.failed(`${action.label} ${nameOf(sandbox)}`, error);
  if (failed.length > 3) toasts.add({ kind: 'failed', text: `${action.label} failed for ${failed.length - 3} more` });
}
