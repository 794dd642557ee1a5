// Elements, names and numbers: what all parts of the page use.

// order is the order of the levels, the most serious one first.
export const order = ['bad', 'warn', 'note', 'unknown', 'ok'];
export const marks = { bad: '×', warn: '!', note: '–', unknown: '?', ok: '✓', wait: '…' };

export const $ = (id) => document.getElementById(id);
export const count = (n, one, many = one + 's') => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
export const compare = (a, b) => a.localeCompare(b, 'en', { numeric: true });
export const route = (...parts) => '#/' + parts.map(encodeURIComponent).join('/');
export const clusterRoute = (c) => (c.absent ? route('context', c.context) : route('cluster', c.clusterSetID, c.clusterID));
export const serviceRoute = (set, key) => route('service', set, key.namespace, key.name);
export const seconds = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);
export const clock = (time) => new Date(time).toLocaleTimeString('en-GB', { timeZoneName: 'short' });
export const worst = (levels) => levels.reduce((a, b) => (order.indexOf(b) < order.indexOf(a) ? b : a), 'ok');

// names returns the first names of a list, and how many there are besides.
export const names = (list, limit) => list.slice(0, limit).join(', ') + (list.length > limit ? ` and ${list.length - limit} more` : '');

// printable replaces control characters and those that change the direction of writing, as the other commands do.
export const printable = (text) => String(text ?? '').replace(/[\p{Cc}\p{Bidi_Control}]/gu, ' ');

// el returns an element. Children are elements, or text.
export function el(name, attributes = {}, ...children) {
  const e = name === 'svg' || name === 'path' ? document.createElementNS($('arrows').namespaceURI, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.flat().filter((c) => c !== '').map((c) => (c instanceof Node ? c : printable(c))));
  return e;
}

// mark shows a level by form, colour and text, so that it can be seen without colours and heard.
export const mark = (level, state) => el('span', { class: 'mark', 'data-level': level, title: printable(state) }, el('span', { 'aria-hidden': 'true' }, marks[level]), el('span', { class: 'heard' }, state));

// badge shows a state with its mark.
export const badge = (level, state) => el('span', { class: 'badge', 'data-level': level }, el('span', { class: 'mark', 'data-level': level, 'aria-hidden': 'true' }, marks[level]), ` ${state}`);

// sync makes the children of container those of items, in their order. An element stays while its item does, so the focus stays too.
export function sync(container, items, key, make, draw) {
  const known = new Map([...container.children].map((e) => [e.key, e]));
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  let at = container.firstElementChild;
  for (const item of items) {
    const k = key(item);
    const e = known.get(k) ?? Object.assign(make(item), { key: k });
    known.delete(k);
    const drawn = JSON.stringify(item);
    if (e.drawn !== drawn) {
      draw(e, item);
      e.drawn = drawn;
    }
    if (e === at) at = at.nextElementSibling;
    else container.insertBefore(e, at);
  }
  for (const e of known.values()) e.remove();
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

// commands returns the commands in the text of a remedy. Names in it come from other clusters, so a command has only characters that mean nothing to a shell,
// and ends where the sentence does: a part of a command is none.
export const commands = (text) => (text.match(/kubectl(?: [\w.=:/@-]+(?:,[\w.=:/@-]+)*)+(?=$|[;,]| \()/g) ?? []).filter((c) => !/ (in|with|and|or|to|the|if) /.test(c));

// copyButton returns a button that copies a text.
export function copyButton(text) {
  const button = el('button', { type: 'button', class: 'copy', 'aria-label': `Copy ${printable(text)}` }, 'Copy');
  button.addEventListener('click', async () => {
    let done = 'Copied';
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = 'Not copied: select the text';
    }
    button.textContent = done;
    $('changes').textContent = done;
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
  return button;
}

// copyable returns a text with a button that copies it.
export const copyable = (text) => el('span', { class: 'copyable' }, el('code', {}, text), ' ', copyButton(text));

// page matches the address of a page of the documentation. Texts come from other clusters, so no other address is a link.
const page = /(https:\/\/github\.com\/cloud-map-mcs\/cloud-map-mcs-controller\/blob\/[\w.-]+\/docs\/[\w/-]+\.md(?:#[\w-]+)?)/;

// remedy returns the text of a remedy, in which each command can be copied, and each page of the documentation is a link with its name.
export const remedy = (text) => printable(text).split(page).flatMap((part, i) => (i % 2 ? el('a', { href: part, target: '_blank', rel: 'noreferrer' }, part.split('/docs/')[1]) : withCommands(part)));

function withCommands(text) {
  const out = [];
  let rest = text;
  for (const command of commands(rest)) {
    const at = rest.indexOf(command);
    out.push(rest.slice(0, at), copyable(command));
    rest = rest.slice(at + command.length);
  }
  return [...out, rest].filter(Boolean);
}

// ---- Keyboard: each list is one stop of the Tab key, arrow keys move within it

export const links = (container) => [...container.querySelectorAll('a, .fold')];

// keepOneTabStop makes the link that had the focus last the stop, or the first one.
export function keepOneTabStop(container) {
  const all = links(container);
  const stop = all.includes(container.visited) ? container.visited : all[0];
  for (const a of all) a.tabIndex = a === stop ? 0 : -1;
}

// move returns the index of the link that a key moves to. Columns is 1 for a table.
function move(key, at, length, columns) {
  const to = { ArrowDown: at + columns, ArrowUp: at - columns, ArrowRight: columns > 1 ? at + 1 : at, ArrowLeft: columns > 1 ? at - 1 : at, Home: 0, End: length - 1 }[key];
  return to === undefined ? -1 : Math.max(0, Math.min(length - 1, to));
}

// roving makes a list one stop.
export function roving(container) {
  container.addEventListener('keydown', (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const all = links(container);
    const top = container.firstElementChild?.offsetTop;
    const columns = container.tagName === 'UL' ? [...container.children].filter((e) => e.offsetTop === top).length : 1;
    const to = move(event.key, all.indexOf(document.activeElement), all.length, columns);
    if (to < 0) return;
    event.preventDefault();
    all[to].focus();
  });
  container.addEventListener('focusin', (event) => {
    container.visited = event.target;
    keepOneTabStop(container);
  });
}
