// Talking to the server: questions with progress, and what to do while it is away.

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}
export class OfflineError extends Error {}
export class CancelledError extends Error {}

const RETRY_MS = 1000;
const TICKET_GONE = [404, 409]; // given up by the server, as after a laptop's sleep: ask from the beginning
const listeners = { lost: () => {}, back: () => {}, busy: () => {} };
let watching = false;
let numOpen = 0;

// `lost` and `back` hear of the connection, `busy` whether any answer is awaited.
export function onConnection({ lost, back, busy }) {
  Object.assign(listeners, { lost, back, busy });
}

export async function awaited(work) {
  listeners.busy(++numOpen > 0);
  try {
    return await work;
  } finally {
    listeners.busy(--numOpen > 0);
  }
}

// One request. Refusals become ServerError with the server's own words, silence becomes OfflineError.
export function call(path, options = {}) {
  return awaited(request(path, options));
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw new CancelledError();
    watch();
    throw new OfflineError("the server does not answer");
  }
  let body;
  try {
    body = await response.json();
  } catch {
    if (options.signal?.aborted) throw new CancelledError();
    watch();
    throw new OfflineError("the server's answer was cut off");
  }
  if (!response.ok) throw new ServerError(response.status, body.error?.message ?? `the server answered ${response.status}`);
  return { status: response.status, body };
}

// Ask until answered. `progress(share, note)` hears of long work; aborting the signal cancels it on the server, too.
export function ask(question, options = {}) {
  return awaited(answerOf(question, options)); // also while it waits for a place in the queue
}

async function answerOf(question, { signal, progress = () => {} }) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question), signal };
  const begin = () => patiently(() => call("/api/questions", options), signal);
  let reply = await begin();
  while (reply.status === 202) {
    const ticket = reply.body.id;
    progress(reply.body.share, reply.body.note);
    try {
      reply = await call(`/api/questions/${ticket}`, { signal });
    } catch (error) {
      if (error instanceof CancelledError) fetch(`/api/questions/${ticket}`, { method: "DELETE" }).catch(() => {});
      if (!(error instanceof ServerError && TICKET_GONE.includes(error.status))) throw error;
      reply = await begin();
    }
  }
  return { answer: reply.body.answer, workMs: reply.body.work_ms };
}

// A full queue is no failure: wait a little and ask again.
async function patiently(attempt, signal) {
  for (let left = 5; ; left--) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof ServerError && error.status === 503) || left === 0) throw error;
      await pause(RETRY_MS);
      if (signal?.aborted) throw new CancelledError();
    }
  }
}

async function watch() {
  if (watching) return;
  watching = true;
  listeners.lost();
  for (;;) {
    await pause(RETRY_MS);
    try {
      const response = await fetch("/api/health");
      const { session } = await response.json();
      watching = false;
      listeners.back(session);
      return;
    } catch {
      // still away
    }
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// Answers hold arrays as {shape, type, data}.
export function toArray({ shape, type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return { shape, values: type === "uint8" ? bytes : new Float32Array(bytes.buffer) };
}

// Of many questions in a row only the newest matters: one is under way, one waits. Slow work that is no longer wanted
// is cancelled.
export class Channel {
  #current = null;
  #waiting = null;

  ask(question, { answered, failed, progress }) {
    const text = JSON.stringify(question);
    if (this.#waiting === null && this.#current?.text === text && !this.#current.abort.signal.aborted) return;
    if (this.#current) {
      this.#waiting = { question, answered, failed, progress };
      if (this.#current.slow) this.#current.abort.abort();
      return;
    }
    this.#run(text, question, { answered, failed, progress });
  }

  cancel() {
    this.#waiting = null;
    this.#current?.abort.abort();
  }

  async #run(text, question, { answered, failed, progress }) {
    const abort = new AbortController();
    const current = (this.#current = { text, abort, slow: false });
    const slowly = (share, note) => {
      current.slow = true;
      progress?.(share, note);
      if (this.#waiting) abort.abort();
    };
    try {
      const reply = await ask(question, { signal: abort.signal, progress: slowly });
      this.#current = null;
      answered(reply.answer, reply.workMs);
    } catch (error) {
      this.#current = null;
      if (!(error instanceof CancelledError && this.#waiting)) failed(error);
    }
    const next = this.#waiting;
    this.#waiting = null;
    if (next) this.ask(next.question, next);
  }
}
