/** Templates: what sandboxes are made from. */
import { bodyOf, type FileData } from './bytes.js';
import { type Camel, camelFields, snakeFields } from './case.js';
import { cutStream } from './errors.js';
import { at, type Call, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Schemas, TemplateInfo } from './types.js';

type Auth = Camel<Schemas['RegistryAuth']>;

/** Progress of a pull, a push or the making of a template. */
export type Progress =
  | { type: 'step'; message: string }
  | { type: 'layer'; digest: string; done: number; total: number; state: string };

export interface WorkOptions extends RequestOptions {
  onProgress?: (progress: Progress) => void;
}

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

  /** Pulls an image from its registry and returns the template. Aborting `signal` cancels the pull. */
  async pull(image: string, options: WorkOptions & { auth?: Auth; platform?: string } = {}): Promise<TemplateInfo> {
    const { onProgress, ...given } = options;
    const [request, rest] = splitOptions(given);
    const json = { image, ...snakeFields(rest) };
    return this.work({ method: 'POST', path: '/v1/templates/pull', json, options: request }, onProgress);
  }

  /** Makes a template of the catalogue from packages; needs an admin key. */
  async make(name: string, options: WorkOptions = {}): Promise<TemplateInfo> {
    return this.work({ method: 'POST', path: at('/v1/templates', name, 'make'), options }, options.onProgress);
  }

  /** Sends a template to a registry. */
  async push(name: string, image: string, options: WorkOptions & { auth?: Auth } = {}): Promise<void> {
    const { onProgress, ...given } = options;
    const [request, rest] = splitOptions(given);
    const json = { image, ...snakeFields(rest) };
    await this.work({ method: 'POST', path: at('/v1/templates', name, 'push'), json, options: request }, onProgress);
  }

  /** Removes files that nothing uses any more; needs an admin key. */
  async collect(options?: RequestOptions): Promise<Camel<Schemas['Collected']>> {
    return this.transport.json<Schemas['Collected']>({ method: 'POST', path: '/v1/templates/gc', options, limitS: 0 });
  }

  /** Makes a template from an archive: OCI, Docker, or a root file system. */
  async importArchive(name: string, archive: FileData, options: RequestOptions & { format?: string } = {}): Promise<TemplateInfo> {
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

  private async work(call: Call, onProgress?: (progress: Progress) => void): Promise<TemplateInfo> {
    for await (const { name, data } of this.transport.events(call)) {
      const fields = camelFields(data as object);
      if (name === 'done') return fields as TemplateInfo;
      if (name === 'step' || name === 'layer') onProgress?.({ type: name, ...fields } as Progress);
    }
    throw cutStream();
  }
}
