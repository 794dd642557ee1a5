// The page of kubectl mcs ui. The server sends one document, Clusterset in clusterset.go, each time that it has read the controllers.
//
// Names come from other clusters. All text is set as text, never as HTML, and the addresses of links are encoded.

import { $, badge, clock, clusterRoute, compare, copyable, count, el, keepOneTabStop, links, mark, marks, names, order, printable, remedy, route, roving, seconds, serviceRoute, sync, worst } from './dom.js';
import { followHistory, showIn } from './history.js';
import { drawMap, drawPaths } from './map.js';

// levels are how serious the states are: of clusters and contexts, then of services. A state such as "drained 30%" counts by its first word.
const levels = {
  cluster: {
    stale: 'bad', unreachable: 'bad', problem: 'bad', crashing: 'bad', 'not started': 'bad', 'without pods': 'bad', 'not installed': 'bad', 'not found': 'bad', 'scaled to zero': 'bad',
    'registry failing': 'bad', 'imports failing': 'bad', 'exports failing': 'bad', 'identity problem': 'bad',
    'no leader': 'warn', starting: 'warn', 'registry not read': 'warn', 'no permission': 'unknown', 'not a member': 'note', drained: 'note', ok: 'ok',
  },
  service: { problem: 'bad', 'no endpoints': 'bad', conflict: 'warn', stale: 'warn', drained: 'note', 'not imported here': 'note', ok: 'ok' },
};
const results = { ok: 'ok', warning: 'warn', failed: 'bad', missing: 'bad', unknown: 'unknown' };
const compactFrom = 25; // with more clusters the cells have one line
const foldFrom = 20; // with more services the namespaces fold
const rowsAtOnce = 200; // rows of a table that are drawn at once
const problemsAtOnce = 5;

const kind = (state) => (state.startsWith('drained') ? 'drained' : state);
const routeOf = (s) => serviceRoute(s.clusterSetID, s.key);
const ports = (list) => (list ?? []).map((p) => `${p.port}/${p.protocol}`).join(', ');
const sum = (list, field) => list.reduce((n, item) => n + item[field], 0);

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
let allProblems = false; // whether all of them are shown
const folds = new Map(); // by namespace, and by namespace and '#ok': whether the user has opened it
const sorting = { column: '', down: false };
const lists = {
  cluster: { section: $('clusters'), text: '', state: '', items: [] },
  service: { section: $('services'), text: '', state: '', items: [] },
};

// prepare adds to each item its level, and the text that the filter searches.
function prepare(what, items, text) {
  for (const item of items) {
    item.kind = kind(item.state);
    item.level = levels[what][item.kind] ?? 'unknown';
    item.text = text(item).toLowerCase();
  }
  return items;
}

// clusterItems returns the clusters, and the contexts of which no cluster is known. A cluster is not ok if its controller is not.
function clusterItems() {
  const states = new Map(set.contexts.map((c) => [c.context, c]));
  const clusters = set.clusters.map((c) => {
    const controller = states.get(c.context);
    return c.state === 'ok' && controller && controller.state !== 'ok' ? { ...c, state: controller.state, controller } : { ...c, controller };
  });
  return [...clusters, ...set.contexts.filter((c) => !c.hasCluster).map((c) => ({ ...c, absent: true, clusterSetID: '', clusterID: c.context, version: '' }))];
}

function show(document_) {
  set = document_;
  lists.cluster.items = prepare('cluster', clusterItems(), (c) => [c.clusterID, c.version, c.context, c.state].join(' '));
  set.clusters = lists.cluster.items.filter((c) => !c.absent);
  lists.service.items = prepare('service', set.services, (s) => [`${s.key.namespace}/${s.key.name}`, s.state, s.type, ...s.exports.map((e) => e.cluster)].join(' '));
  const common = commonVersion();
  for (const c of set.clusters) c.other = c.version !== common;
  for (const list of Object.values(lists)) {
    list.items.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level) || compare(a.state, b.state) || Boolean(b.other) - Boolean(a.other)
      || (a.clusterID ? compare(a.clusterID, b.clusterID) : compare(a.key.namespace, b.key.namespace) || compare(a.key.name, b.key.name)));
  }
  drawHeader();
  drawProblems();
  redraw();
  showIn(set);
  drawDetail(false);
  announce();
}

// ---- Header and problems

function drawHeader() {
  const sets = [...new Set(set.status.map((c) => c.status?.identity?.clusterSetID).filter(Boolean))];
  const title = sets.join(', ') || (set.status.every((c) => c.status) ? 'no clusterset' : 'unknown');
  $('set').textContent = printable(title);
  document.title = printable(`${set.problems.length ? `(${set.problems.length}) ` : ''}${title} – clusterset`);
  $('contexts').textContent = printable(names(set.status.map((c) => c.context), 6));
  const figures = [
    ['cluster', set.clusters.length], ['service', set.services.length], ['endpoint', sum(set.clusters, 'endpoints')], ['problem', set.problems.length],
  ];
  const known = set.status.some((c) => c.status?.identity) || set.status.every((c) => c.status); // else only the problems are
  $('figures').replaceChildren(...figures.map(([name, n]) => el('div', { 'data-level': name === 'problem' && n ? 'bad' : false }, el('dt', {}, n === 1 ? name : name + 's'), el('dd', {}, known || name === 'problem' ? n.toLocaleString('en') : mark('unknown', 'unknown')))));
}

// target returns the address of the object that a problem is about.
function target(p) {
  if (p.service) return serviceRoute(p.clusterSetID ?? '', p.service);
  if (p.cluster) return route('cluster', p.clusterSetID ?? '', p.cluster);
  const own = set.clusters.find((c) => c.context === p.context);
  return own ? clusterRoute(own) : route('context', p.context);
}

function drawProblems() {
  const section = $('problems');
  section.hidden = set.problems.length === 0;
  $('problems-title').textContent = count(set.problems.length, 'problem');
  const shown = allProblems ? set.problems : set.problems.slice(0, problemsAtOnce);
  // the text has times, which change
  const key = (p) => [p.context, p.cluster, p.service?.namespace, p.service?.name, p.text.replace(/\d+/g, '')].join('/');
  sync(section.querySelector('ul'), shown.map((p) => ({ ...p, target: target(p) })), key, () => el('li', {}, el('a'), el('span', { class: 'remedy' })), (li, p) => {
    li.firstChild.href = p.target;
    li.firstChild.textContent = printable(p.text);
    if (li.remedy === p.remedy) return; // a button in it keeps the focus
    li.remedy = p.remedy;
    li.lastChild.replaceChildren(el('b', {}, 'Remedy: '), ...remedy(p.remedy));
  });
  const more = section.querySelector('.more');
  more.hidden = set.problems.length <= problemsAtOnce;
  more.textContent = allProblems ? 'Show fewer' : `Show all ${set.problems.length.toLocaleString('en')} problems`;
  more.setAttribute('aria-expanded', allProblems);
}

// ---- Lists

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

// drawEmpty says why a list has nothing: no item, or none that matches.
function drawEmpty(list, shown, none) {
  const empty = list.section.querySelector('.empty');
  empty.hidden = shown > 0 || !set;
  empty.textContent = list.items.length ? 'Nothing matches the filter.' : none;
  keepOneTabStop(list.section.querySelector('.items'));
}

function redraw() {
  if (!set) return;
  const clusters = matching(lists.cluster).filter((c) => !c.absent);
  drawClusters();
  drawMap(set, clusters, Boolean(lists.cluster.text || lists.cluster.state));
  drawPaths(set, clusters);
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

const narrow = matchMedia('(max-width: 40rem)');
let allClusters = false; // whether those that are ok are shown on a narrow page

function drawClusters() {
  const list = lists.cluster;
  const all = matching(list);
  const compact = list.items.length >= compactFrom;
  const ok = compact && narrow.matches && !list.text && !list.state ? all.filter((c) => c.level === 'ok').length : 0;
  const shown = ok && !allClusters ? all.filter((c) => c.level !== 'ok') : all;
  const grid = list.section.querySelector('.items');
  grid.classList.toggle('compact', compact);
  grid.style.setProperty('--id', `${Math.min(24, Math.max(6, ...set.clusters.map((c) => c.clusterID.length)))}ch`);
  drawStates(list);
  const cells = shown.map((c) => ({ c, compact }));
  sync(grid, cells, ({ c }) => clusterRoute(c), ({ c }) => el('li', {}, el('a', { href: clusterRoute(c), tabindex: -1 })), (li, cell) => {
    const side = compact ? compactSide(cell.c) : '';
    li.classList.toggle('double', side !== '');
    li.firstChild.dataset.level = cell.c.level;
    li.firstChild.title = printable(cell.c.absent ? `context ${cell.c.context}: ${cell.c.state}` : `${cell.c.clusterID}: ${cell.c.state}, heartbeat ${seconds(cell.c.heartbeatAgeSeconds)} ago, ${cell.c.version}, ${pathText(cell.c)}`);
    li.firstChild.replaceChildren(...(compact ? compactCell(cell.c, side) : cell.c.absent ? contextCard(cell.c) : card(cell.c)));
  });
  const more = list.section.querySelector('.more');
  more.hidden = !ok;
  more.textContent = allClusters ? `Hide the ${count(ok, 'cluster')} that ${ok === 1 ? 'is' : 'are'} ok` : `Show ${count(ok, 'cluster')} that ${ok === 1 ? 'is' : 'are'} ok`;
  more.setAttribute('aria-expanded', allClusters);
  drawEmpty(list, shown.length + (ok && !allClusters ? ok : 0), 'No cluster is known.');
}

// compactSide is what a cell of one line shows besides the ID: why it is not like the others.
const compactSide = (c) => (c.kind === 'stale' ? `stale ${seconds(c.heartbeatAgeSeconds)}` : c.kind === 'ok' ? (c.other ? c.version : '') : c.state);

// contextCard is the card of a context of which no cluster is known.
const contextCard = (c) => [
  el('span', { class: 'top' }, mark(c.level, c.state), el('span', { class: 'id' }, c.context)),
  el('span', {}, el('b', {}, c.state), ' · context, cluster unknown'),
  el('span', { class: 'reason' }, c.problem ?? ''),
];

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

// columns are those of the table, with the value that each is sorted by.
const columns = [
  { id: 'state', title: 'State', of: (s) => order.indexOf(s.level) },
  { id: 'service', title: 'Service', of: (s) => `${s.key.namespace}/${s.key.name}` },
  { id: 'ports', title: 'Ports', of: (s) => s.ports?.[0]?.port ?? 0 },
  { id: 'exporters', title: 'Exported by', of: (s) => s.exports.length },
  { id: 'importers', title: 'Imported by', of: (s) => s.importers.importing?.length ?? 0 },
  { id: 'endpoints', title: 'Ready endpoints', of: (s) => sum(s.exports, 'ready') },
];

function sorted(services) {
  const column = columns.find((c) => c.id === sorting.column);
  if (!column) return services;
  const by = (a, b) => (typeof a === 'string' ? compare(a, b) : a - b);
  return [...services].sort((a, b) => (sorting.down ? -1 : 1) * by(column.of(a), column.of(b)));
}

// grouped returns the rows of the table: the services by namespace, of which those with problems come first. A namespace without problems is folded, and so
// are the services of the others that are ok. A drain is no problem.
function grouped(services) {
  const groups = new Map();
  for (const s of services) {
    const id = `${s.clusterSetID}/${s.key.namespace}`;
    groups.set(id, [...(groups.get(id) ?? []), s]);
  }
  const level = (group) => worst(group.map((s) => s.level));
  return [...groups].sort(([a, x], [b, y]) => order.indexOf(level(x)) - order.indexOf(level(y)) || compare(a, b)).flatMap(([id, group]) => {
    const ok = group.filter((s) => s.level === 'ok');
    const open = folds.get(id) ?? ['bad', 'warn'].includes(level(group));
    const head = { fold: id, open, title: group[0].key.namespace, states: stateCounts(group) };
    if (!open || ok.length === 0 || ok.length === group.length) return [head, ...(open ? group : [])];
    const all = folds.get(id + '#ok') ?? ok.length === 1;
    return [head, ...group.filter((s) => s.level !== 'ok'), ...(ok.length > 1 ? [{ fold: id + '#ok', open: all, ok: ok.length }] : []), ...(all ? ok : [])];
  });
}

function stateCounts(items) {
  const counts = new Map();
  for (const item of items) counts.set(item.kind, { state: item.kind, level: item.level, n: (counts.get(item.kind)?.n ?? 0) + 1 });
  return [...counts.values()];
}

function drawServices() {
  const list = lists.service;
  const all = matching(list);
  const folded = all.length > foldFrom && !list.text && !list.state && !sorting.column;
  const rows = folded ? grouped(all) : sorted(all);
  const shown = rows.slice(0, limit);
  drawStates(list);
  drawColumns();
  sync(list.section.querySelector('.items'), shown, (r) => r.fold ?? routeOf(r), makeRow, (tr, r) => (r.fold ? drawFold(tr, r) : drawService(tr, r)));
  const more = list.section.querySelector('.more');
  more.hidden = rows.length <= shown.length;
  more.textContent = `Show ${Math.min(rowsAtOnce, rows.length - shown.length)} more of ${folded ? count(rows.length, 'row') : count(all.length, 'service')}`;
  drawEmpty(list, shown.length, set.contexts.every((c) => c.state === 'ok') ? 'No cluster exports a service.' : 'Unknown: not all controllers answer.');
}

function drawColumns() {
  const ways = columns.map((c) => ({ ...c, way: c.id !== sorting.column ? 'none' : sorting.down ? 'descending' : 'ascending' }));
  sync($('services').querySelector('thead tr'), ways, (c) => c.id, (c) => {
    const button = el('button', { type: 'button', class: 'sort' });
    button.addEventListener('click', () => sortBy(c.id));
    return el('th', { scope: 'col', class: c.id === 'endpoints' ? 'number' : false }, button);
  }, (th, c) => {
    th.setAttribute('aria-sort', c.way);
    th.firstChild.replaceChildren(c.title, el('span', { class: 'way', 'aria-hidden': 'true' }, { none: '↕', ascending: '↑', descending: '↓' }[c.way]));
  });
}

// sortBy sorts up, then down, then by problems again.
function sortBy(id) {
  if (sorting.column !== id) Object.assign(sorting, { column: id, down: false });
  else if (sorting.down) Object.assign(sorting, { column: '', down: false });
  else sorting.down = true;
  redraw();
}

function makeRow(r) {
  if (!r.fold) return el('tr', { class: 'service' }, el('td', { 'data-label': 'State' }), el('th', { scope: 'row' }, el('a', { href: routeOf(r), tabindex: -1 })), ...columns.slice(2).map((c) => el('td', { 'data-label': c.title, class: c.id === 'endpoints' ? 'number' : false })));
  const button = el('button', { type: 'button', class: 'fold', tabindex: -1 });
  button.addEventListener('click', () => {
    folds.set(r.fold, button.getAttribute('aria-expanded') !== 'true');
    redraw();
  });
  return el('tr', { class: r.ok ? 'fold-ok' : 'group' }, el('th', { colspan: columns.length, scope: 'rowgroup' }, button));
}

function drawFold(tr, r) {
  const button = tr.querySelector('button');
  button.setAttribute('aria-expanded', r.open);
  button.replaceChildren(el('span', { class: 'arrow', 'aria-hidden': 'true' }, r.open ? '▾' : '▸'),
    ...(r.ok ? [badge('ok', `${r.ok} ok`)] : [el('span', { class: 'name' }, r.title), ...r.states.map((s) => badge(s.level, `${s.n} ${s.state}`))]));
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

const stateBadge = (item) => badge(item.level, item.state);

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
  const [what, ...rest] = location.hash.startsWith('#/') ? location.hash.slice(2).split('/').map(decode) : [];
  if (!set || !['cluster', 'service', 'context'].includes(what)) return null;
  const items = lists[what === 'service' ? 'service' : 'cluster'].items;
  const item = items.find((i) => (what === 'service' ? routeOf(i) : clusterRoute(i)) === route(what, ...rest));
  const key = what === 'service' ? { namespace: rest[1] ?? '', name: rest[2] ?? '' } : undefined;
  return { what, item, key, title: what === 'context' ? rest[0] ?? '' : rest.slice(1).join('/') };
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
  $('detail-state').replaceChildren(found.item ? stateBadge(found.item) : el('span', { class: 'muted' }, found.what === 'context' ? 'not among the contexts without a cluster now' : 'not known to the controllers now'));
  if (found.item) sync($('facts'), [found.item], () => opened, () => el('div'), (e, item) => e.replaceChildren(...({ cluster: clusterFacts, service: serviceFacts, context: contextFacts }[found.what](item))));
  if (!dialog.open) dialog.showModal();
  if (first && found.key) diagnose(found.key, false);
  if (first && anew) dialog.scrollTop = 0;
}

const facts = (...rows) => el('dl', { class: 'facts' }, rows.filter(([, value]) => value !== '' && value !== undefined).flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
const problems = (title, list) => (list?.length ? [el('h3', {}, title), el('ul', { class: 'problems' }, list.map((p) => el('li', {}, p)))] : []);

function table(title, header, rows) {
  if (!rows.length) return [];
  return [el('h3', {}, title), el('table', { class: 'stack' }, el('thead', {}, el('tr', {}, header.map((h) => el('th', { scope: 'col' }, h)))),
    el('tbody', {}, rows.slice(0, rowsAtOnce).map((cells) => el('tr', {}, cells.map((c, i) => el('td', { 'data-label': header[i] }, c)))))),
  rows.length > rowsAtOnce ? el('p', { class: 'muted' }, `and ${rows.length - rowsAtOnce} more`) : ''];
}

// contextFacts are those of a context of which no cluster is known.
const contextFacts = (c) => [facts(['Problem', c.problem ?? ''], ['Remedy', c.remedy ? remedy(c.remedy) : ''])];

// serving returns the rows of the clusters at the other end of the arrows of a cluster.
const serving = (c, own, other) => set.map.arrows.filter((a) => a.clusterSetID === c.clusterSetID && a[own] === c.clusterID).map((a) => [
  el('a', { href: route('cluster', a.clusterSetID, a[other]) }, a[other]), String(a.services), a.state]);

// pathState is the state of a path in the words of status.
const pathState = (set_, p) => set.paths.find((x) => x.clusterSetID === set_ && x.from === p.from)?.to[p.clusterID] ?? 'unknown';

function clusterFacts(c) {
  const exported = lists.service.items.filter((s) => s.clusterSetID === c.clusterSetID && s.exports.some((e) => e.cluster === c.clusterID));
  const targets = (p) => (p.targets ? `${Math.min(p.reached, p.targets)} of ${p.targets}` : 'none');
  return [
    facts(['Clusterset', c.clusterSetID], ['Context', c.context ?? 'none of those that the page was started with'], ['Heartbeat', `${seconds(c.heartbeatAgeSeconds)} ago`],
      ['Controller', c.controller && c.controller.state !== 'ok' ? [`${c.controller.state}: ${c.controller.problem ?? ''} `, el('span', { class: 'remedy' }, el('b', {}, 'Remedy: '), remedy(c.controller.remedy ?? ''))] : ''],
      ['Version', c.version], ['Exports', `${count(c.exports, 'service')}, ${count(c.endpoints, 'endpoint')}`], ['Drained', c.drain ?? ''],
      ['Unknown', c.unknown ? `the state of ${count(c.unknown, 'service')}` : ''], ['UID', c.uid ? copyable(c.uid) : ''], ['Public key', c.key ? copyable(c.key) : '']),
    ...problems('Problems', c.problems),
    ...table('Paths to its pods', ['From', 'State', 'Since', 'Controller', 'Endpoints', 'Last notification'], (c.paths ?? []).map((p) => [
      p.from, pathState(c.clusterSetID, p) + (p.faultHere ? ', and most others too: the fault is probably there' : ''), seconds(p.seconds), targets(p.controller), targets(p.endpoints),
      p.notificationAgeSeconds === undefined ? 'none' : `${seconds(p.notificationAgeSeconds)} ago`])),
    ...table('Clusters that it serves', ['Cluster', 'Services', 'State'], serving(c, 'from', 'to')),
    ...table('Clusters that serve it', ['Cluster', 'Services', 'State'], serving(c, 'to', 'from')),
    ...table('Services that it exports', ['Service', 'State', 'Ready endpoints'], exported.map((s) => {
      const e = s.exports.find((x) => x.cluster === c.clusterID);
      return [el('a', { href: routeOf(s) }, `${s.key.namespace}/${s.key.name}`), stateBadge(s), `${e.ready} of ${e.endpoints}`];
    })),
  ].filter((x) => x !== '');
}

function serviceFacts(s) {
  const link = (id) => el('a', { href: route('cluster', s.clusterSetID, id) }, id);
  return [
    el('div', { class: 'flow' },
      el('div', {}, el('h3', {}, 'Exported by'), el('p', {}, chips(s.exports.map((e) => ({ name: e.cluster })), 12))),
      el('div', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
      el('div', { class: 'middle' }, el('p', {}, copyable(`${s.key.name}.${s.key.namespace}.svc.clusterset.local`)), el('p', { class: 'muted' }, [s.type, ports(s.ports)].filter(Boolean).join(' · '))),
      el('div', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
      el('div', {}, el('h3', {}, 'Imported by'), el('p', {}, importersOf(s, 12)))),
    ...problems('Problems', s.problems),
    ...problems('Conflicts', s.conflicts),
    ...table('Exports', ['Cluster', 'Since', 'Ready endpoints', 'Stale', 'Drained', 'Tiers', 'For'], s.exports.map((e) => [
      link(e.cluster), e.created ? e.created.replace('T', ' ').replace('Z', ' UTC') : '', `${e.ready} of ${e.endpoints}`, e.stale ? 'stale' : 'no', e.drain || 'no', e.clusterSelectors || 'none', e.recipients || 'all clusters'])),
    ...(s.others?.length ? [el('p', { class: 'muted' }, `Also exported, for other clusters or to a namespace that is not imported, by ${names(s.others, 16)}.`)] : []),
  ].filter((x) => x !== '');
}

// diagnose follows a service as kubectl mcs diagnose does.
async function diagnose(key, probe) {
  const section = $('steps');
  stop?.abort();
  stop = new AbortController();
  const { signal } = stop;
  const button = el('button', { type: 'button', disabled: true }, 'Test DNS and connections');
  button.addEventListener('click', () => diagnose(key, true));
  const body = el('div', { role: 'status', 'aria-busy': 'true' }, el('p', { class: 'muted' }, probe ? 'Testing DNS and connections…' : 'Checking each step…'));
  section.replaceChildren(el('div', { class: 'bar' }, el('h3', { id: 'steps-title' }, 'Step by step'), button), body);
  try {
    const response = await ask(`/api/diagnose/${encodeURIComponent(key.namespace)}/${encodeURIComponent(key.name)}${probe ? '?probe=true' : ''}`, signal);
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
    ? el('div', { class: 'failure' }, el('p', {}, el('b', {}, `Failed in ${d.failure.context} at ${d.failure.name}: `), d.failure.detail), d.failure.remedy ? el('p', {}, el('b', {}, 'Remedy: '), remedy(d.failure.remedy)) : '')
    : d.phases.some((p) => p.steps.some((step) => step.result === 'unknown'))
    ? el('p', {}, mark('unknown', 'unknown'), ' No step failed, but some are unknown.')
    : el('p', { class: 'passed' }, mark('ok', 'ok'), probe ? ' No step failed.' : ' No step failed. DNS and connections were not tested.');
  return [failure, ...d.phases.flatMap((p) => [
    el('h4', {}, `${p.name} in ${p.context}`),
    el('ol', { class: 'steps' }, p.steps.map((step) => el('li', { 'data-level': results[step.result] ?? 'unknown' },
      mark(results[step.result] ?? 'unknown', step.result), el('span', { class: 'step' }, step.name),
      el('span', {}, step.detail, step.remedy ? el('span', { class: 'remedy' }, el('b', {}, 'Remedy: '), remedy(step.remedy)) : '')))),
  ])];
}

// ---- Changes, for screen readers

function announce() {
  const states = new Map([...lists.cluster.items.map((c) => [`${c.absent ? 'context' : 'cluster'} ${c.clusterID}`, c.state]), ...set.services.map((s) => [`service ${s.key.namespace}/${s.key.name}`, s.state])]);
  if (previous) {
    const changes = [...states].filter(([name, state]) => previous.get(name) !== state).map(([name, state]) => (previous.has(name) ? `${name} is ${state}` : `${name} is new`));
    for (const name of previous.keys()) if (!states.has(name)) changes.push(`${name} is gone`);
    if (changes.length) $('changes').textContent = printable(names(changes, 3));
  }
  previous = states;
}

// ---- Keyboard and pointer

for (const list of Object.values(lists)) {
  const container = list.section.querySelector('.items');
  roving(container);
  container.addEventListener('click', (event) => {
    const row = event.target.closest('tr');
    if (row && !event.target.closest('a, button') && !getSelection().toString()) links(row)[0].click();
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
      links(container)[0]?.focus();
    }
  });
}
$('services').querySelector('.more').addEventListener('click', () => {
  limit += rowsAtOnce;
  redraw();
});
$('clusters').querySelector('.more').addEventListener('click', () => {
  allClusters = !allClusters;
  redraw();
});
$('problems').querySelector('.more').addEventListener('click', () => {
  allProblems = !allProblems;
  drawProblems();
});
narrow.addEventListener('change', redraw);
let widthDrawn;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== widthDrawn) redraw(); // the number of columns depends on it
  widthDrawn = contentRect.width;
}).observe($('paths').querySelector('.matrix'));
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.matches('input') || $('detail').open) return;
  event.preventDefault();
  (document.activeElement?.closest('section')?.querySelector('input') ?? $('clusters').querySelector('input')).focus();
});

const leave = () => { if (location.hash.startsWith('#/')) location.hash = ''; };
$('close').addEventListener('click', leave);
$('detail').addEventListener('click', (event) => { if (event.target === $('detail')) leave(); });
// The event is late: another detail may have been opened since.
$('detail').addEventListener('close', () => { if (!$('detail').open && location.hash === opened) leave(); });
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
          try {
            show(JSON.parse(events.at(-1).replaceAll(/^data: /gm, '')));
          } catch (error) { // the connection is not the reason
            reportError(error);
            live('bad', `the page cannot show what was read: ${error.message}`);
            continue;
          }
          live('ok', `live, read at ${clock(set.time)}`);
        }
      }
      throw new Error('the connection ended');
    } catch (error) {
      if (error.refused) {
        live('bad', error.message);
        return;
      }
      live('bad', `no connection to kubectl mcs ui${set ? ` since ${clock(set.time)}` : ''}: ${error.message}`);
    }
    await new Promise((resume) => setTimeout(resume, 2000));
  }
}

follow();
followHistory(ask);
