// Recent CPU and memory use of the rows that are on screen.
import { get, sandboxPath, type Sample } from './api';
import { live } from './live.svelte';

const POINTS = 30;
const EVERY_MS = 10_000;

class Samples {
  byId = $state.raw<ReadonlyMap<string, Sample[]>>(new Map());
  #visible = new Set<string>();
  #readAt = new Map<string, number>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Says which sandboxes are on screen. */
  show(ids: string[]): void {
    this.#visible = new Set(ids);
    if (this.#timer === undefined) this.#timer = setTimeout(() => void this.#read(), 150);
  }

  async #read(): Promise<void> {
    const now = Date.now();
    const due = [...this.#visible].filter(
      (id) => live.sandboxes.get(id)?.phase === 'running' && now - (this.#readAt.get(id) ?? 0) >= EVERY_MS - 500,
    );
    if (!document.hidden && live.connection !== 'offline') {
      const next = new Map(this.byId);
      for (let at = 0; at < due.length; at += 6) {
        await Promise.all(
          due.slice(at, at + 6).map(async (id) => {
            this.#readAt.set(id, now);
            const since = new Date(now - 10 * 60_000).toISOString();
            const read = await get<{ items: Sample[] }>(sandboxPath(id, 'metrics', 'history'), { since }).catch(() => undefined);
            if (read) next.set(id, read.items.slice(-POINTS));
          }),
        );
      }
      if (due.length) this.byId = next;
    }
    this.#timer = this.#visible.size ? setTimeout(() => void this.#read(), EVERY_MS) : undefined;
  }
}

export const samples = new Samples();
