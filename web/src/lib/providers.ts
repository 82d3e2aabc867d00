// The kinds of providers and the fields of their settings files, as docs/providers.md has them. The server checks every value
// again; this table is what the forms show.
import type { Provider, SettingsDocument } from './api';

export interface ProviderField {
  name: string;
  label: string;
  kind: 'text' | 'secret' | 'address' | 'path' | 'seconds' | 'choice' | 'switch';
  choices?: string[];
  placeholder?: string;
  hint?: string;
  required?: boolean;
  /** Only in the form of this name; without it the field is in every form of the kind. */
  form?: string;
}

export interface ProviderKind {
  id: string;
  label: string;
  /** What it is, in a sentence. */
  about: string;
  fields: ProviderField[];
  /** A kind with several ways to set it up: the first is the default. */
  forms?: { id: string; label: string }[];
}

const KEY: ProviderField = { name: 'api_key', label: 'API key', kind: 'secret', required: true };

export const KINDS: ProviderKind[] = [
  { id: 'container', label: 'Container', about: 'The engine of this server. It is always there.', fields: [] },
  {
    id: 'docker', label: 'Docker', about: 'Containers of a Docker daemon, from any image that it has.',
    fields: [
      { name: 'image', label: 'Image', kind: 'text', placeholder: 'python:3.12-slim', hint: 'Used when a request names none.' },
      { name: 'mount_path', label: 'Mount path', kind: 'path', placeholder: '/workspace', hint: 'The working directory of sandboxes.' },
      { name: 'host', label: 'Daemon', kind: 'address', placeholder: 'unix:///var/run/docker.sock' },
      { name: 'network', label: 'Network', kind: 'choice', choices: ['bridge', 'none'] },
      { name: 'pull', label: 'Pull images', kind: 'choice', choices: ['missing', 'never'] },
      { name: 'remote', label: 'On another machine', kind: 'switch' },
    ],
  },
  { id: 'local', label: 'Local', about: 'Processes of the server’s machine. Nothing separates them from it: for code that you trust.', fields: [] },
  {
    id: 'e2b', label: 'E2B', about: 'The service of E2B, with your account there.',
    fields: [
      KEY,
      { name: 'api_url', label: 'API URL', kind: 'address', placeholder: 'the service of E2B' },
      { name: 'sandbox_url', label: 'Sandbox URL', kind: 'address', placeholder: 'a host of its own for each sandbox' },
      { name: 'template', label: 'Template', kind: 'text', placeholder: 'base' },
      { name: 'cwd', label: 'Working directory', kind: 'path', placeholder: '/home/user' },
      { name: 'timeout', label: 'Timeout, seconds', kind: 'seconds', placeholder: '300' },
    ],
  },
  {
    id: 'daytona', label: 'Daytona', about: 'Daytona’s cloud, or a Daytona of your own.',
    forms: [{ id: 'cloud', label: 'Cloud' }, { id: 'self-hosted', label: 'Self-hosted' }],
    fields: [
      KEY,
      { name: 'api_url', label: 'API URL', kind: 'address', placeholder: 'https://daytona.example.com/api', required: true, form: 'self-hosted' },
      { name: 'target', label: 'Target', kind: 'text', placeholder: 'us' },
      { name: 'organization', label: 'Organization', kind: 'text', placeholder: 'that of the key' },
      { name: 'snapshot', label: 'Snapshot', kind: 'text', placeholder: 'the default of the service', hint: 'Used when a request names none.' },
      { name: 'user', label: 'User', kind: 'text', placeholder: 'daytona' },
      { name: 'cwd', label: 'Working directory', kind: 'path', placeholder: '/home/daytona' },
      { name: 'timeout', label: 'Timeout, seconds', kind: 'seconds', placeholder: '3600' },
    ],
  },
  {
    id: 'agentbay', label: 'AgentBay', about: 'Alibaba Cloud’s AgentBay, with your account there.',
    fields: [
      KEY,
      { name: 'region_id', label: 'Region', kind: 'address', placeholder: 'cn-hangzhou' },
      { name: 'endpoint', label: 'Endpoint', kind: 'address' },
      { name: 'image_id', label: 'Image', kind: 'text', placeholder: 'linux_latest' },
      { name: 'context_path', label: 'Context path', kind: 'path', placeholder: '/home/wuying' },
      { name: 'timeout', label: 'Timeout, seconds', kind: 'seconds', placeholder: 'none' },
    ],
  },
];

export const kindOf = (id: string): ProviderKind | undefined => KINDS.find((kind) => kind.id === id);

export const ON_EXIT: [string, string][] = [
  ['keep', 'keep them running'],
  ['pause', 'pause them'],
  ['destroy', 'delete them'],
];

export const ISOLATION: Record<string, string> = {
  none: 'none: a process of the machine',
  container: 'container: a shared kernel',
  vm: 'virtual machine: a kernel of its own',
  vendor: 'the service of another company',
};

/** The same in a word or two, below the name of a provider. */
export const ISOLATION_SHORT: Record<string, string> = { none: 'no isolation', container: 'containers', vm: 'virtual machines', vendor: 'another company' };

/** What a form holds: the text of each field. */
export type FieldValues = Record<string, string>;

/** The form that fits settings: a kind with several has the one whose own fields are set. */
export function formOf(kind: ProviderKind, values: FieldValues): string {
  const own = kind.forms?.find((form) => kind.fields.some((field) => field.form === form.id && values[field.name]));
  return own?.id ?? kind.forms?.[0]?.id ?? '';
}

export function valuesOf(kind: ProviderKind, document: SettingsDocument | undefined): FieldValues {
  const section = (document?.[kind.id] ?? {}) as Record<string, unknown>;
  return Object.fromEntries(kind.fields.map((field) => [field.name, section[field.name] === undefined ? '' : String(section[field.name])]));
}

export const fieldsOf = (kind: ProviderKind, form: string): ProviderField[] => kind.fields.filter((field) => !field.form || field.form === form);

/** The body of `PUT /v1/providers/{name}/settings`. A secret that is not typed is left out, which keeps the stored one. */
export function documentOf(kind: ProviderKind, form: string, values: FieldValues, rest: { enabled: boolean | undefined; on_exit: string; removeKey?: boolean }): SettingsDocument {
  const section: Record<string, unknown> = {};
  for (const field of fieldsOf(kind, form)) {
    const text = (values[field.name] ?? '').trim();
    if (field.kind === 'secret' && rest.removeKey) section[field.name] = '';
    else if (!text) continue;
    else if (field.kind === 'seconds') section[field.name] = Number(text);
    else if (field.kind === 'switch') section[field.name] = text === 'true';
    else section[field.name] = text;
  }
  const made: SettingsDocument = { provider: kind.id, on_exit: rest.on_exit };
  if (rest.enabled !== undefined) made.enabled = rest.enabled;
  if (Object.keys(section).length) made[kind.id] = section;
  return made;
}

/** Whether a create at it can succeed. */
export const isUsable = (provider: Provider) => provider.health === 'ok';

/** Settings without the key that is being typed, to be shown and copied. */
export function withoutKey(document: SettingsDocument): SettingsDocument {
  const section = document[document.provider] as Record<string, unknown> | undefined;
  if (!section?.['api_key']) return document;
  return { ...document, [document.provider]: { ...section, api_key: '…' } };
}
