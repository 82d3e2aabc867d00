// One question at a time, answered in a dialog.

export interface Question {
  title: string;
  text: string;
  yes: string;
  items?: string[];
  dangerous?: boolean;
  /** Also asks for a text. */
  input?: { label: string; value: string };
}

class Confirmation {
  open = $state.raw<Question | null>(null);
  text = $state('');
  #resolve: ((yes: boolean) => void) | undefined;

  ask(question: Question): Promise<boolean> {
    this.#resolve?.(false);
    this.open = question;
    this.text = question.input?.value ?? '';
    return new Promise((resolve) => (this.#resolve = resolve));
  }

  answer(yes: boolean): void {
    this.open = null;
    this.#resolve?.(yes);
    this.#resolve = undefined;
  }
}

export const confirmation = new Confirmation();
export const ask = (question: Question) => confirmation.ask(question);

/** Asks for a text; `null` when the dialog was left. */
export async function askText(title: string, label: string, value = '', yes = 'OK'): Promise<string | null> {
  const isYes = await confirmation.ask({ title, text: '', yes, input: { label, value } });
  return isYes ? confirmation.text.trim() || null : null;
}
