/** Builds: templates from a Dockerfile and its context. */
import { type Camel, camelFields, snakeFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { BuildInfo, BuildLine, Schemas } from './types.js';

export interface BuildOptions extends RequestOptions, Omit<Camel<Schemas['BuildBody']>, 'template'> {
  /** The files that the Dockerfile copies, as a tar archive. */
  context?: Blob | Uint8Array;
}

export class Builds {
  constructor(private readonly transport: Transport) {}

  /** Starts a build; `wait` follows it to its end. */
  async start(template: string, options: BuildOptions = {}): Promise<BuildInfo> {
    const [request, { context, ...rest }] = splitOptions(options);
    const spec = { template, ...snakeFields(rest) };
    const call = { method: 'POST', path: '/v1/builds', options: request, limitS: 0 };
    if (context === undefined) return this.transport.json<Schemas['Build']>({ ...call, json: spec });
    const form = new FormData();
    form.append('spec', new Blob([JSON.stringify(spec)], { type: 'application/json' }));
    form.append('context', context instanceof Blob ? context : new Blob([context as BlobPart], { type: 'application/x-tar' }));
    return this.transport.json<Schemas['Build']>({ ...call, body: form });
  }

  async *list(options: RequestOptions & { template?: string; status?: Schemas['BuildStatus']; pageSize?: number } = {}): AsyncGenerator<BuildInfo> {
    const [request, { pageSize, ...query }] = splitOptions(options);
    yield* this.transport.pages<Schemas['Build']>('/v1/builds', { ...query, limit: pageSize }, request);
  }

  async get(id: string, options?: RequestOptions): Promise<BuildInfo> {
    return this.transport.json<Schemas['Build']>({ method: 'GET', path: at('/v1/builds', id), options });
  }

  async cancel(id: string, options?: RequestOptions): Promise<BuildInfo> {
    return this.transport.json<Schemas['Build']>({ method: 'DELETE', path: at('/v1/builds', id), options });
  }

  /** The log as it grows, until the build has ended. */
  async *logs(id: string, options?: RequestOptions): AsyncGenerator<BuildLine> {
    const call = { method: 'GET', path: at('/v1/builds', id, 'logs'), query: { follow: true }, options };
    for await (const { data } of this.transport.events(call)) {
      if (typeof data === 'object' && data !== null && 'text' in data) yield camelFields(data as Schemas['BuildLine']);
    }
  }

  /** Waits for the end of a build. */
  async wait(id: string, options?: RequestOptions): Promise<BuildInfo> {
    for await (const _line of this.logs(id, options));
    return this.get(id, options);
  }
}
