/** Files of a sandbox. Relative paths begin at its working directory. */
import { bodyOf, type FileData, textOf } from './bytes.js';
import { snakeFields } from './case.js';
import { NotFoundError } from './errors.js';
import { type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { EditResult, FileEntry, GrepResult, Schemas, SearchResult, TextEdit } from './types.js';

export interface WriteOptions extends RequestOptions {
  /** Octal, such as `0755`. */
  mode?: string;
  /** The owner of the file. */
  user?: string;
}

export interface GrepOptions extends RequestOptions {
  ignoreCase?: boolean;
  /** The pattern is a text, not a regular expression. */
  literal?: boolean;
  /** Globs of files to search in. */
  include?: string[];
  exclude?: string[];
}

export interface FileChange {
  type: 'create' | 'write' | 'remove' | 'rename' | 'chmod' | 'overflow';
  /** The path below the watched folder. */
  name: string;
}

const BINARY = { 'content-type': 'application/octet-stream' };

export class Files {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  /** The content, or a part of it. */
  async read(path: string, options: RequestOptions & { offset?: number; length?: number } = {}): Promise<Uint8Array> {
    const [request, { offset = 0, length }] = splitOptions(options);
    if (length === 0) return new Uint8Array();
    const whole = offset === 0 && length === undefined;
    const headers: Record<string, string> = whole ? {} : { range: `bytes=${offset}-${length === undefined ? '' : offset + length - 1}` };
    return this.transport.bytes({ method: 'GET', path: this.path, query: { path }, headers, limitS: 0, options: request });
  }

  async readText(path: string, options?: RequestOptions): Promise<string> {
    return textOf(await this.read(path, options));
  }

  /** The content as a stream, for large files. */
  async readStream(path: string, options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    const response = await this.transport.raw({ method: 'GET', path: this.path, query: { path }, options });
    return response.body!;
  }

  /** Writes a file; folders that are missing are created. */
  async write(path: string, data: FileData, options: WriteOptions = {}): Promise<FileEntry> {
    const [request, query] = splitOptions(options);
    const call = { method: 'PUT', path: this.path, query: { path, ...query }, body: bodyOf(data), headers: BINARY };
    return this.transport.json<Schemas['Entry']>({ ...call, limitS: 0, options: request });
  }

  /** The entries of a folder; with `depth`, of the folders below it too. */
  async list(path = '.', options: RequestOptions & { depth?: number } = {}): Promise<FileEntry[]> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: `${this.path}/list`, query: { path, ...query }, options: request };
    return (await this.transport.json<Schemas['EntryList']>(call)).items;
  }

  async stat(path: string, options?: RequestOptions): Promise<FileEntry> {
    return this.transport.json<Schemas['Entry']>({ method: 'GET', path: `${this.path}/stat`, query: { path }, options });
  }

  async exists(path: string, options?: RequestOptions): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === 'file_not_found') return false;
      throw error;
    }
  }

  /** Creates a folder and those above it. */
  async mkdir(path: string, options?: RequestOptions): Promise<FileEntry> {
    return this.transport.json<Schemas['Entry']>({ method: 'POST', path: `${this.path}/mkdir`, json: { path }, options });
  }

  async move(source: string, target: string, options?: RequestOptions): Promise<FileEntry> {
    const json = { from: source, to: target };
    return this.transport.json<Schemas['Entry']>({ method: 'POST', path: `${this.path}/move`, json, options });
  }

  /** Removes a file, or a folder with everything in it. */
  async remove(path: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: this.path, query: { path }, options });
  }

  /** Replaces exact text. All edits are made, or none. */
  async edit(path: string, edits: TextEdit[], options?: RequestOptions): Promise<EditResult> {
    const json = { path, edits };
    return this.transport.json<Schemas['EditResult']>({ method: 'POST', path: `${this.path}/edit`, json, options });
  }

  /** Lines that match a regular expression. */
  async grep(pattern: string, path?: string, options: GrepOptions = {}): Promise<GrepResult> {
    const [request, rest] = splitOptions(options);
    const json = { pattern, path, ...snakeFields(rest) };
    const call = { method: 'POST', path: `${this.path}/grep`, json, options: request, repeatable: true };
    return this.transport.json<Schemas['GrepResult']>(call);
  }

  /** Paths that match a glob. */
  async search(pattern: string, path?: string, options: RequestOptions & { exclude?: string[] } = {}): Promise<SearchResult> {
    const [request, rest] = splitOptions(options);
    const json = { pattern, path, ...rest };
    const call = { method: 'POST', path: `${this.path}/search`, json, options: request, repeatable: true };
    return this.transport.json<Schemas['SearchResult']>(call);
  }

  /** Changes in a folder as they happen, until the loop is left. */
  async *watch(path: string, options: RequestOptions & { recursive?: boolean } = {}): AsyncGenerator<FileChange> {
    const [request, query] = splitOptions(options);
    const call = { method: 'GET', path: `${this.path}/watch`, query: { path, ...query }, options: request };
    for await (const { name, data } of this.transport.events(call)) {
      yield { type: name as FileChange['type'], name: (data as { name: string }).name };
    }
  }

  /** A file or folder as a tar archive. */
  async downloadArchive(path: string, options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    const response = await this.transport.raw({ method: 'GET', path: `${this.path}/archive`, query: { path }, options });
    return response.body!;
  }

  /** Unpacks a tar archive into a folder. */
  async uploadArchive(path: string, archive: FileData, options?: RequestOptions): Promise<{ entries: number; bytes: number }> {
    const headers = { 'content-type': 'application/x-tar' };
    const call = { method: 'PUT', path: `${this.path}/archive`, query: { path }, body: bodyOf(archive), headers };
    return this.transport.json<Schemas['ArchiveWritten']>({ ...call, limitS: 0, options });
  }
}
