// The sandboxes that this key can see, kept current by the event stream. The stream is opened first and the list read
// afterwards, so that no change between the two is missed; a stream that breaks is opened again with the last event's number.
import { ApiFailure, get, pages, sandboxPath, stream, type Sandbox, type SandboxEvent } from './api';
import { capabilities } from './capabilities.svelte';
import { session } from './session.svelte';

export type Connection = 'connecting' | 'live' | 'offline';

/** More changed sandboxes at once than this: the whole list is read again. */
const SINGLE_READS = 24;

class Live {
  /** By id. Replaced, never changed in place. */
  sandboxes = $state.raw<ReadonlyMap<string, Sandbox>>(new Map());
  connection = $state<Connection>('connecting');
  loaded = $state(false);
  error = $state<ApiFailure | null>(null);
  #listeners = new Set<(event: SandboxEvent) => void>();
  #reconnected = new Set<() => void>();
  #changed = new Set<string>();
  /** Ids of deleted sandboxes, which are never used again: an answer that was sent before the delete can arrive after its event. */
  #deleted = new Set<string>();
  #flushing = false;
  #stop: AbortController | undefined;

  start(): void {
    this.stop();
    const stop = new AbortController();
    this.#stop = stop;
    this.sandboxes = new Map();
    this.#deleted = new Set();
    this.loaded = false;
    this.connection = 'connecting';
    void this.#follow(stop.signal);
    this.#readProviders();
    // A proxy in between may hold the head of the stream back until its first event.
    setTimeout(() => {
      if (!this.loaded && !stop.signal.aborted) void this.reload().catch((error: unknown) => this.#fail(error));
    }, 300);
  }

  /** Without an answer every action is offered, and the server refuses those that are not possible. */
  #readProviders(): void {
    capabilities.read().catch(() => {});
  }

  stop(): void {
    this.#stop?.abort();
  }

  /** Calls `listener` for every event. Returns a function that ends it. */
  onEvent(listener: (event: SandboxEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Calls `listener` whenever the stream is live again after it was lost. */
  onReconnect(listener: () => void): () => void {
    this.#reconnected.add(listener);
    return () => this.#reconnected.delete(listener);
  }

  /** Takes an answer of the server for a sandbox. */
  put(sandbox: Sandbox): void {
    if (sandbox.phase === 'deleted') return this.#remove(sandbox.id);
    const known = this.sandboxes.get(sandbox.id);
    if (this.#deleted.has(sandbox.id) || (known && known.generation > sandbox.generation)) return;
    this.sandboxes = new Map(this.sandboxes).set(sandbox.id, sandbox);
  }

  #remove(id: string): void {
    this.#deleted.add(id);
    this.#changed.delete(id);
    const next = new Map(this.sandboxes);
    next.delete(id);
    this.sandboxes = next;
  }

  async reload(): Promise<void> {
    const items = await pages<Sandbox>('/v1/sandboxes', { limit: 1_000 });
    const there = items.filter((sandbox) => !this.#deleted.has(sandbox.id));
    this.sandboxes = new Map(there.map((sandbox) => [sandbox.id, sandbox]));
    this.loaded = true;
    this.error = null;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    let last: string | undefined;
    let wait = 250;
    let wasLive = false;
    while (!signal.aborted && session.key) {
      try {
        const headers: Record<string, string> = last ? { 'last-event-id': last } : {};
        const onOpen = () => {
          this.connection = 'live';
          wait = 250;
          void this.reload().catch((error: unknown) => this.#fail(error));
          if (wasLive) this.#reconnected.forEach((listener) => listener());
          if (wasLive) this.#readProviders();
          wasLive = true;
        };
        for await (const event of stream('/v1/events', { query: { follow: 1 }, headers, signal, onOpen })) {
          last = event.id ?? last;
          this.#take(event.data as SandboxEvent);
        }
      } catch (error) {
        if (signal.aborted) return;
        this.#fail(error);
      }
      if (signal.aborted) return;
      this.connection = 'offline';
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 4_000);
    }
  }

  #fail(error: unknown): void {
    if (error instanceof ApiFailure && error.code !== 'unreachable') this.error = error;
  }

  #take(event: SandboxEvent): void {
    if (event.kind === 'phase') {
      const known = this.sandboxes.get(event.sandbox);
      if (event.to === 'deleted') this.#remove(event.sandbox);
      else {
        if (known) this.put({ ...known, phase: event.to, phase_at: event.at, reason: event.reason });
        this.#changed.add(event.sandbox);
      }
    } else if (event.kind !== 'checkpointed') {
      this.#changed.add(event.sandbox);
    }
    this.#listeners.forEach((listener) => listener(event));
    if (this.#changed.size && !this.#flushing) {
      this.#flushing = true;
      setTimeout(() => void this.#flush(), 60);
    }
  }

  async #flush(): Promise<void> {
    const ids = [...this.#changed];
    this.#changed.clear();
    try {
      if (ids.length > SINGLE_READS) await this.reload();
      else await Promise.all(ids.map((id) => this.refresh(id)));
    } catch (error) {
      this.#fail(error);
    }
    this.#flushing = false;
    if (this.#changed.size) {
      this.#flushing = true;
      setTimeout(() => void this.#flush(), 250);
    }
  }

  /** Reads one sandbox again. */
  async refresh(id: string): Promise<Sandbox | undefined> {
    try {
      const sandbox = await get<Sandbox>(sandboxPath(id));
      this.put(sandbox);
      return sandbox;
    } catch (error) {
      if (!(error instanceof ApiFailure) || error.status !== 404) throw error;
      this.#remove(id);
      return undefined;
    }
  }
}

export const live = new Live();
