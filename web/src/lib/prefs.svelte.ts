// What the viewer chose for this browser: theme, saved views of the list, and the language of snippets.

type Theme = 'system' | 'light' | 'dark';

export type SnippetLanguage = 'cli' | 'curl' | 'python' | 'typescript';

export interface SavedView {
  name: string;
  query: string;
}

function read<T>(name: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(name);
    return text ? (JSON.parse(text) as T) : otherwise;
  } catch {
    return otherwise;
  }
}

class Preferences {
  theme = $state<Theme>(read<Theme>('atoll.theme', 'system'));
  views = $state<SavedView[]>(read<SavedView[]>('atoll.views', []));
  snippets = $state<SnippetLanguage>(read<SnippetLanguage>('atoll.snippets', 'cli'));

  apply(): void {
    if (this.theme === 'system') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = this.theme;
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    localStorage.setItem('atoll.theme', JSON.stringify(theme));
    this.apply();
  }

  setSnippets(language: SnippetLanguage): void {
    this.snippets = language;
    localStorage.setItem('atoll.snippets', JSON.stringify(language));
  }

  toggleTheme(): void {
    this.setTheme(isDark() ? 'light' : 'dark');
  }

  saveView(view: SavedView): void {
    this.views = [...this.views.filter((other) => other.name !== view.name), view];
    localStorage.setItem('atoll.views', JSON.stringify(this.views));
  }

  removeView(name: string): void {
    this.views = this.views.filter((view) => view.name !== name);
    localStorage.setItem('atoll.views', JSON.stringify(this.views));
  }
}

export const prefs = new Preferences();

export function isDark(): boolean {
  if (prefs.theme !== 'system') return prefs.theme === 'dark';
  return matchMedia('(prefers-color-scheme: dark)').matches;
}
