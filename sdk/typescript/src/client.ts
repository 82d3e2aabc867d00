/** The client: one object per server and key. */
import { Builds } from './builds.js';
import { type Camel, camelFields } from './case.js';
import { Keys, Providers, Secrets, Snapshots, Threads } from './resources.js';
import { Sandboxes } from './sandbox.js';
import { type AtollOptions, connect } from './settings.js';
import { Templates } from './templates.js';
import { type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { SandboxEvent, Schemas, VersionInfo } from './types.js';
import { Volumes } from './volumes.js';

export interface EventOptions extends RequestOptions {
  /** Events of one sandbox only. */
  sandbox?: string;
  /** Events after this number. */
  after?: number;
  /** Go on with new events until the loop is left. Default: true. */
  follow?: boolean;
}

export class Atoll {
  readonly sandboxes: Sandboxes;
  readonly templates: Templates;
  readonly volumes: Volumes;
  readonly snapshots: Snapshots;
  readonly secrets: Secrets;
  readonly providers: Providers;
  readonly threads: Threads;
  readonly builds: Builds;
  readonly keys: Keys;
  private readonly transport: Transport;

  constructor(options: AtollOptions = {}) {
    const transport = connect(options);
    this.transport = transport;
    this.sandboxes = new Sandboxes(transport, options.webSocket);
    this.templates = new Templates(transport);
    this.volumes = new Volumes(transport);
    this.snapshots = new Snapshots(transport);
    this.secrets = new Secrets(transport);
    this.providers = new Providers(transport);
    this.threads = new Threads(transport);
    this.builds = new Builds(transport);
    this.keys = new Keys(transport);
  }

  /** The address of the server. */
  get url(): string {
    return this.transport.settings.url;
  }

  /** What happened to sandboxes, oldest first. */
  async *events(options: EventOptions = {}): AsyncGenerator<SandboxEvent> {
    const [request, { follow = true, ...query }] = splitOptions(options);
    const call = { method: 'GET', path: '/v1/events', options: request };
    if (follow) {
      for await (const { data } of this.transport.events({ ...call, query: { ...query, follow } })) {
        yield camelFields(data as Schemas['Event']);
      }
      return;
    }
    // Without a number the server returns the newest events only.
    let after: number | undefined = query.after ?? 0;
    for (;;) {
      const page: Camel<Schemas['EventList']> = await this.transport.json<Schemas['EventList']>({ ...call, query: { ...query, after, limit: 1_000 } });
      yield* page.items;
      after = page.items.at(-1)?.seq;
      if (after === undefined) return;
    }
  }

  async version(options?: RequestOptions): Promise<VersionInfo> {
    return this.transport.json<Schemas['Version']>({ method: 'GET', path: '/v1/version', options });
  }
}
