// Hints of the API name commands, requests and fields. Where this page has its own control, the hint names that instead.

const IN_THE_PAGE: [RegExp, string][] = [
  [/\bqueue: true\b/, 'try again later, or stop or delete sandboxes that you do not need'],
  [/\bwake: any\b/, 'resume it first, or let any request wake it (its tab Settings)'],
  [/\bdisk_mib\b/, 'remove files, or give the sandbox a larger disk (its tab Settings)'],
  [/\bmore pids or memory_mib\b/, 'end processes, or give the sandbox more memory or processes (its tab Settings)'],
  [/\bsize_mib\b/, 'remove files, or use a larger volume'],
  [/\/v1\/sandboxes\?template=/, 'delete the sandboxes of this template first; Resources can be filtered by template'],
  [/\/v1\/sandboxes\b/, 'Resources shows every sandbox of this key'],
  [/\/v1\/threads\/\{thread\}/, 'end threads whose sandboxes are deleted, on the page Threads'],
  [/\/v1\/threads\b/, 'the page Threads shows all of them'],
  [/\/v1\/volumes\b/, 'Settings, Volumes shows all of them'],
  [/\/v1\/templates\b/, 'Settings, Templates shows all of them'],
  [/\/v1\/snapshots\b/, 'the tab Snapshots of a sandbox shows its snapshots'],
  [/\/v1\/secrets\b/, 'create the secret first, in Settings, Secrets'],
  [/atoll preview SANDBOX PORT/, 'create a new preview in the tab Processes of the sandbox'],
  [/atoll provider set local --enable/, 'if you trust all code that will run there, switch it on in Settings, Sandbox'],
  [/atoll provider set NAME --enable/, 'switch it on in Settings, Sandbox'],
  [/atoll provider set\b/, 'save its settings again in Settings, Sandbox'],
  [/atoll provider ls\b/, 'Settings, Sandbox shows what each provider can do'],
  [/Authorization: Bearer/, "check the key; the first one is in the file admin.key of the server's data folder"],
];

/** A hint for a person in front of this page. */
export function pageHint(hint: string | undefined): string | undefined {
  return hint && (IN_THE_PAGE.find(([pattern]) => pattern.test(hint))?.[1] ?? hint);
}
