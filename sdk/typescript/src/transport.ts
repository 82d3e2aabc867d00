/**
 * Every request to the server: addresses, the key, time limits, retries, errors.
 *
 * A request is sent again only if that cannot do the work twice: it is a GET, PUT or DELETE, or has an idempotency key.
 */
import type { RequestBody } from './bytes.js';
import { type Camel, camelFields } from './case.js';
import { AtollError, answerError, ConnectionFailedError, RequestTimeoutError, streamError } from './errors.js';
import { readEvents, type ServerEvent } from './event_stream.js';

type QueryValue = string | number | boolean | readonly string[] | null | undefined;
export type Query = Readonly<Record<string, QueryValue>>;

/** Options that every call takes. */
export interface RequestOptions {
  /** Ends the request when it is aborted. */
  signal?: AbortSignal | undefined;
  /** Time limit of this request in seconds, instead of the client's; 0 is none. */
  requestTimeoutS?: number | undefined;
}

export interface Call {
  method: string;
  path: string;
  query?: Query | undefined;
  json?: unknown;
  body?: RequestBody | undefined;
  headers?: Record<string, string> | undefined;
  options?: RequestOptions | undefined;
  /** Default time limit of this call in seconds, where the client's does not fit; 0 is none. */
  limitS?: number | undefined;
  /** Whether a POST may be sent again. */
  repeatable?: boolean | undefined;
}

export interface TransportSettings {
  url: string;
  apiKey: string;
  timeoutS: number;
  maxRetries: number;
  fetch: typeof globalThis.fetch;
}

/** LIMIT: a server that asks for a longer pause gets no new attempt. */
const LONGEST_PAUSE_S = 10;
const FIRST_PAUSE_S = 0.1;
/** Failures of another kind would fail again. */
const REPEATED_STATUS = new Set([502, 503, 504]);

/** A path with every part encoded: `at('/v1/sandboxes', id, 'files')`. */
export function at(base: string, ...parts: (string | number)[]): string {
  return [base, ...parts.map((part) => encodeURIComponent(part))].join('/');
}

/** The parts of `values` that are options of the request, and the rest. */
export function splitOptions<T extends RequestOptions>(values: T): [RequestOptions, Omit<T, keyof RequestOptions>] {
  const { signal, requestTimeoutS, ...rest } = values;
  return [{ signal, requestTimeoutS }, rest];
}

export class Transport {
  constructor(readonly settings: TransportSettings) {}

  /** Sends a request and returns the JSON of its answer with camelCase names. */
  async json<T>(call: Call): Promise<Camel<T>> {
    return this.send(call, async (response) => camelFields((await response.json()) as T));
  }

  /** Sends a request whose answer has no content, or none of interest. */
  async done(call: Call): Promise<void> {
    await this.send(call, (response) => response.arrayBuffer());
  }

  async bytes(call: Call): Promise<Uint8Array> {
    return this.send(call, async (response) => new Uint8Array(await response.arrayBuffer()));
  }

  /** The answer with its body unread. The time limit ends with the first byte. */
  async raw(call: Call): Promise<Response> {
    return this.send(call, async (response) => response);
  }

  /** Follows server-sent events. An event `error` is thrown. */
  async *events(call: Call): AsyncGenerator<ServerEvent> {
    const headers = { ...call.headers, accept: 'text/event-stream' };
    const response = await this.raw({ ...call, headers });
    if (!response.body) return;
    try {
      for await (const event of readEvents(response.body)) {
        if (event.name === 'error') throw streamError(event.data as Parameters<typeof streamError>[0]);
        yield event;
      }
    } catch (error) {
      if (error instanceof AtollError || call.options?.signal?.aborted) throw error;
      throw new ConnectionFailedError(`${call.method} ${call.path}`, error);
    }
  }

  /** Every item of a list that comes in pages. */
  async *pages<T>(path: string, query: Query, options?: RequestOptions): AsyncGenerator<Camel<T>> {
    let cursor: string | undefined;
    do {
      const call = { method: 'GET', path, query: { ...query, cursor }, options };
      const page = await this.send(call, async (response) => (await response.json()) as { items: T[]; next_cursor?: string | null });
      for (const item of page.items) yield camelFields(item);
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
  }

  /** The address of a WebSocket. */
  socketUrl(path: string): string {
    return `${this.settings.url.replace(/^http/, 'ws')}${path}`;
  }

  private async send<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.attempt(call, read);
      } catch (error) {
        const pause = this.pauseBefore(attempt, call, error);
        if (pause === undefined) throw error;
        await sleep(pause, call.options?.signal);
      }
    }
  }

  private async attempt<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    const what = `${call.method} ${call.path}`;
    const limitS = call.options?.requestTimeoutS ?? call.limitS ?? this.settings.timeoutS;
    const caller = call.options?.signal;
    caller?.throwIfAborted();
    const ended = new AbortController();
    let late = false;
    const timer = limitS > 0 ? setTimeout(() => ((late = true), ended.abort()), limitS * 1_000) : undefined;
    // A body that is read later still listens to the caller.
    const signal = caller ? AbortSignal.any([caller, ended.signal]) : ended.signal;
    try {
      const response = await this.settings.fetch(this.url(call), this.init(call, signal));
      if (!response.ok) throw await answerError(response);
      return await read(response);
    } catch (error) {
      if (late) throw new RequestTimeoutError(what, limitS);
      if (error instanceof AtollError || caller?.aborted) throw error;
      throw new ConnectionFailedError(what, error);
    } finally {
      clearTimeout(timer);
    }
  }

  private url(call: Call): string {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value === null || value === undefined) continue;
      for (const item of Array.isArray(value) ? value : [value]) params.append(name, text(item));
    }
    const query = params.size > 0 ? `?${params}` : '';
    return this.settings.url + call.path + query;
  }

  private init(call: Call, signal: AbortSignal): RequestInit {
    const headers: Record<string, string> = { authorization: `Bearer ${this.settings.apiKey}`, ...call.headers };
    if (call.json !== undefined) headers['content-type'] = 'application/json';
    const init: RequestInit & { duplex?: string } = { method: call.method, headers, signal };
    const body = call.json === undefined ? call.body : JSON.stringify(call.json);
    if (body !== undefined) init.body = body;
    if (body instanceof ReadableStream) init.duplex = 'half';
    return init;
  }

  /** Seconds to wait before the next attempt; nothing if there is none. */
  private pauseBefore(attempt: number, call: Call, error: unknown): number | undefined {
    const repeatable = call.repeatable ?? call.method !== 'POST';
    // A stream that was sent cannot be read again.
    if (!repeatable || attempt >= this.settings.maxRetries || call.body instanceof ReadableStream) return undefined;
    const temporary =
      error instanceof ConnectionFailedError || (error instanceof AtollError && REPEATED_STATUS.has(error.status));
    if (!temporary) return undefined;
    const backoff = FIRST_PAUSE_S * 2 ** attempt * (0.5 + Math.random());
    const pause = Math.max(error.retryAfterS ?? 0, backoff);
    return pause <= LONGEST_PAUSE_S ? pause : undefined;
  }
}

function text(value: Exclude<QueryValue, null | undefined> | string): string {
  return value === true ? '1' : value === false ? '0' : String(value);
}

/** Waits; ends early with the reason of `signal` when it is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1_000);
    signal?.addEventListener('abort', () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}
