// Keys that work on every page. Letters do nothing while the viewer types.
import { prefs } from './prefs.svelte';
import { route } from './router.svelte';
import { ui } from './ui.svelte';

export const SHORTCUTS: [string, string][] = [
  ['Ctrl K', 'Search sandboxes and actions'],
  ['/', 'Filter the list'],
  ['g r', 'Go to the resources'],
  ['g t', 'Go to the threads'],
  ['g s', 'Go to the settings'],
  ['c', 'Create a sandbox'],
  ['j / k', 'Next or previous row; Enter opens it, x selects it'],
  ['1 … 9', 'Tabs of a sandbox'],
  ['t', 'Switch between dark and light'],
  ['?', 'Show these shortcuts'],
  ['Ctrl Enter', 'Run code'],
];

let afterG = 0;

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(input|textarea|select)$/i.test(target.tagName));
}

export function shortcuts(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k' && !isTerminal(event.target)) {
    event.preventDefault();
    ui.palette = !ui.palette;
    return;
  }
  if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  const withG = performance.now() - afterG < 1_200;
  afterG = 0;
  if (withG && event.key === 'r') return route.go('/resources');
  if (withG && event.key === 't') return route.go('/threads');
  if (withG && event.key === 's') return route.go('/settings/sandbox');
  if (event.key === 'g') afterG = performance.now();
  else if (event.key === 't') prefs.toggleTheme();
  else if (event.key === '?') ui.help = true;
  else if (event.key === 'c') ui.create = {};
  else if (event.key === '/') {
    const filter = document.querySelector<HTMLInputElement>('[data-filter]');
    if (!filter) return;
    event.preventDefault();
    filter.focus();
    filter.select();
    return;
  } else if (/^[1-9]$/.test(event.key)) {
    document.querySelectorAll<HTMLElement>('[data-tab]')[Number(event.key) - 1]?.click();
    return;
  } else return;
  event.preventDefault();
}

function isTerminal(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest('.xterm') !== null;
}
