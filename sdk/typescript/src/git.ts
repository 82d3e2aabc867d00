/** Git in a sandbox, with typed answers. `path` is the folder of the repository; default: the working directory. */
import { snakeFields } from './case.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { GitBranches, GitCommit, GitCommitted, GitCredentials, GitRemote, GitResult, GitStatus, Schemas } from './types.js';

export interface GitOptions extends RequestOptions {
  path?: string;
}

export interface CloneOptions extends RequestOptions {
  branch?: string;
  commit?: string;
  depth?: number;
  credentials?: GitCredentials;
}

export interface RemoteOptions extends GitOptions {
  remote?: string;
  branch?: string;
  credentials?: GitCredentials;
}

/** LIMIT: the server ends git calls to another repository after 30 minutes. */
const TRANSFER_S = 1_860;

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

  async status(options: GitOptions = {}): Promise<GitStatus> {
    return this.read<Schemas['GitStatus']>('status', options);
  }

  async add(files: string[], options: GitOptions = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('add', { files }, options);
  }

  async commit(
    message: string,
    options: GitOptions & { author?: string; email?: string; allowEmpty?: boolean } = {},
  ): Promise<GitCommitted> {
    return this.post<Schemas['GitCommitted']>('commit', { message }, options);
  }

  async push(options: RemoteOptions & { setUpstream?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('push', {}, options, TRANSFER_S);
  }

  async pull(options: RemoteOptions & { rebase?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('pull', {}, options, TRANSFER_S);
  }

  async branches(options: GitOptions = {}): Promise<GitBranches> {
    return this.read<Schemas['GitBranches']>('branches', options);
  }

  async createBranch(name: string, options: GitOptions & { base?: string; checkout?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('branches', { name }, options);
  }

  async deleteBranch(name: string, options: GitOptions & { force?: boolean } = {}): Promise<void> {
    const [request, query] = splitOptions(options);
    await this.transport.done({ method: 'DELETE', path: at(`${this.base}/branches`, name), query, options: request });
  }

  /** Checks out a branch, tag or commit. */
  async checkout(target: string, options: GitOptions = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('checkout', { target }, options);
  }

  async log(options: GitOptions & { limit?: number; since?: string; until?: string } = {}): Promise<GitCommit[]> {
    return (await this.read<Schemas['GitLog']>('log', options)).items;
  }

  /** The changes as a patch, in `output`. */
  async diff(options: GitOptions & { staged?: boolean; target?: string; context?: number } = {}): Promise<GitResult> {
    return this.read<Schemas['GitResult']>('diff', options);
  }

  async reset(options: GitOptions & { mode?: 'soft' | 'mixed' | 'hard'; target?: string; files?: string[] } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('reset', {}, options);
  }

  async restore(
    files: string[],
    options: GitOptions & { source?: string; staged?: boolean; worktree?: boolean } = {},
  ): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('restore', { files }, options);
  }

  async remotes(options: GitOptions = {}): Promise<GitRemote[]> {
    return (await this.read<Schemas['GitRemotes']>('remotes', options)).items;
  }

  async addRemote(name: string, url: string, options: GitOptions & { overwrite?: boolean } = {}): Promise<GitResult> {
    return this.post<Schemas['GitResult']>('remotes', { name, url }, options);
  }

  private async post<T>(what: string, body: object, options: RequestOptions, limitS?: number) {
    const [request, rest] = splitOptions(options);
    const json = { ...body, ...snakeFields(rest) };
    // LIMIT: the server ends other git calls after 2 minutes.
    return this.transport.json<T>({ method: 'POST', path: `${this.base}/${what}`, json, options: request, limitS: limitS ?? 150 });
  }

  private async read<T>(what: string, options: RequestOptions) {
    const [request, query] = splitOptions(options);
    return this.transport.json<T>({ method: 'GET', path: `${this.base}/${what}`, query: query as never, options: request, limitS: 150 });
  }
}
