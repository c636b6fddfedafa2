'use strict';
// Texts of workers reach the page only as text nodes and attributes, never as HTML.
const $ = id => document.getElementById(id);
const el = (tag, properties, ...children) => {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
};
const drawn = (tag, attributes, ...children) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const fill = (node, ...children) => node.replaceChildren(...children);

const agents = new Map();
const past = { t: [], steps: [], memory: [], ranks: [] };
let selected = null, latest = null, isEnded = false, before = new Map();

// Applies a change to a value: see views/job.rs.
const apply = (value, change) => {
  if (change === null || typeof change !== 'object' || Array.isArray(change)) return change;
  const length = change['#'];
  if (length !== undefined) {
    const values = Array.isArray(value) ? value.slice(0, length) : [];
    while (values.length < length) values.push(null);
    for (const [index, next] of Object.entries(change)) {
      if (index !== '#') values[index] = apply(values[index], next);
    }
    return values;
  }
  const object = new Map(value && typeof value === 'object' && !Array.isArray(value) ? Object.entries(value) : []);
  for (const [key, next] of Object.entries(change)) object.set(key, apply(object.get(key) ?? null, next));
  return Object.fromEntries(object);
};
const take = message => {
  if (message.is_gone) { agents.delete(message.from); return true; }
  const known = agents.get(message.from);
  if ('change' in message && !message.is_whole && known?.number !== message.number - 1) {
    return known !== undefined && known.number >= message.number;
  }
  const agent = known ?? { report: null, number: 0, is_silent: false };
  if ('is_silent' in message) agent.is_silent = message.is_silent;
  if ('change' in message) {
    agent.report = apply(message.is_whole ? null : agent.report, message.change);
    agent.number = message.number;
  }
  if (agent.report) agents.set(message.from, agent);
  return true;
};

const now = () => latest ?? Date.now() / 1000;
const age = seconds => {
  const s = Math.max(0, Math.floor(seconds)), two = n => String(n).padStart(2, '0');
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
};
const mebibytes = m => m === null ? '–' : m < 10000 ? `${m} MiB` : `${(m / 1024).toFixed(1)} GiB`;
const order = { failed: 0, waiting: 1, healthy: 2, ended: 3 };
// Reports are up to a second old, so a rank is behind only if its output is older too.
const BEHIND_SECONDS = 5;
const healthOf = (worker, most) => {
  const code = worker.exit_code;
  if (code === 0) return 'ended';
  if (code === -15) return 'waiting';
  if (code !== null) return 'failed';
  return most !== null && worker.step !== null && most.step - worker.step > 1 && most.output - worker.output >= BEHIND_SECONDS ? 'waiting' : 'healthy';
};
const stateOf = (worker, most) => {
  const code = worker.exit_code;
  if (code === 0) return 'done';
  if (code !== null) return code < 0 ? `signal ${-code}` : `exit code ${code}`;
  return healthOf(worker, most) === 'waiting' ? `${most.step - worker.step} steps behind` : 'running';
};
const healthOfNode = agent => {
  const { report } = agent;
  if (report.workers.some(worker => healthOf(worker, null) === 'failed')) return 'failed';
  if (['FAILED', 'UNHEALTHY'].includes(report.state) || (agent.is_silent && report.state !== 'SUCCEEDED')) return 'failed';
  if (report.state === 'SUCCEEDED') return 'ended';
  return report.awaiting !== null || report.workers.length === 0 ? 'waiting' : 'healthy';
};
// Time of a node by class, up to now: see agent-proto/src/goodput.rs. Earlier agents send none.
const timesOf = report => {
  const { seconds = {}, since = 0, class: current = null } = report.goodput ?? {};
  return current === null ? seconds : { ...seconds, [current]: (seconds[current] ?? 0) + Math.max(0, now() - since) };
};
const goodputOf = times => {
  const all = Object.values(times).reduce((a, b) => a + b, 0);
  return all > 0 ? `${Math.round(100 * (times.running ?? 0) / all)} %` : '–';
};
const byRank = () => [...agents.values()].sort((a, b) =>
  (a.report.group_rank ?? 1e9) - (b.report.group_rank ?? 1e9) || String(a.report.node).localeCompare(String(b.report.node)));

// Two agents on one host differ by their group rank.
const nameOf = ({ report }) => agents.size > 1 && [...agents.values()].filter(other => other.report.node === report.node).length > 1
  ? `${report.node} #${report.group_rank ?? '–'}` : String(report.node);

function draw() {
  const all = byRank(), reports = all.map(agent => agent.report);
  const workers = reports.flatMap(report => report.workers);
  const steps = workers.map(worker => worker.step).filter(step => step !== null);
  const max = (values, least) => values.filter(value => value !== null && value !== undefined).reduce((a, b) => Math.max(a, b), least);
  const most = steps.length ? { step: max(steps, 0), output: max(workers.map(worker => worker.output), 0) } : null;
  const running = workers.filter(worker => worker.running).length;
  const first = reports[0];
  const name = first?.run_id ?? 'no job';
  $('job').textContent = name;
  document.title = `${name} · rdzv`;
  const healths = all.map(healthOfNode);
  const worst = ['failed', 'waiting', 'healthy'].find(health => healths.includes(health)) ?? 'ended';
  const words = { failed: 'failed', waiting: 'waiting', healthy: 'running', ended: 'succeeded' };
  $('state').textContent = isEnded && worst === 'healthy' ? 'ended' : words[worst];
  $('state').className = `badge ${worst}`;
  const began = reports.map(report => report.began).filter(Boolean).reduce((a, b) => Math.min(a, b), now());
  const fact = (name, value) => el('div', {}, el('dt', {}, name), el('dd', {}, String(value)));
  fill($('facts'),
    fact('nodes', max(reports.map(report => report.group_world_size), all.length)),
    fact('ranks', `${running}/${max(reports.map(report => report.world_size), workers.length)} running`),
    fact('round', max(reports.map(report => report.round), -1) < 0 ? '–' : max(reports.map(report => report.round), 0)),
    fact('restarts', `${max(reports.map(report => report.job_restarts), 0)}/${max(reports.map(report => report.max_restarts), 0)}`),
    fact('age', age(now() - began)));
  for (const agent of all) agent.name = nameOf(agent);
  drawAlerts(all);
  drawGrid(all, most, workers.length);
  drawNodes(all, most);
  drawRestarts(all);
  drawTimeline(all);
  drawDetail(most);
}

function drawAlerts(all) {
  const alerts = [];
  const failed = all.filter(agent => agent.report.failure);
  const time = agent => agent.report.spans.filter(span => span.is_bad).reduce((a, span) => Math.min(a, span.end ?? 1e12), 1e12);
  failed.sort((a, b) => time(a) - time(b));
  if (failed.length) {
    const { rank, host, cause, lines } = failed[0].report.failure;
    const who = rank === null ? host : `rank ${rank} on ${host}`;
    const alert = el('div', { className: 'alert failed' }, el('b', {}, 'First failure: '), `${who}: ${cause}`);
    if (lines.length) alert.append(el('pre', {}, lines.join('\n')));
    alerts.push(alert);
  }
  if (all.some(agent => agent.report.is_alone)) {
    alerts.push(el('div', { className: 'alert waiting' }, el('b', {}, 'This node only: '), 'the rendezvous of this job carries no reports of other nodes'));
  }
  for (const agent of all.filter(agent => agent.is_silent).slice(0, 8)) {
    alerts.push(el('div', { className: 'alert failed' }, el('b', {}, 'Silent: '), `${agent.name} sends no reports`));
  }
  for (const [, sentence] of all.flatMap(agent => agent.report.slow || []).slice(0, 4)) {
    alerts.push(el('div', { className: 'alert waiting' }, el('b', {}, 'Slow: '), sentence));
  }
  const waits = all.filter(agent => agent.report.awaiting);
  for (const { report, name } of waits.slice(0, 4)) {
    alerts.push(el('div', { className: 'alert waiting' }, el('b', {}, `${name} waits: `), report.awaiting.replace(/^\[.*?\] /, '')));
  }
  if (waits.length > 4) alerts.push(el('div', { className: 'alert waiting' }, `${waits.length - 4} other nodes wait`));
  fill($('alerts'), ...alerts);
}

function drawGrid(all, most, count) {
  const isSmall = count > 512;
  const nodes = all.map(agent => {
    const cells = agent.report.workers.map(worker => {
      const cell = el('button', {
        className: `cell ${healthOf(worker, most)}${isSmall ? ' small' : ''}`,
        title: `rank ${worker.rank} on ${agent.name}: ${stateOf(worker, most)}`,
        onclick: () => select(worker.rank),
      }, String(worker.rank));
      cell.setAttribute('aria-pressed', String(worker.rank === selected));
      return cell;
    });
    const label = isSmall ? [] : [el('span', { title: agent.name }, agent.name)];
    return el('div', { className: 'node' }, ...label, el('div', { className: 'cells' }, ...cells));
  });
  if (!nodes.length) nodes.push(el('p', { className: 'empty' }, 'waiting for the first report'));
  fill($('grid'), ...nodes);
  const legend = [['failed', 'failed'], ['waiting', 'stopped or behind'], ['healthy', 'running'], ['ended', 'done']];
  fill($('legend'), ...legend.map(([kind, text]) => el('span', {}, el('i', { className: kind }), text)));
}

const MOST_ROWS = 40;
const heads = (columns, last) => el('tr', {}, ...columns.map((column, index) => el('th', { className: index > last ? 'n' : '' }, column)));
const goodputCell = report => {
  const times = timesOf(report);
  const title = Object.entries(times).map(([name, seconds]) => `${name} ${seconds.toFixed(1)} s`).join('\n');
  return el('td', { className: 'n', title }, goodputOf(times));
};
function drawNodes(all, most) {
  const columns = ['node', 'state', 'ranks', 'step', 'last output', 'cpu', 'memory', 'restarts', 'goodput'];
  fill($('columns'), heads(columns, 1));
  // All nodes have the same budget, which a replay knows only from nodes that have restarted.
  const budget = all.reduce((most, { report }) => Math.max(most, report.max_restarts), 0);
  const sorted = all.map(agent => ({ agent, health: healthOfNode(agent) }));
  sorted.sort((a, b) => order[a.health] - order[b.health]);
  const shown = sorted.filter(({ health }, index) => health === 'failed' || health === 'waiting' || all.length <= 8 || (selected !== null && sorted[index].agent.report.workers.some(worker => worker.rank === selected)));
  const rows = shown.slice(0, MOST_ROWS).map(({ agent, health }) => {
    const { report } = agent, { workers } = report;
    const sum = values => values.reduce((a, b) => a + (b ?? 0), 0);
    const outputs = workers.map(worker => worker.output).filter(Boolean);
    const steps = workers.map(worker => worker.step).filter(step => step !== null);
    const cell = text => el('td', { className: 'n' }, text);
    return el('tr', {},
      el('td', {}, agent.name),
      el('td', {}, el('span', { className: `badge ${health}` }, agent.is_silent ? 'silent' : health === 'waiting' ? 'waiting' : report.state.toLowerCase())),
      cell(`${workers.filter(worker => worker.running).length}/${workers.length}`),
      cell(steps.length ? String(steps.reduce((a, b) => Math.min(a, b))) : '–'),
      cell(outputs.length ? `${age(now() - outputs.reduce((a, b) => Math.max(a, b)))} ago` : '–'),
      cell(workers.some(worker => worker.processor !== null) ? `${sum(workers.map(worker => worker.processor))} %` : '–'),
      cell(workers.some(worker => worker.memory !== null) ? mebibytes(sum(workers.map(worker => worker.memory))) : '–'),
      cell(`${report.restart_count}/${budget}`),
      goodputCell(report));
  });
  fill($('nodes'), ...rows);
  const rest = sorted.length - rows.length;
  $('rest').textContent = rest > 0 ? `${rest} other ${rest === 1 ? 'node' : 'nodes'}, healthy or ended` : '';
}

// The spans of each restart, the latest first: see agent-proto/src/restart.rs.
function drawRestarts(all) {
  const restarts = all.flatMap(agent => (agent.report.restarts ?? []).map(restart => ({ ...restart, name: agent.name })));
  $('ledger').hidden = !restarts.length;
  fill($('spans'), heads(['node', 'reason', 'ended', 'detect', 'stop', 'rendezvous', 'start', 'first step'], 1));
  restarts.sort((a, b) => b.completed - a.completed);
  const cell = text => el('td', { className: 'n' }, text);
  const took = seconds => seconds === null ? '–' : `${seconds.toFixed(3)} s`;
  const rows = restarts.slice(0, MOST_ROWS).map(restart => el('tr', {},
    el('td', {}, restart.name), el('td', {}, restart.reason), cell(`${age(now() - restart.completed)} ago`),
    ...['detect', 'stop', 'rendezvous', 'start', 'first_step'].map(span => cell(took(restart[span])))));
  fill($('restarts'), ...rows);
}

const MOST_LANES = 64;
function drawTimeline(all) {
  const spans = all.flatMap(agent => agent.report.spans);
  if (!spans.length) return fill($('timeline'), el('p', { className: 'empty' }, 'no events yet'));
  const begin = spans.reduce((a, span) => Math.min(a, span.begin), 1e12);
  const end = isEnded ? spans.reduce((a, span) => Math.max(a, span.end ?? span.begin), begin + 0.001) : Math.max(now(), begin + 1);
  const width = Math.max(560, $('timeline').clientWidth || 900), left = 150, lane = 20;
  const x = t => left + (t - begin) / (end - begin) * (width - left - 12);
  const ranks = all.flatMap(agent => [...new Set(agent.report.spans.map(span => span.rank))].filter(rank => rank !== null));
  const lanes = [];
  for (const agent of all) {
    lanes.push({ label: agent.name, spans: agent.report.spans.filter(span => span.rank === null), isNode: true });
    const own = [...new Set(agent.report.spans.map(span => span.rank))].filter(rank => rank !== null).sort((a, b) => a - b);
    for (const rank of own) {
      const mine = agent.report.spans.filter(span => span.rank === rank);
      if (ranks.length + all.length <= MOST_LANES || mine.some(span => span.is_bad)) lanes.push({ label: `rank ${rank}`, spans: mine });
    }
  }
  const bad = lane => lane.spans.some(span => span.is_bad);
  const shown = lanes.length > MOST_LANES ? [...lanes.filter(bad), ...lanes.filter(lane => !bad(lane))].slice(0, MOST_LANES) : lanes;
  const height = (shown.length + 1) * lane + 8;
  const svg = drawn('svg', { width, height, role: 'img', 'aria-label': 'timeline of rounds and ranks' });
  for (let tick = 0; tick <= 4; tick++) {
    const t = begin + (end - begin) * tick / 4;
    svg.append(drawn('line', { x1: x(t), x2: x(t), y1: 16, y2: height }));
    svg.append(drawn('text', { x: x(t), y: 12, class: 'faint', 'text-anchor': tick === 0 ? 'start' : tick === 4 ? 'end' : 'middle' },
      end - begin < 20 ? `+${(t - begin).toFixed(1)}s` : `+${age(t - begin)}`));
  }
  shown.forEach(({ label, spans, isNode }, index) => {
    const y = 20 + index * lane;
    const text = label.length > 22 ? `${label.slice(0, 21)}…` : label;
    svg.append(drawn('text', { x: isNode ? 2 : 14, y: y + 13, class: isNode ? '' : 'faint' }, text));
    const isMark = span => span.end !== null && span.end - span.begin < 1e-6 && span.rank === null;
    for (const span of [...spans].sort((a, b) => isMark(a) - isMark(b))) {
      const title = drawn('title', {}, `${span.name}\n+${(span.begin - begin).toFixed(3)}s` + (span.end === null ? '' : ` to +${(span.end - begin).toFixed(3)}s`));
      if (isMark(span)) {
        svg.append(drawn('path', { d: `M${x(span.begin)} ${y + 1}l5 7l-5 7l-5 -7z`, class: `s-mark${span.is_bad ? ' s-bad' : ''}` }, title));
        continue;
      }
      const from = x(span.begin), to = Math.max(from + 2, x(span.end ?? end));
      const kind = span.is_bad ? 's-bad' : span.rank !== null ? 's-good' : span.name.startsWith('waits') ? 's-wait' : 's-node';
      svg.append(drawn('rect', { x: from, y: y + 2, width: to - from, height: lane - 5, rx: 2, class: kind }, title));
      const most = Math.floor((to - from - 8) / 6.4);
      if (most > 5) svg.append(drawn('text', { x: from + 4, y: y + 13 }, span.name.length > most ? `${span.name.slice(0, most - 1)}…` : span.name));
    }
  });
  fill($('timeline'), svg);
}

// Plots: one line for each rank, or least, middle and most of many ranks.
const MOST_LINES = 16, MOST_POINTS = 600;
let plots = null;
function sample() {
  const t = Date.now() / 1000;
  const workers = byRank().flatMap(agent => agent.report.workers).filter(worker => worker.running);
  const rate = new Map();
  for (const { rank, step } of workers) {
    if (step === null) continue;
    const known = before.get(rank);
    if (!known || step < known.step) before.set(rank, { step, t, rate: null });
    // The time of the first step that was seen is not known.
    else if (step > known.step) before.set(rank, { step, t, isTimed: true, rate: known.isTimed ? (step - known.step) / Math.max(t - known.t, 0.2) : null });
    else if (t - known.t > 15) known.rate = 0;
    rate.set(rank, before.get(rank).rate);
  }
  const ranks = workers.map(worker => worker.rank).sort((a, b) => a - b);
  const memory = new Map(workers.map(worker => [worker.rank, worker.memory]));
  past.t.push(t); past.steps.push(rate); past.memory.push(memory); past.ranks = ranks;
  if (past.t.length > MOST_POINTS) for (const list of [past.t, past.steps, past.memory]) list.shift();
  drawPlots();
}
function series(list) {
  const ranks = past.ranks;
  if (ranks.length <= MOST_LINES) return [ranks.map(rank => `rank ${rank}`), ranks.map(rank => list.map(values => values.get(rank) ?? null))];
  const sorted = list.map(values => [...values.values()].filter(value => value !== null).sort((a, b) => a - b));
  const at = part => sorted.map(values => values.length ? values[Math.round((values.length - 1) * part)] : null);
  return [['least', 'middle', 'most'], [at(0), at(0.5), at(1)]];
}
function drawPlots() {
  const style = getComputedStyle(document.documentElement);
  const faint = style.getPropertyValue('--faint').trim(), line = style.getPropertyValue('--line').trim();
  const make = (id, list) => {
    const [names, lines] = series(list), parent = $(id);
    if (!lines.some(line => line.some(value => value !== null))) {
      return fill(parent, el('p', { className: 'empty' }, id === 'steps' ? 'the output in files names no steps' : 'no samples yet'));
    }
    const key = names.join() + parent.clientWidth + faint;
    if (plots?.[id]?.key === key) return plots[id].plot.setData([past.t, ...lines]);
    fill(parent);
    const axis = { stroke: faint, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const plot = new uPlot({
      width: Math.max(240, parent.clientWidth), height: 190, legend: { show: names.length <= 8, live: false }, cursor: { points: { show: false } },
      series: [{}, ...names.map((label, index) => ({ label, stroke: `hsl(${index * 360 / names.length + 215} 65% 55%)`, width: 1.5, spanGaps: true }))],
      axes: [axis, { ...axis, size: 58 }], scales: { y: { range: (u, least, most) => [Math.min(0, least), (most || 1) * 1.08] } },
    }, [past.t, ...lines], parent);
    plots = { ...plots, [id]: { key, plot } };
  };
  make('steps', past.steps);
  make('memory', past.memory);
}

function select(rank) {
  selected = rank;
  $('text').textContent = '';
  draw();
  if (!isEnded) lines();
}
function drawDetail(most) {
  $('detail').hidden = selected === null;
  if (selected === null) return;
  const found = byRank().flatMap(agent => agent.report.workers.map(worker => ({ agent, worker }))).find(({ worker }) => worker.rank === selected);
  $('who').textContent = `Rank ${selected}`;
  $('about').textContent = found === undefined ? 'this rank is not running' :
    `${stateOf(found.worker, most)} on ${found.agent.name}, pid ${found.worker.pid}, local rank ${found.worker.local_rank}`;
}
const ask = async (path, read) => {
  const rank = selected;
  try {
    const answer = await fetch(path);
    const text = answer.ok ? read(await answer.json()) : await answer.text();
    if (rank === selected) $('text').textContent = text;
  } catch (error) { $('text').textContent = String(error); }
};
const lines = () => ask(`output?rank=${selected}&lines=40`, tail => tail.error ?? (tail.text || '(no output)'));
const stack = () => ask(`stacks?rank=${selected}`, stacks => stacks.map(stack =>
  (stack.without_frames ? `no Python stack: ${stack.without_frames}\n` : '') + stack.frames.join('\n')).join('\n\n') || 'this rank is not running');
$('show-lines').onclick = lines;
$('show-stack').onclick = stack;
$('hide').onclick = () => { selected = null; draw(); };

let isDue = false;
const soon = () => { if (!isDue) { isDue = true; setTimeout(() => { isDue = false; draw(); }, 200); } };
const link = (text, isLost) => { $('link').textContent = text; $('link').className = isLost ? 'lost' : ''; };
function follow() {
  const source = new EventSource('events');
  source.onopen = () => link('live', false);
  source.onmessage = event => {
    if (!take(JSON.parse(event.data))) { source.close(); setTimeout(follow, 1000); return; }
    soon();
  };
  source.onerror = () => {
    const hasEnded = [...agents.values()].some(({ report }) => ['SUCCEEDED', 'FAILED'].includes(report.state));
    link(hasEnded ? 'the run has ended' : 'no connection to the agent', !hasEnded);
  };
}
const replay = $('replay').textContent;
if (replay) {
  isEnded = true;
  JSON.parse(replay).forEach(take);
  latest = [...agents.values()].flatMap(agent => agent.report.spans).reduce((a, span) => Math.max(a, span.end ?? span.begin), 0);
  link('replayed from events files', false);
  $('plots').hidden = true;
  for (const id of ['show-lines', 'show-stack']) $(id).hidden = true;
} else {
  follow();
  setInterval(() => { sample(); soon(); }, 1000);
}
addEventListener('resize', () => { soon(); if (!isEnded) drawPlots(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { plots = null; soon(); });
draw();
