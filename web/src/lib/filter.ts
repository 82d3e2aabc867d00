// The filters of the list: text, phases, template, label and order, all of them in the address.
import type { Phase, Sandbox } from './api';

export interface Filter {
  text: string;
  phases: Phase[];
  template: string;
  sort: string;
}

export function readFilter(query: URLSearchParams): Filter {
  return {
    text: query.get('q') ?? '',
    phases: (query.get('phase')?.split(',').filter(Boolean) ?? []) as Phase[],
    template: query.get('template') ?? '',
    sort: query.get('sort') ?? 'created',
  };
}

const searched = new WeakMap<Sandbox, string>();

/** Everything of a sandbox that the text filter looks at. */
function haystack(sandbox: Sandbox): string {
  let text = searched.get(sandbox);
  if (text === undefined) {
    const labels = Object.entries(sandbox.labels).map(([key, value]) => `${key}=${value}`);
    text = [sandbox.name, sandbox.id, sandbox.template, sandbox.provider, sandbox.thread, sandbox.phase, sandbox.user, ...labels].join('\n').toLowerCase();
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
  template: (a, b) => a.template.localeCompare(b.template) || (a.created_at < b.created_at ? 1 : -1),
};

export const SORTS: [string, string][] = [
  ['created', 'Newest first'],
  ['oldest', 'Oldest first'],
  ['name', 'Name'],
  ['state', 'State'],
  ['template', 'Template'],
  ['ends', 'Ends soonest'],
];

export function applyFilter(all: Iterable<Sandbox>, filter: Filter): Sandbox[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const phases = new Set(filter.phases);
  const found: Sandbox[] = [];
  for (const sandbox of all) {
    if (phases.size && !phases.has(sandbox.phase)) continue;
    if (filter.template && sandbox.template !== filter.template) continue;
    const text = words.length ? haystack(sandbox) : '';
    if (words.every((word) => text.includes(word))) found.push(sandbox);
  }
  return found.sort(ORDERS[filter.sort] ?? ORDERS['created']!);
}
