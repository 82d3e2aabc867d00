/** Volumes: folders that outlive sandboxes. */
import { bodyOf, type FileData } from './bytes.js';
import { type Camel, snakeFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Schemas, VolumeEntry, VolumeInfo } from './types.js';

export class Volumes {
  constructor(private readonly transport: Transport) {}

  async create(name: string, options: RequestOptions & Omit<Camel<Schemas['VolumeBody']>, 'name'> = {}): Promise<VolumeInfo> {
    const [request, rest] = splitOptions(options);
    const call = { method: 'POST', path: '/v1/volumes', json: { name, ...snakeFields(rest) }, options: request };
    return this.transport.json<Schemas['Volume']>(call);
  }

  async list(options?: RequestOptions): Promise<VolumeInfo[]> {
    return (await this.transport.json<Schemas['VolumeList']>({ method: 'GET', path: '/v1/volumes', options })).items;
  }

  async get(idOrName: string, options?: RequestOptions): Promise<VolumeInfo> {
    return this.transport.json<Schemas['Volume']>({ method: 'GET', path: at('/v1/volumes', idOrName), options });
  }

  async update(idOrName: string, options: RequestOptions & Camel<Schemas['UpdateVolumeBody']>): Promise<VolumeInfo> {
    const [request, rest] = splitOptions(options);
    const call = { method: 'PATCH', path: at('/v1/volumes', idOrName), json: snakeFields(rest), options: request };
    return this.transport.json<Schemas['Volume']>(call);
  }

  async copy(idOrName: string, name: string, options?: RequestOptions): Promise<VolumeInfo> {
    return this.transport.json<Schemas['Volume']>({ method: 'POST', path: at('/v1/volumes', idOrName, 'copy'), json: { name }, options });
  }

  async delete(idOrName: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/volumes', idOrName), options });
  }

  async read(idOrName: string, path: string, options?: RequestOptions): Promise<Uint8Array> {
    return this.transport.bytes({ method: 'GET', path: at('/v1/volumes', idOrName, 'files'), query: { path }, options, limitS: 0 });
  }

  async write(
    idOrName: string,
    path: string,
    data: FileData,
    options: RequestOptions & { uid?: number; gid?: number; mode?: string } = {},
  ): Promise<VolumeEntry> {
    const [request, query] = splitOptions(options);
    const headers = { 'content-type': 'application/octet-stream' };
    const call = { method: 'PUT', path: at('/v1/volumes', idOrName, 'files'), query: { path, ...query }, body: bodyOf(data), headers };
    return this.transport.json<Schemas['VolumeEntry']>({ ...call, options: request, limitS: 0 });
  }

  async remove(idOrName: string, path: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at('/v1/volumes', idOrName, 'files'), query: { path }, options });
  }

  async entries(idOrName: string, path = '/', options: RequestOptions & { depth?: number } = {}): Promise<VolumeEntry[]> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: at('/v1/volumes', idOrName, 'entries'), query: { path, ...query }, options: request };
    return (await this.transport.json<Schemas['VolumeEntryList']>(call)).items;
  }

  async mkdir(idOrName: string, path: string, options?: RequestOptions): Promise<VolumeEntry> {
    return this.transport.json<Schemas['VolumeEntry']>({ method: 'POST', path: at('/v1/volumes', idOrName, 'folders'), json: { path }, options });
  }

  async move(idOrName: string, source: string, destination: string, options?: RequestOptions): Promise<VolumeEntry> {
    const json = { from: source, to: destination };
    return this.transport.json<Schemas['VolumeEntry']>({ method: 'POST', path: at('/v1/volumes', idOrName, 'move'), json, options });
  }
}
