// SPDX-License-Identifier: GPL-2.0-or-later
// Moves that ended, over time: by their verdict, and by their mechanism.

import { drawn, element, fill, mark, say } from "./element.js";
import { counted, whole } from "./number.js";

const BIN_MS = 10_000;
const BINS = 60;
const GAP_MS = 60_000; // without a look: what ended meanwhile is of no known time
const HIGH = 100;
const GOOD = ["proven", "verified", "quiet", "done"];
const VERDICTS = [...GOOD, "unproven", "resync", "deferred", "superseded", "no effect", "refused", "violated"];
const MECHANISMS = ["birth", "follow", "hold", "gap", "none"];

export class Moves {
  #charts;
  #body;
  #table;
  #totals = new Map(); // by mechanism and verdict, since the daemon's start
  #bins = []; // {bin, key, count}
  #looked = null;

  constructor(where) {
    this.#charts = [new Chart("verdict", VERDICTS), new Chart("mechanism", MECHANISMS)];
    this.#body = element("tbody");
    const names = ["mechanism", "verdict", "10 minutes", "since start"];
    const heads = names.map((name) => element("th", { scope: "col" }, name));
    const head = element("thead", {}, element("tr", {}, ...heads));
    this.#table = element("table", { class: "totals" }, head, this.#body);
    where.append(...this.#charts.map((each) => each.whole), this.#table);
  }

  forget() {
    this.#looked = null;
    this.#totals.clear();
    this.#bins = [];
  }

  /** Counts as the daemon has them, at `now` in ms. */
  count(moves, now) {
    const known = this.#looked !== null && now - this.#looked < GAP_MS;
    for (const { mechanism, verdict, count } of moves) {
      const key = JSON.stringify([mechanism, verdict]);
      const more = count - (this.#totals.get(key) ?? 0);
      this.#totals.set(key, count);
      if (known && more > 0) {
        this.#bins.push({ bin: Math.floor(now / BIN_MS), mechanism, verdict, count: more });
      }
    }
    this.#looked = now;
  }

  show(now) {
    const last = Math.floor(now / BIN_MS);
    this.#bins = this.#bins.filter(({ bin }) => bin > last - BINS);
    this.#charts.forEach((chart) => chart.show(this.#bins, last));
    const rows = [...this.#totals].sort().map(([key, total]) => {
      const [mechanism, verdict] = JSON.parse(key);
      const late = this.#bins.filter((each) => each.mechanism === mechanism && each.verdict === verdict);
      return [mechanism, verdict, whole(sum(late)), whole(total)];
    });
    while (this.#body.rows.length > rows.length) {
      this.#body.deleteRow(-1);
    }
    rows.forEach((texts, n) => {
      const row = this.#body.rows[n] ?? this.#body.insertRow();
      texts.forEach((text, column) => say(row.cells[column] ?? row.insertCell(), text));
    });
    this.#table.hidden = rows.length === 0;
  }
}

/** Bars of 10 seconds, in parts. */
class Chart {
  #by;
  #order;
  #bars;
  #legend;
  #top;

  constructor(by, order) {
    this.#by = by;
    this.#order = order;
    this.#bars = drawn("svg", { viewBox: `0 0 ${BINS * 10} ${HIGH}`, preserveAspectRatio: "none", role: "img" });
    this.#legend = element("ul", { class: "legend" });
    this.#top = element("span");
    const axis = element("p", { class: "axis" }, element("span", {}, "10 min ago"), element("span", {}, "now"));
    const title = element("figcaption", {}, `By ${by}, each bar 10 seconds`, this.#top);
    this.whole = element("figure", { "data-by": by }, title, this.#bars, axis, this.#legend);
  }

  show(ended, last) {
    const found = new Set(ended.map((each) => each[this.#by]));
    const present = [...this.#order.filter((name) => found.delete(name)), ...found];
    const bars = Map.groupBy(ended, (each) => each.bin);
    const most = Math.max(1, ...[...bars.values()].map(sum));
    const parts = [...bars].flatMap(([bin, within]) => {
      let top = HIGH;
      return present.map((name) => {
        const height = (HIGH * sum(within.filter((each) => each[this.#by] === name))) / most;
        top -= height;
        return drawn("rect", { x: 10 * (BINS - 1 - last + bin), y: top, width: 9, height, "data-of": name });
      });
    });
    this.#bars.replaceChildren(...parts);
    const many = (name) => whole(sum(ended.filter((each) => each[this.#by] === name)));
    const said = present.map((name) => `${name} ${many(name)}`);
    mark(this.#bars, "aria-label", `Moves by ${this.#by}: ${said.join(", ") || "none"}`);
    fill(this.#legend, []);
    this.#legend.append(...present.map((name, n) => element("li", { "data-of": name }, said[n])));
    say(this.#top, ended.length > 0 ? `; the highest: ${counted(most, "move")}` : "; none yet");
  }
}

function sum(parts) {
  return parts.reduce((all, { count }) => all + count, 0);
}
