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
