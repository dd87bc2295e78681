// SPDX-License-Identifier: GPL-2.0-or-later
// Moves that ended, over the time that the daemon remembers: by their verdict, and by their mechanism.

import { drawn, element, fill, mark, say } from "./element.js";
import { counted, whole } from "./number.js";

const BINS = 60;
const HIGH = 100;
const GOOD = ["proven", "verified", "quiet", "done"];
const VERDICTS = [...GOOD, "unproven", "resync", "deferred", "superseded", "no effect", "refused", "violated"];
const MECHANISMS = ["birth", "follow", "hold", "gap", "none"];

export class Moves {
  #charts;
  #body;
  #table;
  #lately;
  #none;

  constructor(where) {
    this.#charts = [new Chart("verdict", VERDICTS), new Chart("mechanism", MECHANISMS)];
    this.#body = element("tbody");
    const heads = ["mechanism", "verdict", "lately", "since start"].map((name) => element("th", { scope: "col" }, name));
    this.#lately = heads[2];
    const head = element("thead", {}, element("tr", {}, ...heads));
    this.#table = element("table", { class: "totals" }, head, this.#body);
    this.#none = element("p");
    where.append(this.#none, ...this.#charts.map((each) => each.whole), this.#table);
  }

  /** Counts since the daemon's start, and what it remembers of the time `over`. */
  show(totals, { samples }, over) {
    const bin = (seconds) => Math.floor((BINS * seconds) / over.seconds);
    const last = bin(over.now);
    const ended = samples
      .flatMap(({ uptime_s, moves }) => moves.map((each) => ({ ...each, bin: bin(uptime_s) })))
      .filter((each) => each.bin > last - BINS);
    say(this.#none, `no move has ended in the ${over.name}`);
    this.#none.hidden = ended.length > 0;
    this.#charts.forEach((chart) => chart.show(ended, last, over));
    say(this.#lately, over.name);
    const rows = totals.map(({ mechanism, verdict, count }) => {
      const late = ended.filter((each) => each.mechanism === mechanism && each.verdict === verdict);
      return [mechanism, verdict, whole(sum(late)), whole(count)];
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

/** Bars in parts. */
class Chart {
  #by;
  #order;
  #bars;
  #legend;
  #title;
  #since;

  constructor(by, order) {
    this.#by = by;
    this.#order = order;
    this.#bars = drawn("svg", { viewBox: `0 0 ${BINS * 10} ${HIGH}`, preserveAspectRatio: "none", role: "img" });
    this.#legend = element("ul", { class: "legend" });
    this.#title = element("figcaption");
    this.#since = element("span");
    const axis = element("p", { class: "axis" }, this.#since, element("span", {}, "now"));
    this.whole = element("figure", { "data-by": by }, this.#title, this.#bars, axis, this.#legend);
  }

  show(ended, last, over) {
    this.whole.hidden = ended.length === 0;
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
    mark(this.#bars, "aria-label", `Moves by ${this.#by}: ${said.join(", ")}`);
    fill(this.#legend, []);
    this.#legend.append(...present.map((name, n) => element("li", { "data-of": name }, said[n])));
    say(this.#title, `By ${this.#by}, each bar ${over.bar}; the highest: ${counted(most, "move")}`);
    say(this.#since, over.began);
  }
}

function sum(parts) {
  return parts.reduce((all, { count }) => all + count, 0);
}
