// SPDX-License-Identifier: GPL-2.0-or-later
// Read locality: now, since the daemon's start, and as a line of the last 10 minutes, for as long as
// the page has been open.

import { drawn, element, mark, say } from "./element.js";
import { percent } from "./number.js";

const LAST_MS = 600_000;
const [WIDE, HIGH] = [1000, 100];
const SCALE = [1, 0.5, 0];

export class Locality {
  #text;
  #line;
  #plot;
  #figure;
  #looks = []; // {at, share}; a share of null breaks the line

  constructor(text) {
    this.#text = text;
    this.#line = drawn("path", { d: "" });
    const rules = SCALE.map((share) => drawn("line", { x1: 0, x2: WIDE, y1: height(share), y2: height(share) }));
    const box = { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img" };
    this.#plot = drawn("svg", box, ...rules, this.#line);
    const scale = element("p", { class: "scale" }, ...SCALE.map((share) => element("span", {}, percent(share, 0))));
    const axis = element("p", { class: "axis" }, element("span", {}, "10 min ago"), element("span", {}, "now"));
    this.#figure = element("figure", { class: "locality" }, scale, this.#plot, axis);
    text.after(this.#figure);
  }

  /** From `now` in ms until the next look nothing is known. */
  forget(now) {
    this.#add(now, null);
  }

  /** The daemon's status, at `now` in ms. */
  count(status, now) {
    this.#add(now, status.locality);
  }

  show(status, now) {
    say(this.#text, described(status));
    this.#figure.hidden = status.reads === null;
    mark(this.#line, "d", path(this.#looks, now));
    const shares = this.#looks.map(({ share }) => share).filter((share) => share !== null);
    const range = `from ${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`;
    const seen = shares.length > 0 ? range : "nothing read";
    mark(this.#plot, "aria-label", `Read locality of the last 10 minutes: ${seen}`);
  }

  #add(at, share) {
    this.#looks = this.#looks.filter((look) => look.at > at - LAST_MS);
    this.#looks.push({ at, share });
  }
}

function height(share) {
  return HIGH * (1 - share);
}

/** A line through the looks, broken where nothing is known. A look between two breaks is a point. */
function path(looks, now) {
  let under = false;
  const parts = looks.map(({ at, share }) => {
    const [before, known] = [under, share !== null];
    under = known;
    const here = known ? `${(WIDE * (1 - (now - at) / LAST_MS)).toFixed(1)} ${height(share).toFixed(1)}` : "";
    return !known ? "" : before ? `L${here}` : `M${here}h0`;
  });
  return parts.join("");
}

/** In the words of `atfnctl status`. */
function described(status) {
  if (status.reads === null) {
    return `Not measured: the ${status.observer} observer does not see where packets go.`;
  }
  const sum = (name, of) => status.reads.reduce((bytes, nic) => bytes + nic[name][of], 0);
  const started = [["armed", "while armed"], ["unarmed", "while not armed"]].flatMap(([name, when]) => {
    const [local, remote] = [sum(name, "local"), sum(name, "remote")];
    return local + remote === 0 ? [] : [`${percent(local / (local + remote))} ${when}`];
  });
  const since = started.length > 0 ? `Since start: ${started.join(", ")}.` : "";
  return `${lately(status, sum)} ${since}`.trim();
}

function lately(status, sum) {
  if (status.locality !== null) {
    return `Now: ${percent(status.locality)}.`;
  }
  if (sum("recent", "unseen") > 0) {
    return "Not known now: the kernel keeps no CPU for unconnected UDP, and nothing else was read.";
  }
  const ever = ["armed", "unarmed"].some((name) => ["local", "remote", "unseen"].some((of) => sum(name, of) > 0));
  return ever ? "No data read lately." : "No data read yet.";
}
