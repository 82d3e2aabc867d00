/** A sandbox, and the sandboxes of a server. */
import { type Camel, snakeFields } from './case.js';
import { Code } from './code.js';
import { Commands, outputEvent } from './commands.js';
import { NotFoundError } from './errors.js';
import { Files } from './files.js';
import { Git } from './git.js';
import { Egress, Previews } from './network.js';
import { Sessions } from './sessions.js';
import { connect } from './settings.js';
import { Terminals } from './terminals.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Awake, Lineage, Metrics, Phase, SandboxInfo, Schemas, SnapshotInfo } from './types.js';

export interface CreateOptions extends RequestOptions, Omit<Camel<Schemas['CreateBody']>, 'template'> {
  /** Two creates with the same key give one sandbox. Default: a new key for every create. */
  idempotencyKey?: string;
  /** `false`: return before the sandbox runs. */
  wait?: boolean;
}

export interface ListOptions extends RequestOptions {
  phase?: Phase | Phase[];
  /** All of them. */
  labels?: Record<string, string>;
  name?: string;
  template?: string;
  tenant?: string;
  /** Deleted sandboxes too. */
  all?: boolean;
  /** The number of sandboxes that one request reads. */
  pageSize?: number;
}

/** Options of a change of phase. */
export interface ChangeOptions extends RequestOptions {
  /** `false`: return before the change is complete. */
  wait?: boolean;
}

export type ForkOptions = RequestOptions & Omit<Camel<Schemas['ForkBody']>, 'count'>;
export type UpdateOptions = RequestOptions & Camel<Schemas['UpdateBody']>;

export interface LogLine {
  at: string;
  pid: number;
  stream: 'stdout' | 'stderr' | 'terminal';
  data: string;
}

/** LIMIT: a create or a change of phase may pull an image or move memory to disk. */
const CHANGE_LIMIT_S = 300;

export class Sandboxes {
  constructor(
    private readonly transport: Transport,
    private readonly socketClass?: unknown,
  ) {}

  /** Creates a sandbox, from the server's default template unless one is named. Returns when it runs. */
  async create(template?: string | null, options: CreateOptions = {}): Promise<Sandbox> {
    const [request, { idempotencyKey, wait, ...rest }] = splitOptions(options);
    const headers = { 'idempotency-key': idempotencyKey ?? crypto.randomUUID() };
    const json = { ...snakeFields(rest), ...(template ? { template } : {}) };
    const call = { method: 'POST', path: '/v1/sandboxes', query: { wait }, json, headers, options: request };
    const info = await this.transport.json<Schemas['Sandbox']>({ ...call, repeatable: true, limitS: CHANGE_LIMIT_S });
    return this.object(info);
  }

  /** A sandbox by its id, the beginning of its id, or its name. Never wakes it. */
  async get(idOrName: string, options?: RequestOptions): Promise<Sandbox> {
    return this.object(await this.transport.json<Schemas['Sandbox']>({ method: 'GET', path: at('/v1/sandboxes', idOrName), options }));
  }

  /** All sandboxes that the key sees. */
  async *list(options: ListOptions = {}): AsyncGenerator<Sandbox> {
    const [request, { phase, labels, pageSize, ...rest }] = splitOptions(options);
    const label = Object.entries(labels ?? {}).map(([name, value]) => `${name}=${value}`);
    const query = { ...rest, phase: phase && [phase].flat().join(','), label, limit: pageSize };
    for await (const info of this.transport.pages<Schemas['Sandbox']>('/v1/sandboxes', query, request)) {
      yield this.object(info as SandboxInfo);
    }
  }

  private object(info: SandboxInfo): Sandbox {
    return new Sandbox(this.transport, info, this.socketClass);
  }
}

/** A sandbox. With `await using` it is deleted at the end of the block. */
export class Sandbox implements AsyncDisposable {
  readonly commands: Commands;
  readonly files: Files;
  readonly code: Code;
  readonly terminals: Terminals;
  readonly git: Git;
  readonly previews: Previews;
  readonly egress: Egress;
  readonly sessions: Sessions;
  private readonly path: string;

  constructor(
    private readonly transport: Transport,
    /** The sandbox as the last answer of the server described it. */
    public info: SandboxInfo,
    private readonly socketClass?: unknown,
  ) {
    this.path = at('/v1/sandboxes', info.id);
    this.commands = new Commands(transport, this.path);
    this.files = new Files(transport, `${this.path}/files`);
    this.code = new Code(transport, `${this.path}/code`);
    this.terminals = new Terminals(transport, `${this.path}/terminals`, socketClass);
    this.git = new Git(transport, `${this.path}/git`);
    this.previews = new Previews(transport, `${this.path}/previews`);
    this.egress = new Egress(transport, `${this.path}/egress`);
    this.sessions = new Sessions(transport, `${this.path}/sessions`);
  }

  /** Creates a sandbox at the server that the environment names: `ATOLL_URL`, `ATOLL_API_KEY`. */
  static create(template?: string | null, options?: CreateOptions): Promise<Sandbox> {
    return new Sandboxes(connect()).create(template, options);
  }

  get id(): string {
    return this.info.id;
  }

  get name(): string | null {
    return this.info.name ?? null;
  }

  get phase(): Phase {
    return this.info.phase;
  }

  /** Reads `info` again. Never wakes the sandbox. */
  async refresh(options?: RequestOptions): Promise<SandboxInfo> {
    return this.take({ method: 'GET', path: this.path, options });
  }

  /** Pauses it: processes and memory are kept, in memory or on disk. */
  async pause(options: ChangeOptions & { memory?: 'live' | 'disk' } = {}): Promise<SandboxInfo> {
    const { memory, ...rest } = options;
    return this.change('pause', rest, { memory });
  }

  async resume(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('resume', options);
  }

  async start(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('start', options);
  }

  /** Ends its processes; files are kept. */
  async stop(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('stop', options);
  }

  async restart(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('restart', options);
  }

  /** Moves its files to the archive. */
  async archive(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('archive', options);
  }

  /** Brings its files back from the archive. */
  async restore(options?: ChangeOptions): Promise<SandboxInfo> {
    return this.change('restore', options);
  }

  /** Deletes it with its files. */
  async delete(options: ChangeOptions & { snapshots?: boolean } = {}): Promise<SandboxInfo> {
    const [request, query] = splitOptions(options);
    return this.take({ method: 'DELETE', path: this.path, query, limitS: CHANGE_LIMIT_S, options: request });
  }

  /** Lets it live for this many seconds more. */
  async extend(seconds: number, options?: RequestOptions): Promise<SandboxInfo> {
    return this.change('extend', options, { seconds });
  }

  /** Changes limits, timers, labels or the network policy. */
  async update(options: UpdateOptions): Promise<SandboxInfo> {
    const [request, rest] = splitOptions(options);
    return this.take({ method: 'PATCH', path: this.path, json: snakeFields(rest), options: request });
  }

  /** Keeps it running for this many seconds, whatever its timers say. */
  async hold(seconds: number, reason?: string, options?: RequestOptions): Promise<SandboxInfo> {
    return this.change('hold', options, { for_s: seconds, reason });
  }

  /** Ends a hold. */
  async release(options?: RequestOptions): Promise<SandboxInfo> {
    return this.take({ method: 'DELETE', path: `${this.path}/hold`, options });
  }

  /** Makes copies: all of them, or none. */
  async fork(count = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const [request, rest] = splitOptions(options);
    const json = { count, ...snakeFields(rest) };
    const call = { method: 'POST', path: `${this.path}/fork`, json, options: request, limitS: CHANGE_LIMIT_S };
    const { sandboxes } = await this.transport.json<Schemas['Forked']>(call);
    return sandboxes.map((info) => new Sandbox(this.transport, info, this.socketClass));
  }

  /** Puts its files back to those of a snapshot. */
  async rollback(snapshot: SnapshotInfo | string, options?: RequestOptions): Promise<SandboxInfo> {
    return this.change('rollback', options, { snapshot: typeof snapshot === 'string' ? snapshot : snapshot.id });
  }

  /** Moves it to another provider; it keeps its id. `last_move` lists what stayed behind. */
  async move(provider: string, options: RequestOptions & { template?: string } = {}): Promise<SandboxInfo> {
    const [request, rest] = splitOptions(options);
    return this.change('move', request, { provider, ...rest });
  }

  /** Takes a snapshot. Its name belongs to the sandbox (`SANDBOX:NAME`); with `tenant_wide` it is unique within the tenant. */
  async snapshot(
    name?: string | null,
    options: RequestOptions & { memory?: boolean; tenant_wide?: boolean } = {},
  ): Promise<SnapshotInfo> {
    const [request, rest] = splitOptions(options);
    const json = { name: name ?? undefined, ...rest };
    const call = { method: 'POST', path: `${this.path}/snapshots`, json, options: request, limitS: CHANGE_LIMIT_S };
    return this.transport.json<Schemas['Snapshot']>(call);
  }

  async lineage(options?: RequestOptions): Promise<Lineage> {
    return this.transport.json<Schemas['Lineage']>({ method: 'GET', path: `${this.path}/lineage`, options });
  }

  async metrics(options?: RequestOptions): Promise<Metrics> {
    return this.transport.json<Schemas['Sample']>({ method: 'GET', path: `${this.path}/metrics`, options });
  }

  /** Past samples, oldest first. */
  async metricsHistory(options: RequestOptions & { since?: string; limit?: number } = {}): Promise<Metrics[]> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: `${this.path}/metrics/history`, query, options: request };
    return (await this.transport.json<Schemas['SampleList']>(call)).items;
  }

  /** Why it is awake, and what its next timer does. */
  async awake(options?: RequestOptions): Promise<Awake> {
    return this.transport.json<Schemas['Awake']>({ method: 'GET', path: `${this.path}/awake`, options });
  }

  /** The output of commands that were started through the API; with `follow`, as it comes. */
  async *logs(options: RequestOptions & { follow?: boolean } = {}): AsyncGenerator<LogLine> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: `${this.path}/logs`, query, options: request };
    for await (const { name, data } of this.transport.events(call)) {
      if (name === 'dropped') continue;
      const line = data as { at: string; pid: number; stream: LogLine['stream']; data?: string; data_base64?: string };
      yield { at: line.at, pid: line.pid, stream: line.stream, data: outputEvent(line.stream, line).data };
    }
  }

  /** Deletes it, if it is still there. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.delete();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  private change(verb: string, options: ChangeOptions = {}, json?: object): Promise<SandboxInfo> {
    const [request, query] = splitOptions(options);
    return this.take({ method: 'POST', path: `${this.path}/${verb}`, query, json, limitS: CHANGE_LIMIT_S, options: request });
  }

  private async take(call: Parameters<Transport['json']>[0]): Promise<SandboxInfo> {
    this.info = await this.transport.json<Schemas['Sandbox']>(call);
    return this.info;
  }
}
