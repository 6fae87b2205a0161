// What the server is doing: its load, as it tells it while the page is open.
import { element } from "./viewer/dom.js";
import { Failure, events } from "./api.js";

const KEPT = 60, AGAIN = 1000, SVG = "http://www.w3.org/2000/svg"; // points; milliseconds

class Chart {
  constructor(place, title, about, show, most) {
    Object.assign(this, { show, most, values: [] });
    const root = element("figure", place);
    root.title = about;
    const head = element("figcaption", root, title);
    this.now = element("b", head, "–");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", "0 0 " + (KEPT - 1) + " 30");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", title + ": nothing yet");
    this.title = title;
    this.area = this.svg.appendChild(document.createElementNS(SVG, "path"));
    this.line = this.svg.appendChild(document.createElementNS(SVG, "path"));
    this.area.setAttribute("class", "area");
    root.append(this.svg);
  }

  add(value, words) {
    this.values = [...this.values, value].slice(-KEPT);
    const top = Math.max(this.most, ...this.values), first = KEPT - this.values.length;
    const points = this.values.map((one, i) => (first + i) + " " + (29 - 27 * one / top).toFixed(2));
    this.line.setAttribute("d", "M" + points.join("L"));
    this.area.setAttribute("d", "M" + points.join("L") + "L" + (KEPT - 1) + " 30L" + first + " 30Z");
    this.now.textContent = words ?? this.show(value);
    this.svg.setAttribute("aria-label", this.title + ": " + this.now.textContent);
  }
}

// Draws into `place` and calls `state(answers, error)` as the server answers or does not.
export class Load {
  constructor(place, state) {
    const whole = (x) => x.toFixed(0), share = (x) => (100 * x).toFixed(x < 0.1 ? 1 : 0) + "%";
    this.charts = {
      requests: new Chart(place, "Requests", "that run, and that wait in the queue", whole, 1),
      speed: new Chart(place, "Tokens/s", "of all requests together", whole, 1),
      kv: new Chart(place, "KV pool", "share of the memory for keys and values that is in use", share, 0.05),
      accepted: new Chart(place, "Accepted", "share of the drafts that were accepted, of all requests together", share, 1),
    };
    this.listen(state);
  }

  async listen(state) {
    for (;;) {
      try {
        for await (const [event, now] of events("v1/forest")) if (event === "load") { this.add(now); state(true); }
        state(false, new Failure("The server has ended.", 0));
      } catch (error) {
        state(false, error);
      }
      this.last = undefined;
      await new Promise((wake) => setTimeout(wake, AGAIN));
    }
  }

  add(now) {
    const { charts, last } = this, rise = (name) => Math.max(0, now[name] - last[name]);
    charts.requests.add(now.running + now.waiting, now.running + " running, " + now.waiting + " waiting");
    charts.kv.add(now.kv_budget ? now.kv_used / now.kv_budget : 0);
    if (last) {
      charts.speed.add(rise("tokens") / (now.time - last.time));
      charts.accepted.add(rise("drafted") ? rise("accepted") / rise("drafted") : 0, rise("drafted") ? undefined : "–");
    }
    this.last = now;
  }
}
