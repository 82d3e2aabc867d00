/** Ports of a sandbox that are reachable from outside, and its connections to the outside. */
import { camelFields, snakeFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { EgressRecord, NetworkPolicy, Preview, PreviewInfo, Schemas } from './types.js';

export interface PreviewOptions extends RequestOptions {
  /** Open to everyone who knows the address; otherwise the address contains a token. */
  public?: boolean;
  expiresS?: number;
}

export class Previews {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  /** An address for a port of the sandbox. */
  async create(port: number, options: PreviewOptions = {}): Promise<Preview> {
    const [request, rest] = splitOptions(options);
    const json = { port, ...snakeFields(rest) };
    return this.transport.json<Schemas['NewPreviewAnswer']>({ method: 'POST', path: this.path, json, options: request });
  }

  async list(options?: RequestOptions): Promise<PreviewInfo[]> {
    return (await this.transport.json<Schemas['PreviewList']>({ method: 'GET', path: this.path, options })).items;
  }

  async delete(preview: PreviewInfo | string, options?: RequestOptions): Promise<void> {
    const id = typeof preview === 'string' ? preview : preview.id;
    await this.transport.done({ method: 'DELETE', path: at(this.path, id), options });
  }
}

export interface EgressOptions extends RequestOptions {
  limit?: number;
  since?: string;
  verdict?: 'allowed' | 'refused' | 'failed';
}

export class Egress {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  /** The last connection attempts and decisions. */
  async log(options: EgressOptions = {}): Promise<EgressRecord[]> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: this.path, query: query as Record<string, string | number>, options: request };
    return (await this.transport.json<Schemas['EgressList']>(call)).items;
  }

  /** Decisions as they are made, until the loop is left. */
  async *follow(options: EgressOptions = {}): AsyncGenerator<EgressRecord> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: this.path, query: { ...query, follow: true }, options: request };
    for await (const { data } of this.transport.events(call)) yield camelFields(data as Schemas['Egress']);
  }

  /** The smallest policy that allows everything that was recorded. */
  async learnedPolicy(options?: RequestOptions): Promise<NetworkPolicy> {
    return this.transport.json<Schemas['NetworkPolicy']>({ method: 'GET', path: `${this.path}/policy`, options });
  }
}
