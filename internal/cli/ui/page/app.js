// The page of kubectl mcs ui. The server sends one document, Clusterset in clusterset.go, each time that it has read the controllers.
//
// Names come from other clusters. All text is set as text, never as HTML, and the addresses of links are encoded.

// levels are how serious the states are: of clusters, then of services. A state such as "drained 30%" counts by its first word.
const levels = {
  cluster: { stale: 'bad', unreachable: 'bad', problem: 'bad', drained: 'note', ok: 'ok' },
  service: { problem: 'bad', 'no endpoints': 'bad', conflict: 'warn', stale: 'warn', drained: 'note', 'not imported here': 'note', ok: 'ok' },
};
const order = ['bad', 'warn', 'note', 'ok'];
const marks = { bad: '×', warn: '!', note: '–', ok: '✓', wait: '…' };
const results = { ok: 'ok', warning: 'warn', failed: 'bad', missing: 'bad', unknown: 'note' };
const compactFrom = 25; // with more clusters the cells have one line
const rowsAtOnce = 200; // rows of a table that are drawn at once

const $ = (id) => document.getElementById(id);
const count = (n, one, many = one + 's') => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
const kind = (state) => (state.startsWith('drained') ? 'drained' : state);
const route = (...parts) => '#/' + parts.map(encodeURIComponent).join('/');
const clusterRoute = (c) => route('cluster', c.clusterSetID, c.clusterID);
const serviceRoute = (s) => route('service', s.clusterSetID, s.key.namespace, s.key.name);
const compare = (a, b) => a.localeCompare(b, 'en', { numeric: true });

// printable replaces control characters and those that change the direction of writing, as the other commands do.
const printable = (text) => String(text ?? '').replace(/[\p{Cc}\p{Bidi_Control}]/gu, ' ');

// el returns an element. Children are elements, or text.
function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.flat().filter((c) => c !== '').map((c) => (c instanceof Node ? c : printable(c))));
  return e;
}

// mark shows a level by form, colour and text, so that it can be seen without colours and heard.
const mark = (level, state) => el('span', { class: 'mark', 'data-level': level, title: state }, el('span', { 'aria-hidden': 'true' }, marks[level]), el('span', { class: 'heard' }, state));

const seconds = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);
const ports = (list) => (list ?? []).map((p) => `${p.port}/${p.protocol}`).join(', ');
const sum = (list, field) => list.reduce((n, item) => n + item[field], 0);

// names returns the first names of a list, and how many there are besides.
const names = (list, limit) => list.slice(0, limit).join(', ') + (list.length > limit ? ` and ${list.length - limit} more` : '');

// The token is in the fragment of the URL that was printed. The tab keeps it for reloads; the address bar and the history do not.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (!given) return false;
  sessionStorage.setItem('token', given);
  history.replaceState(null, '', location.pathname);
  return true;
}

takeToken();
const token = sessionStorage.getItem('token') ?? '';

async function ask(path, signal) {
  const response = await fetch(path, { headers: { Authorization: `Bearer ${token}` }, signal });
  if (!response.ok) throw Object.assign(new Error((await response.text()).trim()), { refused: response.status === 401 });
  return response;
}

// ---- State of the page

let set; // the last document
let previous; // state by name, for the announcement of changes
let limit = rowsAtOnce;
const lists = {
  cluster: { section: $('clusters'), text: '', state: '', items: [] },
  service: { section: $('services'), text: '', state: '', items: [] },
};

// prepare adds to each item its level, and the text that the filter searches.
function prepare(what, items, text) {
  for (const item of items) {
    item.kind = kind(item.state);
    item.level = levels[what][item.kind] ?? 'note';
    item.text = text(item).toLowerCase();
  }
  return items;
}

function show(document_) {
  set = document_;
  lists.cluster.items = prepare('cluster', set.clusters, (c) => [c.clusterID, c.version, c.context, c.state].join(' '));
  lists.service.items = prepare('service', set.services, (s) => [`${s.key.namespace}/${s.key.name}`, s.state, s.type, ...s.exports.map((e) => e.cluster)].join(' '));
  const common = commonVersion();
  for (const c of set.clusters) c.other = c.version !== common;
  for (const list of Object.values(lists)) {
    list.items.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level) || compare(a.state, b.state) || Boolean(b.other) - Boolean(a.other)
      || (a.clusterID ? compare(a.clusterID, b.clusterID) : compare(a.key.namespace, b.key.namespace) || compare(a.key.name, b.key.name)));
  }
  drawHeader();
  drawProblems();
  drawClusters();
  drawServices();
  drawDetail(false);
  announce();
}

// ---- Header and problems

function drawHeader() {
  const sets = [...new Set(set.status.map((c) => c.status?.identity?.clusterSetID).filter(Boolean))];
  $('set').textContent = printable(sets.join(', ') || 'no clusterset');
  document.title = printable(`${set.problems.length ? `(${set.problems.length}) ` : ''}${sets.join(', ')} – clusterset`);
  $('contexts').textContent = printable(names(set.status.map((c) => c.context), 6));
  const calls = set.status.reduce((n, c) => n + sum(c.status?.requests ?? [], 'count'), 0);
  const figures = [
    ['clusters', set.clusters.length], ['services', set.services.length], ['endpoints', sum(set.clusters, 'endpoints')],
    ['problems', set.problems.length], ['calls/min', calls],
  ];
  $('figures').replaceChildren(...figures.map(([name, n]) => el('div', { 'data-level': name === 'problems' && n ? 'bad' : false }, el('dt', {}, name), el('dd', {}, n.toLocaleString('en')))));
}

function drawProblems() {
  const section = $('problems');
  section.hidden = set.problems.length === 0;
  $('problems-title').textContent = count(set.problems.length, 'problem');
  sync(section.querySelector('ul'), set.problems, (p) => p.text, () => el('li'), (li, p) => { li.textContent = printable(`${p.text}; ${p.remedy}`); });
}

// ---- Lists

// sync makes the children of container those of items, in their order. An element stays while its item does, so the focus stays too.
function sync(container, items, key, make, draw) {
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

const matching = (list) => list.items.filter((i) => (!list.state || i.kind === list.state) && list.text.split(/\s+/).every((word) => i.text.includes(word)));

// drawStates draws a button for each state, which shows only the items in it.
function drawStates(list) {
  const counts = new Map();
  for (const item of list.items) counts.set(item.kind, { level: item.level, n: (counts.get(item.kind)?.n ?? 0) + 1 });
  if (list.state && !counts.has(list.state)) counts.set(list.state, { level: 'note', n: 0 });
  const states = [...counts].map(([state, { level, n }]) => ({ state, level, n, pressed: list.state === state }));
  sync(list.section.querySelector('.states'), states, (s) => s.state, ({ state }) => {
    const button = el('button', { type: 'button' });
    button.addEventListener('click', () => {
      list.state = list.state === state ? '' : state;
      redraw();
    });
    return button;
  }, (button, s) => {
    button.dataset.level = s.level;
    button.setAttribute('aria-pressed', s.pressed);
    button.replaceChildren(el('span', { class: 'mark', 'data-level': s.level, 'aria-hidden': 'true' }, marks[s.level]), ` ${s.state} `, el('b', {}, s.n.toLocaleString('en')));
  });
}

function drawEmpty(list, shown) {
  list.section.querySelector('.empty').hidden = shown > 0 || !set;
  keepOneTabStop(list.section.querySelector('.items'));
}

function redraw() {
  if (!set) return;
  drawClusters();
  drawServices();
}

// ---- Clusters

// commonVersion returns the version that most clusters run: a cell shows only another one.
function commonVersion() {
  const n = new Map();
  for (const c of set.clusters) n.set(c.version, (n.get(c.version) ?? 0) + 1);
  return [...n].sort((a, b) => b[1] - a[1])[0]?.[0];
}

const pathText = (c) => {
  const paths = c.paths ?? [];
  const reached = paths.filter((p) => p.state === 'Reachable').length;
  return paths.length ? `path ok from ${reached} of ${paths.length}` : 'path not checked from here';
};

function drawClusters() {
  const list = lists.cluster;
  const shown = matching(list);
  const compact = list.items.length >= compactFrom;
  const grid = list.section.querySelector('.items');
  grid.classList.toggle('compact', compact);
  grid.style.setProperty('--id', `${Math.min(24, Math.max(6, ...list.items.map((c) => c.clusterID.length)))}ch`);
  drawStates(list);
  const cells = shown.map((c) => ({ c, compact }));
  sync(grid, cells, ({ c }) => clusterRoute(c), ({ c }) => el('li', {}, el('a', { href: clusterRoute(c), tabindex: -1 })), (li, cell) => {
    const side = compact ? compactSide(cell.c) : '';
    li.classList.toggle('double', side !== '');
    li.firstChild.dataset.level = cell.c.level;
    li.firstChild.title = printable(`${cell.c.clusterID}: ${cell.c.state}, heartbeat ${seconds(cell.c.heartbeatAgeSeconds)} ago, ${cell.c.version}, ${pathText(cell.c)}`);
    li.firstChild.replaceChildren(...(compact ? compactCell(cell.c, side) : card(cell.c)));
  });
  drawEmpty(list, shown.length);
}

// compactSide is what a cell of one line shows besides the ID: why it is not like the others.
const compactSide = (c) => (c.kind === 'stale' ? `stale ${seconds(c.heartbeatAgeSeconds)}` : c.kind === 'ok' ? (c.other ? c.version : '') : c.state);

const compactCell = (c, side) => [c.level === 'ok' ? el('span', { class: 'heard' }, c.state) : mark(c.level, c.state), el('span', { class: 'id' }, c.clusterID), side ? el('span', { class: c.level === 'ok' ? 'side other' : 'side' }, side) : ''];

function card(c) {
  return [
    el('span', { class: 'top' }, mark(c.level, c.state), el('span', { class: 'id' }, c.clusterID), el('span', { class: 'state' }, c.state)),
    el('span', {}, `heartbeat ${seconds(c.heartbeatAgeSeconds)} ago · `, el('span', { class: c.other ? 'other' : '' }, c.version)),
    el('span', {}, `${count(c.exports, 'export')} · ${count(c.endpoints, 'endpoint')}`),
    el('span', {}, pathText(c)),
  ];
}

// ---- Services

function drawServices() {
  const list = lists.service;
  const all = matching(list);
  const shown = all.slice(0, limit);
  drawStates(list);
  sync(list.section.querySelector('.items'), shown, serviceRoute, (s) => el('tr', {}, el('td'), el('th', { scope: 'row' }, el('a', { href: serviceRoute(s), tabindex: -1 })), el('td'), el('td'), el('td'), el('td', { class: 'number' })), drawService);
  const more = list.section.querySelector('.more');
  more.hidden = all.length <= shown.length;
  more.textContent = `Show ${Math.min(rowsAtOnce, all.length - shown.length)} more of ${count(all.length, 'service')}`;
  drawEmpty(list, shown.length);
}

function drawService(tr, s) {
  const [state, name, portCell, exporters, importers, endpoints] = tr.children;
  tr.dataset.level = s.level;
  state.replaceChildren(stateBadge(s));
  name.firstChild.replaceChildren(el('span', { class: 'namespace' }, s.key.namespace + '/'), s.key.name);
  portCell.textContent = s.type === 'Headless' ? `${ports(s.ports)} headless` : ports(s.ports);
  exporters.replaceChildren(...chips(s.exports.map(exporter).sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level)), 3));
  importers.replaceChildren(...importersOf(s, 2));
  endpoints.textContent = s.exports.length ? `${sum(s.exports, 'ready')} of ${sum(s.exports, 'endpoints')}` : '';
}

const stateBadge = (item) => el('span', { class: 'badge', 'data-level': item.level }, el('span', { class: 'mark', 'data-level': item.level, 'aria-hidden': 'true' }, marks[item.level]), ` ${item.state}`);

// exporter is the chip of a cluster that exports a service.
const exporter = (e) => ({ name: e.cluster, level: e.stale ? 'warn' : e.drain ? 'note' : 'ok', text: e.stale ? 'stale' : e.drain ? `drained ${e.drain}` : '' });

// chips returns the clusters of a list, or the first ones and how many there are besides.
function chips(clusters, most, unknown = false) {
  const shown = clusters.length > most ? most - 1 : clusters.length;
  const out = clusters.slice(0, shown).map((c) => el('span', { class: 'chip', 'data-level': c.text ? c.level : false }, c.name, c.text ? ` (${c.text})` : ''));
  if (clusters.length > shown) out.push(el('span', { class: 'muted', title: printable(names(clusters.slice(shown).map((c) => c.name), 50)) }, `+${clusters.length - shown}${unknown ? ' or more' : ' '}`));
  return out;
}

function importersOf(s, most) {
  const { importing = [], importingNamespace = [], notReporting = [] } = s.importers;
  const out = chips(importing.map((name) => ({ name })), most, !s.importersKnown);
  const silent = importingNamespace.length + notReporting.length;
  const muted = (text, title) => out.push(el('span', { class: 'muted', title }, text));
  if (!s.importersKnown) {
    if (importing.length <= most) muted(importing.length ? 'others?' : 'unknown', 'The clusters that import a service are known from the contexts of all clusters that export it.');
  } else if (silent) muted(`${silent} not reported`);
  else if (!importing.length) muted('none');
  return out;
}

// ---- Detail

let opened = ''; // the route of the detail
let stop; // ends the request of the diagnosis

function find() {
  const [what, ...rest] = location.hash.startsWith('#/') ? location.hash.slice(2).split('/') : [];
  if (!set || !lists[what]) return null;
  const item = lists[what].items.find((i) => (what === 'cluster' ? clusterRoute(i) : serviceRoute(i)) === route(what, ...rest.map(decode)));
  return { what, item, title: rest.slice(1).map(decode).join('/') };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// drawDetail draws the cluster or service that the address names. The diagnosis below it is made when the detail opens.
function drawDetail(anew = true) {
  const found = find();
  const dialog = $('detail');
  if (!found) {
    stop?.abort();
    opened = '';
    if (dialog.open) dialog.close();
    return;
  }
  const first = opened !== location.hash;
  if (first) {
    stop?.abort();
    opened = location.hash;
    $('detail-title').textContent = printable(found.title);
    $('detail-body').replaceChildren(el('div', { id: 'facts' }), found.what === 'service' ? el('section', { id: 'steps', 'aria-labelledby': 'steps-title' }) : '');
  }
  $('detail-state').replaceChildren(found.item ? stateBadge(found.item) : el('span', { class: 'muted' }, 'not in the clusterset now'));
  if (found.item) sync($('facts'), [found.item], () => opened, () => el('div'), (e, item) => e.replaceChildren(...(found.what === 'cluster' ? clusterFacts(item) : serviceFacts(item))));
  if (!dialog.open) dialog.showModal();
  if (first && found.what === 'service' && found.item) diagnose(found.item, false);
  if (first && anew) dialog.scrollTop = 0;
}

const facts = (...rows) => el('dl', { class: 'facts' }, rows.filter(([, value]) => value !== '' && value !== undefined).flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
const problems = (title, list) => (list?.length ? [el('h3', {}, title), el('ul', { class: 'problems' }, list.map((p) => el('li', {}, p)))] : []);

function table(title, header, rows) {
  if (!rows.length) return [];
  return [el('h3', {}, title), el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, header.map((h) => el('th', { scope: 'col' }, h)))),
    el('tbody', {}, rows.slice(0, rowsAtOnce).map((cells) => el('tr', {}, cells.map((c) => el('td', {}, c))))))),
  rows.length > rowsAtOnce ? el('p', { class: 'muted' }, `and ${rows.length - rowsAtOnce} more`) : ''];
}

function clusterFacts(c) {
  const exported = lists.service.items.filter((s) => s.clusterSetID === c.clusterSetID && s.exports.some((e) => e.cluster === c.clusterID));
  const targets = (p) => (p.targets ? `${Math.min(p.reached, p.targets)} of ${p.targets}` : 'none');
  return [
    facts(['Clusterset', c.clusterSetID], ['Context', c.context ?? 'none of those that the page was started with'], ['Heartbeat', `${seconds(c.heartbeatAgeSeconds)} ago`],
      ['Version', c.version], ['Exports', `${count(c.exports, 'service')}, ${count(c.endpoints, 'endpoint')}`], ['Drained', c.drain ?? ''],
      ['Unknown', c.unknown ? `the state of ${count(c.unknown, 'service')}` : ''], ['UID', c.uid], ['Public key', c.key ?? '']),
    ...problems('Problems', c.problems),
    ...table('Paths to its pods', ['From', 'State', 'Since', 'Controller', 'Endpoints', 'Last notification'], (c.paths ?? []).map((p) => [
      p.from, (p.state || 'not decided').toLowerCase() + (p.faultHere ? ', and most others too: the fault is probably there' : ''), seconds(p.seconds), targets(p.controller), targets(p.endpoints),
      p.notificationAgeSeconds === undefined ? 'none' : `${seconds(p.notificationAgeSeconds)} ago`])),
    ...table('Services that it exports', ['Service', 'State', 'Ready endpoints'], exported.map((s) => {
      const e = s.exports.find((x) => x.cluster === c.clusterID);
      return [el('a', { href: serviceRoute(s) }, `${s.key.namespace}/${s.key.name}`), stateBadge(s), `${e.ready} of ${e.endpoints}`];
    })),
  ].filter((x) => x !== '');
}

function serviceFacts(s) {
  const link = (id) => el('a', { href: route('cluster', s.clusterSetID, id) }, id);
  return [
    el('div', { class: 'flow' },
      el('div', {}, el('h3', {}, 'Exported by'), el('p', {}, chips(s.exports.map((e) => ({ name: e.cluster })), 12))),
      el('div', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
      el('div', { class: 'middle' }, el('p', {}, `${s.key.name}.${s.key.namespace}.svc.clusterset.local`), el('p', { class: 'muted' }, [s.type, ports(s.ports)].filter(Boolean).join(' · '))),
      el('div', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
      el('div', {}, el('h3', {}, 'Imported by'), el('p', {}, importersOf(s, 12)))),
    ...problems('Problems', s.problems),
    ...problems('Conflicts', s.conflicts),
    ...table('Exports', ['Cluster', 'Since', 'Ready endpoints', 'Stale', 'Drained', 'Tiers', 'For'], s.exports.map((e) => [
      link(e.cluster), e.created ? e.created.replace('T', ' ').replace('Z', '') : '', `${e.ready} of ${e.endpoints}`, e.stale ? 'stale' : 'no', e.drain || 'no', e.clusterSelectors || 'none', e.recipients || 'all clusters'])),
    ...(s.others?.length ? [el('p', { class: 'muted' }, `Also exported, for other clusters or to a namespace that is not imported, by ${names(s.others, 16)}.`)] : []),
  ].filter((x) => x !== '');
}

// diagnose follows a service as kubectl mcs diagnose does.
async function diagnose(s, probe) {
  const section = $('steps');
  stop?.abort();
  stop = new AbortController();
  const { signal } = stop;
  const button = el('button', { type: 'button', disabled: true }, 'Test DNS and connections');
  button.addEventListener('click', () => diagnose(s, true));
  const body = el('div', { role: 'status', 'aria-busy': 'true' }, el('p', { class: 'muted' }, probe ? 'Testing DNS and connections…' : 'Checking each step…'));
  section.replaceChildren(el('div', { class: 'bar' }, el('h3', { id: 'steps-title' }, 'Step by step'), button), body);
  try {
    const response = await ask(`/api/diagnose/${encodeURIComponent(s.key.namespace)}/${encodeURIComponent(s.key.name)}${probe ? '?probe=true' : ''}`, signal);
    const d = await response.json();
    body.replaceChildren(...diagnosis(d, probe));
  } catch (error) {
    if (signal.aborted) return;
    body.replaceChildren(el('p', { class: 'failure' }, `The service could not be checked: ${error.message}`));
  }
  body.setAttribute('aria-busy', 'false');
  button.disabled = false;
}

function diagnosis(d, probe) {
  const failure = d.failure
    ? el('div', { class: 'failure' }, el('p', {}, el('b', {}, `Failed in ${d.failure.context} at ${d.failure.name}: `), d.failure.detail), d.failure.remedy ? el('p', {}, 'Remedy: ', el('code', {}, d.failure.remedy)) : '')
    : d.phases.some((p) => p.steps.some((step) => step.result === 'unknown'))
    ? el('p', {}, mark('note', 'unknown'), ' No step failed, but some are unknown.')
    : el('p', { class: 'passed' }, mark('ok', 'ok'), probe ? ' No step failed.' : ' No step failed. DNS and connections were not tested.');
  return [failure, ...d.phases.flatMap((p) => [
    el('h4', {}, `${p.name} in ${p.context}`),
    el('ol', { class: 'steps' }, p.steps.map((step) => el('li', { 'data-level': results[step.result] ?? 'note' },
      mark(results[step.result] ?? 'note', step.result), el('span', { class: 'step' }, step.name),
      el('span', {}, step.detail, step.remedy ? el('span', { class: 'remedy' }, el('b', {}, 'Remedy: '), step.remedy) : '')))),
  ])];
}

// ---- Changes, for screen readers

function announce() {
  const states = new Map([...set.clusters.map((c) => ['cluster ' + c.clusterID, c.state]), ...set.services.map((s) => [`service ${s.key.namespace}/${s.key.name}`, s.state])]);
  if (previous) {
    const changes = [...states].filter(([name, state]) => previous.get(name) !== state).map(([name, state]) => (previous.has(name) ? `${name} is ${state}` : `${name} is new`));
    for (const name of previous.keys()) if (!states.has(name)) changes.push(`${name} is gone`);
    if (changes.length) $('changes').textContent = printable(names(changes, 3));
  }
  previous = states;
}

// ---- Keyboard: each list is one stop of the Tab key, arrow keys move within it

const links = (container) => [...container.querySelectorAll('a')];

// keepOneTabStop makes the link that had the focus last the stop, or the first one.
function keepOneTabStop(container) {
  const all = links(container);
  const stop = all.includes(container.visited) ? container.visited : all[0];
  for (const a of all) a.tabIndex = a === stop ? 0 : -1;
}

// move returns the index of the link that a key moves to. Columns is 1 for a table.
function move(key, at, length, columns) {
  const to = { ArrowDown: at + columns, ArrowUp: at - columns, ArrowRight: columns > 1 ? at + 1 : at, ArrowLeft: columns > 1 ? at - 1 : at, Home: 0, End: length - 1 }[key];
  return to === undefined ? -1 : Math.max(0, Math.min(length - 1, to));
}

for (const list of Object.values(lists)) {
  const container = list.section.querySelector('.items');
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
  container.addEventListener('click', (event) => {
    const row = event.target.closest('tr');
    if (row && !event.target.closest('a') && !getSelection().toString()) row.querySelector('a').click();
  });
  const input = list.section.querySelector('input');
  input.addEventListener('input', () => {
    list.text = input.value.trim().toLowerCase();
    limit = rowsAtOnce;
    redraw();
  });
  input.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown') {
      event.preventDefault();
      container.querySelector('a')?.focus();
    }
  });
}
$('services').querySelector('.more').addEventListener('click', () => {
  limit += rowsAtOnce;
  redraw();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.matches('input') || $('detail').open) return;
  event.preventDefault();
  (document.activeElement?.closest('section') ?? $('clusters')).querySelector('input')?.focus();
});

const leave = () => { if (location.hash.startsWith('#/')) location.hash = ''; };
$('close').addEventListener('click', leave);
$('detail').addEventListener('click', (event) => { if (event.target === $('detail')) leave(); });
$('detail').addEventListener('close', leave);
addEventListener('hashchange', () => (takeToken() ? location.reload() : drawDetail()));

// ---- Data

function live(level, text) {
  $('live').dataset.level = level;
  $('live-text').textContent = text;
}

// follow shows each document of the server, and connects again when the connection ends.
async function follow() {
  for (;;) {
    try {
      const reader = (await ask('/api/events')).body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ''; ;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = (rest + value).split('\n\n');
        rest = events.pop();
        if (events.length) {
          show(JSON.parse(events.at(-1).replaceAll(/^data: /gm, '')));
          live('ok', `live, read at ${new Date(set.time).toLocaleTimeString('en-GB')}`);
        }
      }
      throw new Error('the connection ended');
    } catch (error) {
      if (error.refused) {
        live('bad', error.message);
        return;
      }
      live('bad', `no connection to kubectl mcs ui${set ? ` since ${new Date(set.time).toLocaleTimeString('en-GB')}` : ''}: ${error.message}`);
    }
    await new Promise((resume) => setTimeout(resume, 2000));
  }
}

follow();
