// The pictures of the clusterset: who serves whom, and who reaches whom. Both show the clusters with problems first, and say how many others there are.

import { $, badge, clusterRoute, compare, count, el, keepOneTabStop, mark, names, order, printable, route, roving, sync, worst } from './dom.js';

// arrowLevels and pathLevels are how serious the states of arrows and paths are.
const arrowLevels = { unreachable: 'bad', 'no endpoint answers': 'bad', stale: 'warn', drained: 'note', 'path unknown': 'unknown', ok: 'ok' };
const pathLevels = { unreachable: 'bad', 'no endpoint answers': 'bad', unknown: 'unknown', ok: 'ok' };
const nodesAtOnce = 12; // clusters on each side of the map
const rowsAtOnce = 24; // rows of the matrix
const others = 'others'; // the key of the node for the other clusters

// keyOf names a cluster of a clusterset, labelOf for the user: an ID is not unique in several clustersets.
const keyOf = (set, id) => JSON.stringify([set, id]);
const labelOf = (all, set, id) => (new Set(all.map((c) => c.clusterSetID)).size > 1 ? `${id} of ${set}` : id);

// drawMap draws the arrows of the clusters that match the filter.
export function drawMap(set, clusters, filtered) {
  const place = new Map(clusters.map((c, i) => [keyOf(c.clusterSetID, c.clusterID), i]));
  const known = new Map(set.clusters.map((c) => [keyOf(c.clusterSetID, c.clusterID), c]));
  const arrows = set.map.arrows.map((a) => ({ ...a, from: keyOf(a.clusterSetID, a.from), to: keyOf(a.clusterSetID, a.to) })).filter((a) => place.has(a.from) || place.has(a.to));
  const label = (key) => labelOf(set.clusters, ...JSON.parse(key));
  const side = (keys) => {
    const sorted = [...new Set(keys)].sort((a, b) => (place.get(a) ?? place.size) - (place.get(b) ?? place.size) || compare(label(a), label(b)));
    const shown = sorted.length > nodesAtOnce + 1 ? sorted.slice(0, nodesAtOnce) : sorted;
    return { shown, hidden: sorted.length - shown.length, index: new Map(sorted.map((key, i) => [key, Math.min(i, shown.length)])) };
  };
  const left = side([...clusters.filter((c) => c.exports > 0).map((c) => keyOf(c.clusterSetID, c.clusterID)), ...arrows.map((a) => a.from)]);
  const right = side(arrows.map((a) => a.to));
  const nodes = (s, end, other, verb) => [...s.shown, ...(s.hidden ? [others] : [])].map((key) => {
    const own = arrows.filter((a) => (key === others ? s.index.get(a[end]) === s.shown.length : a[end] === key));
    const { level = 'unknown', state = 'unknown' } = known.get(key) ?? {};
    return {
      key, level, state, label: key === others ? `${s.hidden} others` : label(key), count: new Set(own.map((a) => a[other])).size,
      heard: own.length && key !== others ? `${verb} ${names(own.map((a) => `${label(a[other])} (${count(a.services, 'service')}, ${a.state})`), 16)}` : '',
    };
  });
  drawNodes($('exporters'), nodes(left, 'from', 'to', 'serves'), (n) => (n.count ? `serves ${n.count}` : 'serves none'));
  drawNodes($('importers'), nodes(right, 'to', 'from', 'is served by'), (n) => `by ${n.count}`);
  drawArrows(arrows, left, right);
  const section = $('map');
  section.querySelector('.picture').hidden = left.shown.length === 0;
  section.querySelector('.empty').hidden = left.shown.length > 0;
  section.querySelector('.empty').textContent = filtered ? 'No cluster that matches the filter exports a service.' : emptyMap(set);
  section.querySelector('.notes').replaceChildren(...mapNotes(set, arrows).map((n) => el('li', {}, n)));
}

const emptyMap = (set) => (set.contexts.every((c) => c.state === 'ok') ? 'No cluster exports a service.' : 'Unknown: not all controllers answer.');

function mapNotes(set, arrows) {
  const { unread, notReporting } = set.map;
  const notes = [];
  if (arrows.length) notes.push(legend(arrows.map((a) => a.state), arrowLevels, 'line'));
  if (unread.length) notes.push(el('span', {}, `Unknown: which clusters without a context import from ${names(unread, 4)}. Name their contexts to see it.`));
  if (notReporting.length) notes.push(el('span', {}, `Unknown: what ${names(notReporting, 4)} ${notReporting.length === 1 ? 'imports' : 'import'}, beyond the lines, without a report.`));
  return notes;
}

// legend counts the states, with the mark or the line of each.
function legend(states, levels, kind) {
  const n = new Map();
  for (const state of states) n.set(state, (n.get(state) ?? 0) + 1);
  return el('span', { class: 'legend' }, Object.keys(levels).filter((state) => n.has(state)).map((state) => el('span', {},
    kind === 'line' ? el('svg', { class: 'sample', viewBox: '0 0 28 6', 'aria-hidden': 'true' }, el('path', { d: 'M0,3 H28', 'data-level': levels[state], 'stroke-width': 2 })) : mark(levels[state], ''),
    ` ${state} `, el('b', {}, n.get(state).toLocaleString('en')))));
}

function drawNodes(list, nodes, text) {
  const make = (n) => el('li', {}, n.key === others ? el('span', { class: 'node' }) : el('a', { class: 'node', href: route('cluster', ...JSON.parse(n.key)) }));
  sync(list, nodes, (n) => n.key, make, (li, n) => {
    li.dataset.id = n.key;
    li.firstChild.replaceChildren(...[n.key === others ? '' : mark(n.level, n.state), el('span', { class: 'id', title: printable(n.label) }, n.label), el('span', { class: 'muted' }, text(n)),
      n.heard ? el('span', { class: 'heard' }, n.heard) : ''].filter(Boolean));
  });
  keepOneTabStop(list);
}

// drawArrows draws a line for the arrows of a level between two nodes. Its width grows with the number of services, which is not exact to read: the nodes
// and the details have numbers.
function drawArrows(arrows, left, right) {
  const lines = new Map();
  for (const a of arrows) {
    const ends = [left.index.get(a.from), right.index.get(a.to)];
    const level = arrowLevels[a.state] ?? 'unknown';
    const line = lines.get(level + ends) ?? { ends, level, n: 0, from: left.shown[ends[0]] ?? others, to: right.shown[ends[1]] ?? others };
    line.n += a.services;
    lines.set(level + ends, line);
  }
  const rows = Math.max(left.shown.length + (left.hidden ? 1 : 0), right.shown.length + (right.hidden ? 1 : 0));
  const svg = $('arrows');
  svg.setAttribute('viewBox', `0 0 100 ${Math.max(1, rows)}`);
  svg.parentElement.style.setProperty('--rows', rows);
  const drawn = [...lines.values()].sort((a, b) => order.indexOf(b.level) - order.indexOf(a.level)); // a broken line lies on the solid one
  svg.replaceChildren(...drawn.map((line) => {
    const [from, to] = line.ends.map((i) => i + 0.5);
    const path = el('path', { d: `M0,${from} C50,${from} 50,${to} 100,${to}`, 'data-level': line.level, 'stroke-width': Math.min(6, 1.25 + Math.log2(line.n) / 2).toFixed(2) });
    Object.assign(path, { from: line.from, to: line.to });
    return path;
  }));
  highlight(svg.highlighted);
}

// highlight dims the lines that do not touch a node.
function highlight(node) {
  const svg = $('arrows');
  svg.highlighted = node;
  for (const path of svg.children) path.classList.toggle('dim', Boolean(node) && path[node.end] !== node.id);
}

roving($('paths').querySelector('table'));
for (const [list, end] of [['exporters', 'from'], ['importers', 'to']]) {
  roving($(list));
  for (const [event, on] of [['pointerover', true], ['focusin', true], ['pointerout', false], ['focusout', false]]) {
    $(list).addEventListener(event, ({ target }) => {
      const li = target.closest('li');
      if (li) highlight(on ? { end, id: li.dataset.id } : undefined);
    });
  }
}

// ---- Paths

const cellWidth = 30; // px
const tallFrom = 9; // with more clusters the two pictures are one below the other

// drawPaths draws the matrix of the paths from the clusters of the contexts, with as many columns as there is room for. The last column and the last row
// count the others.
export function drawPaths(set, clusters) {
  const section = $('paths');
  const place = new Map(clusters.map((c, i) => [keyOf(c.clusterSetID, c.clusterID), i]));
  const columns = new Map(set.clusters.filter((c) => !c.mapped && place.has(keyOf(c.clusterSetID, c.clusterID))).map((c) => [keyOf(c.clusterSetID, c.clusterID), { set: c.clusterSetID, id: c.clusterID, level: 'ok' }]));
  const label = (x) => labelOf(set.clusters, x.set, x.id);
  const rows = set.paths.map((p) => ({ set: p.clusterSetID, id: p.from, faultHere: p.faultHere, cells: new Map(), level: 'ok' }));
  rows.forEach((row, i) => {
    for (const [key, column] of columns) {
      if (column.set !== row.set || column.id === row.id) continue;
      const state = set.paths[i].to[column.id] ?? 'unknown';
      row.cells.set(key, state);
      row.level = worst([row.level, pathLevels[state] ?? 'unknown']);
      column.level = worst([column.level, pathLevels[state] ?? 'unknown']);
    }
  });
  const rank = (level) => ['bad', 'unknown', 'ok'].indexOf(level);
  const at = (x) => place.get(keyOf(x.set, x.id)) ?? place.size;
  const sortedRows = rows.sort((a, b) => rank(a.level) - rank(b.level) || at(a) - at(b));
  const sortedColumns = [...columns].sort(([, a], [, b]) => rank(a.level) - rank(b.level) || at(a) - at(b));
  $('map').parentElement.classList.toggle('tall', set.clusters.length >= tallFrom);
  const nameWidth = 12 + Math.min(200, innerWidth * 0.36, 8 * Math.max(12, ...rows.map((r) => label(r).length))); // px, at most as wide as style.css allows
  const room = Math.max(1, Math.floor((section.querySelector('.matrix').clientWidth - nameWidth) / cellWidth));
  const fit = sortedColumns.length <= room ? sortedColumns.length : Math.max(1, room - 4); // the column of the others has the width of four
  const shownRows = sortedRows.length > rowsAtOnce ? sortedRows.slice(0, rowsAtOnce - 1) : sortedRows;
  const hidden = sortedColumns.slice(fit);
  section.querySelector('.empty').hidden = sortedRows.length > 0 && sortedColumns.length > 0;
  section.querySelector('.empty').textContent = sortedRows.length ? 'No cluster matches the filter.' : 'Unknown: no controller of these contexts says it.';
  const states = sortedRows.flatMap((row) => [...row.cells.values()]);
  section.querySelector('.notes').replaceChildren(...pathNotes(set, rows, states).map((n) => el('li', {}, n)));
  const data = { shownRows: shownRows.map((r) => [r.id, r.set, r.level, r.faultHere, [...r.cells]]), columns: sortedColumns.slice(0, fit), hidden: hidden.length, rows: sortedRows.length };
  const table = section.querySelector('table');
  table.hidden = !sortedRows.length || !sortedColumns.length;
  const drawn = JSON.stringify(data);
  if (table.drawn === drawn) return;
  table.drawn = drawn;
  const head = el('tr', {}, el('th', { scope: 'col', class: 'corner' }, 'from ↓ to →'), sortedColumns.slice(0, fit).map(([, c]) => el('th', { scope: 'col', title: printable(label(c)) }, el('span', { class: 'upright' }, label(c)))),
    hidden.length ? el('th', { scope: 'col', class: 'rest' }, `${hidden.length} others`) : '');
  const body = shownRows.map((row) => el('tr', {}, el('th', { scope: 'row' }, el('a', { href: clusterRoute({ clusterSetID: row.set, clusterID: row.id }) }, label(row))),
    sortedColumns.slice(0, fit).map(([key, column]) => cell(row, column, row.cells.get(key))),
    hidden.length ? el('td', { class: 'rest' }, summary(hidden.map(([key]) => row.cells.get(key)).filter(Boolean))) : ''));
  const restRows = sortedRows.slice(shownRows.length);
  if (restRows.length) {
    body.push(el('tr', {}, el('th', { scope: 'row' }, `${restRows.length} others`), el('td', { colspan: fit + (hidden.length ? 1 : 0) }, summary(restRows.flatMap((row) => [...row.cells.values()])))));
  }
  table.replaceChildren(el('thead', {}, head), el('tbody', {}, body));
  keepOneTabStop(table);
}

function cell(row, column, state) {
  if (row.set === column.set && row.id === column.id) return el('td', { class: 'self' }, el('span', { 'aria-hidden': 'true' }, '·'), el('span', { class: 'heard' }, 'the cluster itself'));
  if (!state) return el('td', {}, el('span', { class: 'heard' }, 'another clusterset'));
  return el('td', { 'data-state': state, title: printable(`${row.id} to ${column.id}: ${state}`) }, mark(pathLevels[state] ?? 'unknown', state));
}

// summary counts states.
const summary = (states) => (states.length ? legend(states, pathLevels, 'mark') : '');

function pathNotes(set, rows, states) {
  const known = new Set(rows.map((r) => keyOf(r.set, r.id)));
  const unread = set.clusters.filter((c) => !c.mapped && !known.has(keyOf(c.clusterSetID, c.clusterID))).map((c) => c.clusterID);
  const notes = [];
  if (states.length) notes.push(legend(states, pathLevels, 'mark'));
  for (const row of rows) if (row.faultHere) notes.push(el('span', {}, badge('warn', row.id), ': most clusters cannot be reached, so the fault is probably in this cluster.'));
  if (unread.length) notes.push(el('span', {}, `Unknown: the paths from ${names(unread, 4)}. Name ${unread.length === 1 ? 'its context' : 'their contexts'} to see them.`));
  return notes;
}
