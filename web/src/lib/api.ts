// Every request to the server goes through this file: authentication, errors, event streams, uploads.
import { pageHint } from './hints';
import type { components } from './schema';
import { session } from './session.svelte';

type Schemas = components['schemas'];
export type Sandbox = Schemas['Sandbox'];
export type SandboxPage = Schemas['SandboxPage'];
export type CreateBody = Partial<Schemas['CreateBody']>;
export type UpdateBody = Partial<Schemas['UpdateBody']>;
export type Phase = Schemas['Phase'];
export type SandboxEvent = Schemas['Event'];
export type Sample = Schemas['Sample'];
export type Entry = Schemas['Entry'];
export type EntryList = Schemas['EntryList'];
export type NetworkPolicy = Schemas['NetworkPolicy'];
export type EgressRecord = Schemas['Egress'];
export type Snapshot = Schemas['Snapshot'];
export type SnapshotPage = Schemas['SnapshotPage'];
export type Lineage = Schemas['Lineage'];
export type Process = Schemas['Process'];
export type Preview = Schemas['Preview'];
export type NewPreview = Schemas['NewPreviewAnswer'];
export type Terminal = Schemas['Terminal'];
export type CodeContext = Schemas['CodeContext'];
export type CodeLanguage = Schemas['CodeLanguage'];
export type CodeOutput = Schemas['CodeOutput'];
export type CodeException = Schemas['CodeException'];
export type Template = Schemas['Template'];
export type Build = Schemas['Build'];
export type BuildLine = Schemas['BuildLine'];
export type Tenant = Schemas['Tenant'];
export type Quota = Schemas['Quota'];
export type UsageAnswer = Schemas['UsageAnswer'];
export type Key = Schemas['Key'];
export type CreatedKey = Schemas['CreatedKey'];
export type CurrentKey = Schemas['CurrentKey'];
export type Login = Schemas['Login'];
export type ApprovedLogin = Schemas['ApprovedLogin'];
export type Secret = Schemas['Secret'];
export type Volume = Schemas['Volume'];
export type VolumeEntry = Schemas['VolumeEntry'];
export type Provider = Schemas['Provider'];
/** The content of a settings file; the section of its kind has the kind's name. */
export type SettingsDocument = { provider: string; enabled?: boolean; on_exit?: string } & Record<string, unknown>;
export type ProviderSettings = Omit<Schemas['ProviderSettings'], 'settings'> & { settings: SettingsDocument };
export type ProviderTest = Schemas['ProviderTest'];
export type Thread = Schemas['Thread'];
export type ServerReport = Schemas['ServerReport'];
export type Health = Schemas['Health'];
export type Version = Schemas['Version'];

type Query = Record<string, string | number | boolean | null | undefined>;

/** An error of the server, or `unreachable` where there was no answer. */
export class ApiFailure extends Error {
  readonly hint: string | undefined;

  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    hint?: string,
    readonly requestId?: string,
    readonly field?: string,
  ) {
    super(message);
    this.hint = pageHint(hint);
  }
}

export function url(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined) params.set(name, value === true ? '1' : String(value));
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

/** A path of the API, with every part encoded: `at('/v1/sandboxes', id, 'files')`. */
export function at(base: string, ...parts: (string | number)[]): string {
  return [base, ...parts.map((part) => encodeURIComponent(part))].join('/');
}

export function sandboxPath(id: string, ...parts: (string | number)[]): string {
  return at('/v1/sandboxes', id, ...parts);
}

interface Options {
  query?: Query;
  body?: unknown;
  raw?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

async function failure(response: Response): Promise<ApiFailure> {
  const text = await response.text().catch(() => '');
  return failureFrom(response.status, text, response.headers.get('x-request-id') ?? undefined);
}

function failureFrom(status: number, text: string, requestId?: string): ApiFailure {
  try {
    const parsed = JSON.parse(text) as { error?: Schemas['Error'] } & Schemas['Error'];
    const error = parsed.error ?? parsed;
    return new ApiFailure(status, error.code, error.message, error.hint, error.request_id ?? requestId, error.field);
  } catch {
    return new ApiFailure(status, 'unknown', `the server answered ${status}`, undefined, requestId);
  }
}

async function send(method: string, path: string, options: Options): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  if (session.key) headers['authorization'] = `Bearer ${session.key}`;
  let body = options.raw;
  if (options.body !== undefined) {
    headers['content-type'] = 'application/json';
    body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(url(path, options.query), {
      method,
      headers,
      body: body ?? null,
      signal: options.signal ?? null,
      credentials: 'omit',
      cache: 'no-store',
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiFailure(0, 'unreachable', 'the server cannot be reached', 'the page tries again by itself');
  }
  if (!response.ok) {
    const refused = await failure(response);
    if (response.status === 401) session.refuse();
    throw refused;
  }
  return response;
}

/** Sends a request and reads the JSON of its answer, if there is one. */
export async function call<T = void>(method: string, path: string, options: Options = {}): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal) =>
  call<T>('GET', path, signal ? { query, signal } : { query });

/** Reads the bytes of an answer. */
export async function bytes(path: string, query: Query, most?: number): Promise<Uint8Array<ArrayBuffer>> {
  const headers: Record<string, string> = most ? { range: `bytes=0-${most - 1}` } : {};
  try {
    const response = await send('GET', path, { query, headers });
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    // An empty file has no first byte.
    if (error instanceof ApiFailure && error.status === 416) return new Uint8Array();
    throw error;
  }
}

/** Reads every page of a list. */
export async function pages<T>(path: string, query: Query = {}): Promise<T[]> {
  const all: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await get<{ items: T[]; next_cursor?: string | null }>(path, { ...query, cursor });
    all.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor);
  return all;
}

export interface StreamEvent {
  name: string;
  id: string | undefined;
  data: unknown;
}

/** Follows server-sent events. Ends when the server ends the stream; throws when it breaks. */
export async function* stream(
  path: string,
  options: Options & { method?: string; onOpen?: () => void } = {},
): AsyncGenerator<StreamEvent> {
  const headers = { ...options.headers, accept: 'text/event-stream' };
  const response = await send(options.method ?? 'GET', path, { ...options, headers });
  options.onOpen?.();
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end: number;
      while ((end = rest.indexOf('\n\n')) >= 0) {
        const event = parseEvent(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (options.signal?.aborted || error instanceof ApiFailure) throw error;
    throw new ApiFailure(0, 'unreachable', 'the connection to the server was lost');
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block: string): StreamEvent | undefined {
  let name = 'message';
  let id: string | undefined;
  let data = '';
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':');
    if (colon === 0) continue;
    const [field, value] = colon < 0 ? [line, ''] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, '')];
    if (field === 'event') name = value;
    else if (field === 'id') id = value;
    else if (field === 'data') data += value;
  }
  return data ? { name, id, data: JSON.parse(data) } : undefined;
}

/** Sends a file and reports how much of it has been sent, from 0 to 1. */
export function upload(
  path: string,
  query: Query,
  file: Blob,
  progress: (part: number) => void,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('PUT', url(path, query));
    request.setRequestHeader('authorization', `Bearer ${session.key}`);
    request.setRequestHeader('content-type', 'application/octet-stream');
    request.upload.onprogress = (event) => progress(event.lengthComputable ? event.loaded / event.total : 0);
    request.onload = () => {
      if (request.status < 300) resolve();
      else reject(failureFrom(request.status, request.responseText, request.getResponseHeader('x-request-id') ?? undefined));
    };
    request.onerror = () => reject(new ApiFailure(0, 'unreachable', 'the server cannot be reached'));
    request.onabort = () => reject(new ApiFailure(0, 'cancelled', 'the upload was cancelled'));
    signal.addEventListener('abort', () => request.abort());
    request.send(file);
  });
}

/** Saves an answer as a file. */
export async function download(path: string, query: Query, name: string): Promise<void> {
  const response = await send('GET', path, { query });
  saveAs(new Blob([await response.arrayBuffer()], { type: 'application/octet-stream' }), name);
}

export function saveAs(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The address of a WebSocket and the sub-protocols that carry the key. */
export function socket(path: string): WebSocket {
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  return new WebSocket(`${scheme}://${location.host}${path}`, ['atoll', `atoll.key.${session.key}`]);
}

export function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
