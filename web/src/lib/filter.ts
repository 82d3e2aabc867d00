// The filters of the list: text, phases, template, provider, isolation, thread, key and order, all of them in the address.
import type { Phase, Sandbox } from './api';
import { creatorText } from './phases';

export interface Filter {
  text: string;
  phases: Phase[];
  template: string;
  provider: string;
  isolation: string;
  /** A name, or `*` for every sandbox that has a thread. */
  thread: string;
  /** The id of the key that created it. */
  key: string;
  sort: string;
}

export function readFilter(query: URLSearchParams): Filter {
  return {
    text: query.get('q') ?? '',
    phases: (query.get('phase')?.split(',').filter(Boolean) ?? []) as Phase[],
    template: query.get('template') ?? '',
    provider: query.get('provider') ?? '',
    isolation: query.get('isolation') ?? '',
    thread: query.get('thread') ?? '',
    key: query.get('key') ?? '',
    sort: query.get('sort') ?? 'created',
  };
}

const searched = new WeakMap<Sandbox, string>();

/** Everything of a sandbox that the text filter looks at. */
function haystack(sandbox: Sandbox): string {
  let text = searched.get(sandbox);
  if (text === undefined) {
    const labels = Object.entries(sandbox.labels).map(([key, value]) => `${key}=${value}`);
    text = [sandbox.name, sandbox.id, sandbox.template, sandbox.provider, sandbox.isolation, sandbox.thread, creatorText(sandbox), sandbox.phase, sandbox.user, ...labels].join('\n').toLowerCase();
    searched.set(sandbox, text);
  }
  return text;
}

const ORDERS: Record<string, (a: Sandbox, b: Sandbox) => number> = {
  created: (a, b) => (a.created_at < b.created_at ? 1 : -1),
  oldest: (a, b) => (a.created_at < b.created_at ? -1 : 1),
  name: (a, b) => (a.name ?? a.id).localeCompare(b.name ?? b.id),
  state: (a, b) => a.phase.localeCompare(b.phase) || (a.created_at < b.created_at ? 1 : -1),
  ends: (a, b) => (a.timeout_at ?? '9') < (b.timeout_at ?? '9') ? -1 : 1,
  provider: (a, b) => a.provider.localeCompare(b.provider) || (a.created_at < b.created_at ? 1 : -1),
  thread: (a, b) => (a.thread ?? '\uffff').localeCompare(b.thread ?? '\uffff') || (a.created_at < b.created_at ? 1 : -1),
  template: (a, b) => a.template.localeCompare(b.template) || (a.created_at < b.created_at ? 1 : -1),
};

export const SORTS: [string, string][] = [
  ['created', 'Newest first'],
  ['oldest', 'Oldest first'],
  ['name', 'Name'],
  ['state', 'State'],
  ['template', 'Template'],
  ['provider', 'Provider'],
  ['thread', 'Thread'],
  ['ends', 'Ends soonest'],
];

/** Whether anything is filtered; the order is no filter. */
export const isFiltering = (filter: Filter) => Boolean(filter.text || filter.phases.length || filter.template || filter.provider || filter.isolation || filter.thread || filter.key);

/** What the address loses when the filters are cleared. */
export const NO_FILTERS = { q: null, phase: null, template: null, provider: null, isolation: null, thread: null, key: null };

/** The filtered list in its order. */
export function applyFilter(all: Iterable<Sandbox>, filter: Filter): Sandbox[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const phases = new Set(filter.phases);
  const found: Sandbox[] = [];
  for (const sandbox of all) {
    if (phases.size && !phases.has(sandbox.phase)) continue;
    if (filter.template && sandbox.template !== filter.template) continue;
    if (filter.provider && sandbox.provider !== filter.provider) continue;
    if (filter.isolation && sandbox.isolation !== filter.isolation) continue;
    if (filter.thread && (filter.thread === '*' ? !sandbox.thread : sandbox.thread !== filter.thread)) continue;
    if (filter.key && sandbox.created_by_key?.id !== filter.key) continue;
    const text = words.length ? haystack(sandbox) : '';
    if (words.every((word) => text.includes(word))) found.push(sandbox);
  }
  return found.sort(ORDERS[filter.sort] ?? ORDERS['created']!);
}
