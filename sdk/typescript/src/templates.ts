/** Templates: what sandboxes are made from. */
import { bodyOf, type FileData } from './bytes.js';
import { type Camel, camelFields, snakeFields } from './case.js';
import { UnavailableError } from './errors.js';
import { at, type Call, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Schemas, TemplateInfo } from './types.js';

type Auth = Camel<Schemas['RegistryAuth']>;

/** Progress of a pull, a push or the making of a template. The last event is `done`. */
export type TemplateEvent =
  | { type: 'step'; message: string }
  | { type: 'layer'; digest: string; done: number; total: number; state: string }
  | { type: 'done'; template: TemplateInfo };

export class Templates {
  constructor(private readonly transport: Transport) {}

  async list(options?: RequestOptions): Promise<TemplateInfo[]> {
    return (await this.transport.json<Schemas['TemplateList']>({ method: 'GET', path: '/v1/templates', options })).items;
  }

  async get(name: string, options?: RequestOptions): Promise<TemplateInfo> {
    return this.transport.json<Schemas['Template']>({ method: 'GET', path: at('/v1/templates', name), options });
  }

  async delete(name: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/templates', name), options });
  }

  /** Changes the start settings. */
  async update(name: string, options: RequestOptions & Camel<Schemas['UpdateTemplateBody']>): Promise<TemplateInfo> {
    const [request, rest] = splitOptions(options);
    const call = { method: 'PATCH', path: at('/v1/templates', name), json: snakeFields(rest), options: request };
    return this.transport.json<Schemas['Template']>(call);
  }

  async tag(name: string, tags: string[], options?: RequestOptions): Promise<TemplateInfo> {
    return this.transport.json<Schemas['Template']>({ method: 'POST', path: at('/v1/templates', name, 'tags'), json: { tags }, options });
  }

  async untag(name: string, tags: string[], options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/templates', name, 'tags'), query: { tags: tags.join(',') }, options });
  }

  /** Pulls an image from its registry and returns the template. */
  async pull(image: string, options: RequestOptions & { auth?: Auth; platform?: string } = {}): Promise<TemplateInfo> {
    return finished(this.pullEvents(image, options));
  }

  /** The same with its progress. Leaving the loop cancels the pull. */
  pullEvents(image: string, options: RequestOptions & { auth?: Auth; platform?: string } = {}): AsyncGenerator<TemplateEvent> {
    const [request, rest] = splitOptions(options);
    return this.work({ method: 'POST', path: '/v1/templates/pull', json: { image, ...snakeFields(rest) }, options: request });
  }

  /** Makes a template of the catalogue from packages; needs an admin key. */
  async make(name: string, options?: RequestOptions): Promise<TemplateInfo> {
    return finished(this.makeEvents(name, options));
  }

  makeEvents(name: string, options?: RequestOptions): AsyncGenerator<TemplateEvent> {
    return this.work({ method: 'POST', path: at('/v1/templates', name, 'make'), options });
  }

  /** Sends a template to a registry. */
  async push(name: string, image: string, options: RequestOptions & { auth?: Auth } = {}): Promise<void> {
    const [request, rest] = splitOptions(options);
    const call = { method: 'POST', path: at('/v1/templates', name, 'push'), json: { image, ...snakeFields(rest) }, options: request };
    for await (const event of this.work(call)) if (event.type === 'done') return;
  }

  /** Makes a template from an archive: OCI, Docker, or a root file system. */
  async import(name: string, archive: FileData, options: RequestOptions & { format?: string } = {}): Promise<TemplateInfo> {
    const [request, query] = splitOptions(options);
    const headers = { 'content-type': 'application/x-tar' };
    const call = { method: 'POST', path: '/v1/templates/import', query: { name, ...query }, body: bodyOf(archive), headers };
    return this.transport.json<Schemas['Template']>({ ...call, options: request, limitS: 0 });
  }

  async export(name: string, options: RequestOptions & { format?: 'oci' | 'docker' } = {}): Promise<ReadableStream<Uint8Array>> {
    const [request, query] = splitOptions(options);
    const response = await this.transport.raw({ method: 'GET', path: at('/v1/templates', name, 'export'), query, options: request });
    return response.body!;
  }

  private async *work(call: Call): AsyncGenerator<TemplateEvent> {
    for await (const { name, data } of this.transport.events(call)) {
      const fields = camelFields(data as object);
      if (name === 'done') yield { type: 'done', template: fields as TemplateInfo };
      else if (name === 'step' || name === 'layer') yield { type: name, ...fields } as TemplateEvent;
    }
  }
}

async function finished(events: AsyncGenerator<TemplateEvent>): Promise<TemplateInfo> {
  for await (const event of events) if (event.type === 'done') return event.template;
  throw new UnavailableError({ status: 0, code: 'sandbox_unavailable', message: 'the server ended before the template was ready' });
}
