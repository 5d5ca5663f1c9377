// Requests to the proxy. Every answer is JSON; what fails is a Failure with words for people.

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function get(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The proxy does not answer.");
  }
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("lodefs-login"));
  if (!answer.ok) throw new Failure(answer.status, await message(answer));
  return answer.json();
}

export async function post(path, body) {
  const answer = await fetch(path, { method: "POST", body });
  if (!answer.ok) throw new Failure(answer.status, await message(answer));
}

async function message(answer) {
  try {
    return (await answer.json()).message;
  } catch {
    return `The proxy answered ${answer.status}.`;
  }
}

const PAUSES_MS = [1000, 2000, 5000, 10000, 30000];

// Follows the node: handlers by name of event, and told of the link's state. Hidden pages follow
// nothing, so that a forgotten tab costs the proxy nothing.
export class Follower {
  constructor(handlers, onState) {
    this.handlers = handlers;
    this.onState = onState;
    this.failed = 0;
    this.source = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  start() {
    if (this.source !== null || document.hidden) return;
    clearTimeout(this.timer);
    const source = new EventSource("/page/events");
    this.source = source;
    source.addEventListener("open", () => {
      this.failed = 0;
      this.onState("live");
    });
    for (const [name, handler] of Object.entries(this.handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.addEventListener("error", () => this.lost());
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  // EventSource repeats what breaks off, but not what is refused; here both wait longer and longer.
  lost() {
    this.stop();
    this.onState("lost");
    const pause = PAUSES_MS[Math.min(this.failed, PAUSES_MS.length - 1)];
    this.failed += 1;
    this.timer = setTimeout(() => this.start(), pause);
    if (this.failed === 1) get("/page/repositories?limit=1").catch(() => {}); // a login, perhaps
  }
}
