// The only place where text of a sandbox becomes a document: the content of a frame that has no scripts and no origin. The page's
// content security policy refuses every other way.

interface Policy {
  createHTML(text: string): string;
}
interface Factory {
  createPolicy(name: string, rules: Policy): Policy;
}

const factory = (globalThis as { trustedTypes?: Factory }).trustedTypes;
const policy = factory?.createPolicy('atoll-frame', { createHTML: (text) => text });

/** Content for the `srcdoc` of a frame with `sandbox=""`. */
export function frameDocument(text: string): string {
  return policy ? policy.createHTML(text) : text;
}
