/** Small resources of the server: snapshots, secrets, providers, threads, keys. */
import { camelFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type {
  CreatedKey,
  KeyInfo,
  ProviderInfo,
  ProviderSettings,
  ProviderTest,
  SandboxInfo,
  Schemas,
  SecretInfo,
  SnapshotInfo,
  ThreadInfo,
} from './types.js';

export class Snapshots {
  constructor(private readonly transport: Transport) {}

  async *list(options: RequestOptions & { sandbox?: string; name?: string; pageSize?: number } = {}): AsyncGenerator<SnapshotInfo> {
    const [request, { pageSize, ...query }] = splitOptions(options);
    yield* this.transport.pages<Schemas['Snapshot']>('/v1/snapshots', { ...query, limit: pageSize }, request);
  }

  async get(idOrName: string, options?: RequestOptions): Promise<SnapshotInfo> {
    return this.transport.json<Schemas['Snapshot']>({ method: 'GET', path: at('/v1/snapshots', idOrName), options });
  }

  async delete(idOrName: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/snapshots', idOrName), options });
  }

  /** Reads all its bytes and compares them with what was written. */
  async verify(idOrName: string, options?: RequestOptions): Promise<SnapshotInfo> {
    const call = { method: 'POST', path: at('/v1/snapshots', idOrName, 'verify'), options, limitS: 0, repeatable: true };
    return this.transport.json<Schemas['Snapshot']>(call);
  }
}

/** Secrets are put into requests outside of sandboxes; their values cannot be read. */
export class Secrets {
  constructor(private readonly transport: Transport) {}

  async create(name: string, value: string, options?: RequestOptions): Promise<SecretInfo> {
    return this.transport.json<Schemas['Secret']>({ method: 'POST', path: '/v1/secrets', json: { name, value }, options });
  }

  async list(options?: RequestOptions): Promise<SecretInfo[]> {
    return (await this.transport.json<Schemas['SecretList']>({ method: 'GET', path: '/v1/secrets', options })).items;
  }

  /** Replaces the value, also for running sandboxes. */
  async rotate(name: string, value: string, options?: RequestOptions): Promise<SecretInfo> {
    return this.transport.json<Schemas['Secret']>({ method: 'PUT', path: at('/v1/secrets', name), json: { value }, options });
  }

  async delete(name: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/secrets', name), options });
  }
}

export class Providers {
  constructor(private readonly transport: Transport) {}

  async list(options?: RequestOptions): Promise<ProviderInfo[]> {
    return (await this.transport.json<Schemas['ProviderList']>({ method: 'GET', path: '/v1/providers', options })).items;
  }

  async settings(name: string, options?: RequestOptions): Promise<ProviderSettings> {
    return this.transport.json<Schemas['ProviderSettings']>({ method: 'GET', path: this.path(name), options });
  }

  /** `settings` has the names of the settings file, which are not changed. */
  async setSettings(name: string, settings: Record<string, unknown>, options?: RequestOptions): Promise<ProviderSettings> {
    return this.transport.json<Schemas['ProviderSettings']>({ method: 'PUT', path: this.path(name), json: settings, options });
  }

  async removeSettings(name: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: this.path(name), options });
  }

  /** Whether the provider answers. */
  async test(name: string, options?: RequestOptions): Promise<ProviderTest> {
    return this.transport.json<Schemas['ProviderTest']>({ method: 'POST', path: at('/v1/providers', name, 'test'), options });
  }

  private path(name: string): string {
    return at('/v1/providers', name, 'settings');
  }
}

/** Conversations that have a sandbox of their own. */
export class Threads {
  constructor(private readonly transport: Transport) {}

  async *list(options: RequestOptions & { pageSize?: number } = {}): AsyncGenerator<ThreadInfo> {
    const [request, { pageSize }] = splitOptions(options);
    yield* this.transport.pages<Schemas['Thread']>('/v1/threads', { limit: pageSize }, request);
  }

  async get(thread: string, options?: RequestOptions): Promise<ThreadInfo> {
    return this.transport.json<Schemas['Thread']>({ method: 'GET', path: at('/v1/threads', thread), options });
  }

  /** Does with its sandboxes what their `onExit` says. */
  async end(thread: string, options?: RequestOptions): Promise<SandboxInfo[]> {
    const call = { method: 'DELETE', path: at('/v1/threads', thread), options };
    return (await this.transport.json<Schemas['Ended']>(call)).items.map((info) => camelFields(info) as SandboxInfo);
  }
}

export class Keys {
  constructor(private readonly transport: Transport) {}

  /** The secret is in this answer only. */
  async create(options: RequestOptions & { name?: string; scope?: 'admin' | 'user' | 'member'; tenant?: string } = {}): Promise<CreatedKey> {
    const [request, json] = splitOptions(options);
    return this.transport.json<Schemas['CreatedKey']>({ method: 'POST', path: '/v1/keys', json, options: request });
  }

  async list(options?: RequestOptions): Promise<KeyInfo[]> {
    return (await this.transport.json<Schemas['KeyList']>({ method: 'GET', path: '/v1/keys', options })).items;
  }

  async delete(id: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/keys', id), options });
  }
}
