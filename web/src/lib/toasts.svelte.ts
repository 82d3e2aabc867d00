// Short messages about what was done or failed.
import { ApiFailure, message } from './api';

export interface Toast {
  id: number;
  kind: 'done' | 'failed' | 'working';
  text: string;
  hint?: string | undefined;
  requestId?: string | undefined;
  undo?: (() => void) | undefined;
}

let next = 1;

class Toasts {
  items = $state<Toast[]>([]);

  add(toast: Omit<Toast, 'id'>, forMs = toast.kind === 'failed' ? 12_000 : 5_000): number {
    const id = next++;
    this.items = [...this.items.slice(-4), { id, ...toast }];
    if (toast.kind !== 'working') setTimeout(() => this.remove(id), forMs);
    return id;
  }

  remove(id: number): void {
    this.items = this.items.filter((toast) => toast.id !== id);
  }

  done(text: string, undo?: () => void): void {
    this.add({ kind: 'done', text, undo }, undo ? 8_000 : 4_000);
  }

  failed(what: string, error: unknown): void {
    if (error instanceof ApiFailure) {
      this.add({ kind: 'failed', text: `${what}: ${error.message}`, hint: error.hint, requestId: error.requestId });
    } else {
      this.add({ kind: 'failed', text: `${what}: ${message(error)}` });
    }
  }
}

export const toasts = new Toasts();

/** Runs something and reports its failure; returns whether it succeeded. */
export async function attempt(what: string, run: () => Promise<unknown>): Promise<boolean> {
  try {
    await run();
    return true;
  } catch (error) {
    toasts.failed(what, error);
    return false;
  }
}
