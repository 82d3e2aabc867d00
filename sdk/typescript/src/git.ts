/** Git in a sandbox, with typed answers. `path` is the folder of the repository; default: the working directory. */
import { snakeFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { GitBranches, GitCommit, GitCommitted, GitCredentials, GitRemote, GitResult, GitStatus, Schemas } from './types.js';

export interface CloneOptions extends RequestOptions {
  branch?: string;
  commit?: string;
  depth?: number;
  credentials?: GitCredentials;
}

export interface RemoteOptions extends RequestOptions {
  remote?: string;
  branch?: string;
  credentials?: GitCredentials;
}

/** LIMIT: the server ends git calls to another repository after 30 minutes. */
const TRANSFER_S = 1_860;
/** LIMIT: it ends other git calls after 2 minutes. */
const LOCAL_S = 150;

export class Git {
  constructor(
    private readonly transport: Transport,
    private readonly base: string,
  ) {}

  /** Clones a repository into a folder. */
  async clone(url: string, path: string, options: CloneOptions = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('clone', { url, path }, options, TRANSFER_S);
  }

  async init(path: string, options: RequestOptions & { bare?: boolean; branch?: string } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('init', { path }, options);
  }

  async status(path?: string, options: RequestOptions = {}): Promise<GitStatus> {
    return this.read<Schemas['GitStatus']>('status', path, options);
  }

  async add(files: string[], path?: string, options: RequestOptions = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('add', { files, path }, options);
  }

  async commit(
    message: string,
    path?: string,
    options: RequestOptions & { author?: string; email?: string; allowEmpty?: boolean } = {},
  ): Promise<GitCommitted> {
    return this.post<Schemas['GitCommitted']>('commit', { message, path }, options);
  }

  async push(path?: string, options: RemoteOptions & { setUpstream?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('push', { path }, options, TRANSFER_S);
  }

  async pull(path?: string, options: RemoteOptions & { rebase?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('pull', { path }, options, TRANSFER_S);
  }

  async branches(path?: string, options: RequestOptions = {}): Promise<GitBranches> {
    return this.read<Schemas['GitBranches']>('branches', path, options);
  }

  async createBranch(name: string, path?: string, options: RequestOptions & { base?: string; checkout?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('branches', { name, path }, options);
  }

  async deleteBranch(name: string, path?: string, options: RequestOptions & { force?: boolean } = {}): Promise<void> {
    const [request, query] = splitOptions(options);
    const call = { method: 'DELETE', path: at(`${this.base}/branches`, name), query: { path, ...query }, options: request };
    await this.transport.done(call);
  }

  /** Checks out a branch, tag or commit. */
  async checkout(target: string, path?: string, options: RequestOptions = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('checkout', { target, path }, options);
  }

  async log(path?: string, options: RequestOptions & { limit?: number; since?: string; until?: string } = {}): Promise<GitCommit[]> {
    return (await this.read<Schemas['GitLog']>('log', path, options)).items;
  }

  /** The changes as a patch, in `output`. */
  async diff(path?: string, options: RequestOptions & { staged?: boolean; target?: string; context?: number } = {}): Promise<GitResult> {
    return this.read<Schemas['GitResult']>('diff', path, options);
  }

  async reset(path?: string, options: RequestOptions & { mode?: 'soft' | 'mixed' | 'hard'; target?: string; files?: string[] } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('reset', { path }, options);
  }

  async restore(
    files: string[],
    path?: string,
    options: RequestOptions & { source?: string; staged?: boolean; worktree?: boolean } = {},
  ): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('restore', { files, path }, options);
  }

  async remotes(path?: string, options: RequestOptions = {}): Promise<GitRemote[]> {
    return (await this.read<Schemas['GitRemotes']>('remotes', path, options)).items;
  }

  async addRemote(name: string, url: string, path?: string, options: RequestOptions & { overwrite?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('remotes', { name, url, path }, options);
  }

  private async post<T>(what: string, body: object, options: RequestOptions, limitS = LOCAL_S) {
    const [request, rest] = splitOptions(options);
    const json = { ...body, ...snakeFields(rest) };
    return this.transport.json<T>({ method: 'POST', path: `${this.base}/${what}`, json, options: request, limitS });
  }

  private async read<T>(what: string, path: string | undefined, options: RequestOptions) {
    const [request, rest] = splitOptions(options);
    const query = { path, ...rest };
    return this.transport.json<T>({ method: 'GET', path: `${this.base}/${what}`, query, options: request, limitS: LOCAL_S });
  }
}
