// SPDX-License-Identifier: GPL-2.0-or-later
// Read locality: now, since the daemon's start, and as a line over the time that the daemon remembers.

import { drawn, element, mark, say } from "./element.js";
import { percent } from "./number.js";

const [WIDE, HIGH] = [1000, 100];
const SCALE = [1, 0.5, 0];

export class Locality {
  #text;
  #line;
  #plot;
  #since;
  #figure;

  constructor(text) {
    this.#text = text;
    this.#line = drawn("path", { d: "" });
    this.#since = element("span");
    const rules = SCALE.map((share) => drawn("line", { x1: 0, x2: WIDE, y1: height(share), y2: height(share) }));
    const box = { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img" };
    this.#plot = drawn("svg", box, ...rules, this.#line);
    const scale = element("p", { class: "scale" }, ...SCALE.map((share) => element("span", {}, percent(share, 0))));
    const axis = element("p", { class: "axis" }, this.#since, element("span", {}, "now"));
    this.#figure = element("figure", { class: "locality" }, scale, this.#plot, axis);
    text.after(this.#figure);
  }

  /** The daemon's status, and what it remembers of the time `over`. */
  show(status, { samples }, over) {
    say(this.#text, described(status));
    say(this.#since, over.began);
    const looks = samples.map(({ uptime_s, locality }) => ({ at: (WIDE * over.of(uptime_s)).toFixed(1), locality }));
    mark(this.#line, "d", path(looks.filter(({ at }) => at >= 0)));
    const shares = samples.map(({ locality }) => locality).filter((share) => share !== null);
    this.#figure.hidden = shares.length === 0;
    const range = `from ${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`;
    mark(this.#plot, "aria-label", `Read locality: ${range}`);
  }
}

function height(share) {
  return HIGH * (1 - share);
}

/** A line through the looks, broken where nothing was read. A look between two breaks is a point. */
function path(looks) {
  let under = false;
  const parts = looks.map(({ at, locality }) => {
    const [before, known] = [under, locality !== null];
    under = known;
    const here = known ? `${at} ${height(locality).toFixed(1)}` : "";
    return !known ? "" : before ? `L${here}` : `M${here}h0`;
  });
  return parts.join("");
}

/** Now, in the daemon's words; and since its start. */
function described(status) {
  const sum = (name, of) => (status.reads ?? []).reduce((bytes, nic) => bytes + nic[name][of], 0);
  const started = [["armed", "while armed"], ["unarmed", "while not armed"]].flatMap(([name, when]) => {
    const [local, remote] = [sum(name, "local"), sum(name, "remote")];
    return local + remote === 0 ? [] : [`${percent(local / (local + remote))} ${when}`];
  });
  return [`Now: ${status.locality_said}.`, started.length > 0 ? `Since start: ${started.join(", ")}.` : ""].join(" ").trim();
}
