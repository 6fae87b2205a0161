// A run as something to use elsewhere: curl, Python, a method file, one HTML file.
import { keyed } from "./api.js";

const shell = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// A value as Python writes it.
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return "[" + value.map((one) => python(one)).join(", ") + "]";
  if (typeof value === "object") return "{" + Object.entries(value).map(([key, one]) => JSON.stringify(key) + ": " + python(one)).join(", ") + "}";
  return JSON.stringify(value);
}

const OPENAI = ["model", "prompt", "messages", "temperature", "max_tokens", "seed", "top_p"];

export const SNIPPETS = {
  curl: (body) => "curl -N " + location.origin + "/v1/" + (body.messages ? "chat/" : "") + "completions \\\n  -H 'Content-Type: application/json' \\\n  "
    + (keyed() ? '-H "Authorization: Bearer $DRAFTWOOD_API_KEY" \\\n  ' : "") + "-d " + shell(JSON.stringify({ ...body, stream: true }, null, 2)),
  Python: (body) => {
    const fields = Object.entries(body), known = ([name]) => OPENAI.includes(name);
    const extra = Object.fromEntries(fields.filter((field) => !known(field)));
    const lines = [...fields.filter(known), ["extra_body", extra]].map(([name, value]) => "    " + name + "=" + python(value) + ",\n");
    return (keyed() ? "import os\n\n" : "") + "from openai import OpenAI\n\nclient = OpenAI(base_url=" + JSON.stringify(location.origin + "/v1")
      + ", api_key=" + (keyed() ? 'os.environ["DRAFTWOOD_API_KEY"]' : '"-"') + ")\nanswer = client." + (body.messages ? "chat." : "") + "completions.create(\n" + lines.join("") + ")\nprint(answer.choices[0]." + (body.messages ? "message.content" : "text") + ")\n";
  },
  "method file": ({ speculation }) => JSON.stringify(speculation, null, 2) + "\n",
};

// The viewer as one offline file, with a run in it. No text of a model can end the element that holds the data.
export function offline(viewer, run) {
  const data = JSON.stringify(run).replace(/[<>&\u2028\u2029]/g, (bad) => "\\u" + bad.charCodeAt(0).toString(16).padStart(4, "0"));
  return viewer.replace("{{ data }}", () => data);
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
