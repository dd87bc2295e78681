// SPDX-License-Identifier: GPL-2.0-or-later
// Elements of the page. What the daemon says is set as text, never read as HTML: any user can
// choose the name of a process.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a string is text. */
export function element(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

/** The same, of a drawing. */
export function drawn(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

function dressed(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Set its text where it is another one: what stands there may be selected. */
export function say(where, text) {
  if (where.textContent !== text) {
    where.textContent = text;
  }
}

/** Set an attribute where it is another one; null takes it away. */
export function mark(where, name, value) {
  if (value === null) {
    where.removeAttribute(name);
  } else if (where.getAttribute(name) !== value) {
    where.setAttribute(name, value);
  }
}

/** Set its children, after those that `stay` there, where they are others or in another order. */
export function fill(where, children, stay = 0) {
  const there = [...where.children].slice(stay);
  if (children.length !== there.length || children.some((each, n) => each !== there[n])) {
    there.forEach((each) => each.remove());
    where.append(...children);
  }
}
