/** The part of E2B's package that the tests use. The package itself is fetched by scripts/get-e2b-sdk, without its types. */
declare module 'e2b' {
  export class Sandbox {
    static create(template: string, options: object): Promise<Sandbox>;
    readonly sandboxId: string;
    readonly files: { read(path: string): Promise<string> };
    getHost(port: number): string;
  }
}
