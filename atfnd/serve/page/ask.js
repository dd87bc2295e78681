// SPDX-License-Identifier: GPL-2.0-or-later
// What the page asks the daemon for: GET, and nothing else.

const PATIENCE_MS = 30_000;

async function asked(path, signal) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]);
  const answer = await fetch(path, { signal: limited });
  if (!answer.ok) {
    throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  }
  return answer;
}

/** One object. */
export async function object(path, signal) {
  return (await asked(path, signal)).json();
}

/** An answer that is asked for again only when it is old: `lasts` says after how many ms. */
export class Kept {
  #path;
  #lasts;
  #answer = null;
  #asked = 0;

  constructor(path, lasts) {
    this.#path = path;
    this.#lasts = lasts;
  }

  async get(signal) {
    const now = performance.now();
    if (this.#answer === null || now - this.#asked >= this.#lasts(this.#answer)) {
      this.#answer = await object(this.#path, signal);
      this.#asked = now;
    }
    return this.#answer;
  }
}

/** Each object of an answer that has one on a line, as it comes. */
export async function* lines(path, signal) {
  const reader = (await asked(path, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      break;
    }
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    yield* whole.map((line) => JSON.parse(line));
  }
}
