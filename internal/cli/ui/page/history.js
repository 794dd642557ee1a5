// The events of the last hour.

import { $, clock, count, el, mark, remedy, seconds, serviceRoute, sync } from './dom.js';

const every = 30000; // ms: the API servers have other work
let history; // the last answer
let normal = false; // whether normal events are shown
let set; // the last document

// followHistory reads the history again while the page is seen.
export async function followHistory(ask) {
  for (;;) {
    try {
      history = await (await ask('/api/history')).json();
    } catch (error) {
      if (error.refused) return;
      history = { events: [], unread: [], more: 0, failure: error.message, time: history?.time };
    }
    drawHistory();
    await new Promise((resume) => setTimeout(resume, every));
    while (document.hidden) await new Promise((resume) => document.addEventListener('visibilitychange', resume, { once: true }));
  }
}

// showIn draws the history with links to the objects of a document.
export function showIn(document_) {
  set = document_;
  drawHistory();
}

// drawHistory draws the warnings, and the normal events on demand.
function drawHistory() {
  if (!history) return;
  const section = $('history');
  const warnings = history.events.filter((e) => e.type !== 'Normal');
  const shown = normal ? history.events : warnings;
  const quiet = history.events.length - warnings.length;
  const button = section.querySelector('.more');
  button.hidden = quiet === 0;
  button.textContent = normal ? 'Hide normal events' : `Show ${count(quiet, 'normal event')}`;
  button.setAttribute('aria-expanded', normal);
  section.querySelector('.summary').textContent = summary();
  const sets = new Map((set?.status ?? []).map((c) => [c.context, c.status?.identity?.clusterSetID]));
  sync(section.querySelector('ol'), shown.map((e) => ({ ...e, set: sets.get(e.context) })), (e) => [e.context, e.kind, e.namespace, e.name, e.reason, e.first].join('/'), () => el('li'), drawEvent);
  sync(section.querySelector('.unread'), history.unread, (u) => u.context, () => el('li'), (li, u) => {
    li.replaceChildren(mark('unknown', 'unknown'), el('span', {}, `Events of ${u.context} are unknown: ${u.problem}. `, el('span', { class: 'remedy' }, el('b', {}, 'Remedy: '), remedy(u.remedy ?? ''))));
  });
}

function summary() {
  if (history.failure) return `Unknown: the events could not be read: ${history.failure}`;
  if (history.unread.length && history.unread.length === set?.contexts.length) return 'Unknown: no events could be read.';
  const warnings = history.events.filter((e) => e.type !== 'Normal').length;
  const from = history.unread.length ? ' in the clusters whose events could be read' : '';
  const more = history.more ? ` Older ones are left out: ${history.more.toLocaleString('en')}.` : '';
  return `${warnings ? count(warnings, 'warning') : 'No warning'}${from}, as far as the API servers keep events. Read at ${clock(history.time)}.${more}`;
}

function drawEvent(li, e) {
  const level = e.type === 'Normal' ? 'ok' : 'warn';
  const name = e.namespace ? `${e.namespace}/${e.name}` : e.name;
  const linked = e.set && ['ServiceExport', 'ServiceImport', 'Service'].includes(e.kind);
  li.replaceChildren(
    el('time', { datetime: e.time }, clock(e.time)), mark(level, e.type),
    el('span', {}, el('b', {}, e.reason), ' ', el('span', { class: 'muted' }, `${e.kind} `), linked ? el('a', { href: serviceRoute(e.set, e) }, name) : name, el('span', { class: 'muted' }, ` in ${e.context}`),
      e.count > 1 ? el('span', { class: 'muted' }, `, ${count(e.count, 'time')} in ${seconds((new Date(e.time) - new Date(e.first)) / 1000)}`) : '', el('span', { class: 'message' }, e.message)));
}

$('history').querySelector('.more').addEventListener('click', () => {
  normal = !normal;
  drawHistory();
});
