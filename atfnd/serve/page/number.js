// SPDX-License-Identifier: GPL-2.0-or-later
// Numbers as they are shown. Null is "not known": a dash.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const BITS = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];

export const UNKNOWN = "–";

/** 12,345 */
export function whole(value) {
  return value === null ? UNKNOWN : WHOLE.format(value);
}

/** 12.3K */
export function short(value) {
  return value === null ? UNKNOWN : SHORT.format(value < 10 ? Math.round(value) : value);
}

/** 1.5 Mbit/s */
export function bits(perSecond) {
  if (perSecond === null) {
    return UNKNOWN;
  }
  const step = Math.min(Math.max(Math.floor(Math.log10(Math.max(perSecond, 1)) / 3), 0), BITS.length - 1);
  return `${(perSecond / 1000 ** step).toLocaleString("en", { maximumSignificantDigits: 3 })} ${BITS[step]}`;
}

/** 98.3 %, of a share from 0 to 1 */
export function percent(share, digits = 1) {
  return share === null ? UNKNOWN : `${(100 * share).toFixed(digits)} %`;
}

/** 3 flows, 1 flow */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** The time that is drawn `now`, in seconds after the daemon's start: ten minutes, later an hour. `of`: where
 * a moment is in it, 0 to 1. */
export function lasting(now) {
  const short = now < 600;
  const seconds = short ? 600 : 3600;
  const name = short ? "last 10 minutes" : "last hour";
  const [began, bar] = short ? ["10 min ago", "10 seconds"] : ["an hour ago", "a minute"];
  return { now, seconds, name, began, bar, of: (then) => 1 - (now - then) / seconds };
}

/** 2 h 5 min */
export function span(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) {
    return `${Math.floor(seconds)} s`;
  }
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}
