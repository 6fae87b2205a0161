// The server's API: requests, streams of events, and errors in a sentence.

export class Failure extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

let key = "";
export const setKey = (value) => { key = value.trim(); };
export const keyed = () => Boolean(key);

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = "Bearer " + key;
  if (options.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Start it with 'draftwood serve', then try again.", 0);
  }
  if (!response.ok) {
    const text = await response.text().catch(() => "");
    let message = "";
    try { message = JSON.parse(text).error.message; } catch { /* not from this server */ }
    throw new Failure(message || "The server answered " + response.status + " " + response.statusText + ".", response.status);
  }
  return response;
}

export const json = async (path) => (await request(path)).json();

// [event, data] of a stream of server-sent events: the answer to `body`, or what is told to everybody.
export async function* events(path, body, signal) {
  const response = await request(path, body ? { method: "POST", body: JSON.stringify(body), signal } : {});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("The connection to the server was lost; what came before it is shown.", 0);
    }
    if (chunk.done) return;
    const parts = (held + chunk.value).replaceAll("\r\n", "\n").split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length && data[0] !== "[DONE]") yield [name, JSON.parse(data.join("\n"))];
    }
  }
}
