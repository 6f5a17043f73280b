const facts = JSON.parse(document.getElementById("graph").textContent);
const at = id => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const RADIUS = 12;
const STAR = "M" + Array.from({length: 10}, (_, corner) => {
  const [far, turn] = [corner % 2 ? 3.4 : 8, (corner - 2.5) * Math.PI / 5];
  return `${(far * Math.cos(turn)).toFixed(2)} ${(far * Math.sin(turn)).toFixed(2)}`;
}).join("L") + "Z";
// How many edges are drawn thinner and without arrows.
const DENSE = 800;
// How many nodes have a caption even where it lies over others.
const ALWAYS = 16;
const layout = new Layout();
const view = {x: 0, y: 0, scale: 1};
const off = new Set();
const edgesOff = new Set();
let links = [];
let selected = null;
let running = false;
let frames = 0;

// Text is only ever set as text, so nothing in a property can be markup.
function made(tag, attributes = {}, ...inside) {
  const svg = ["g", "circle", "path", "text"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...inside);
  return element;
}

const many = (count, one, more = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : more}`;
const cut = (text, most) => [...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text;

const counts = new Map();
for (const {type} of facts.nodes) counts.set(type, (counts.get(type) ?? 0) + 1);
const types = [...counts.keys()].sort((one, two) => counts.get(two) - counts.get(one) || (one < two ? -1 : 1));
const edgeCounts = new Map();
for (const {type} of facts.edges) edgeCounts.set(type, (edgeCounts.get(type) ?? 0) + 1);
const edgeTypes = [...edgeCounts.keys()].sort(
  (one, two) => edgeCounts.get(two) - edgeCounts.get(one) || (one < two ? -1 : 1));
// Edges of one type alone need no colour.
const edgeColour = type => edgeTypes.length > 1 ? `c${Math.min(edgeTypes.indexOf(type), 9)}` : "plain";
const colour = type => `c${Math.min(types.indexOf(type), 9)}`;

const nodes = facts.nodes.map((given, order) => ({
  ...given, order, x: 0, y: 0, vx: 0, vy: 0, held: false, shown: given.distance <= facts.depth, edges: [],
  caption: captionOf(given), key: keyOf(given), start: false, brought: [],
}));
// Where the picture starts, unless that is everywhere.
const starts = nodes.filter(node => node.distance === 0);
if (starts.length < nodes.length || nodes.length === 1) for (const node of starts) node.start = true;
const byId = new Map(nodes.map(node => [node.id, node]));
const edges = facts.edges.map(given => ({...given, from: byId.get(given.from), to: byId.get(given.to)}));
const bundles = new Map();
for (const edge of edges) {
  for (const end of new Set([edge.from, edge.to])) end.edges.push(edge);
  const name = [edge.from.order, edge.to.order].sort((one, two) => one - two).join(" ");
  if (!bundles.has(name)) bundles.set(name, []);
  bundles.get(name).push(edge);
}
// Edges between the same two nodes bend away from each other.
for (const bundle of bundles.values()) {
  bundle.forEach((edge, place) => {
    const bend = (place - (bundle.length - 1) / 2) * 26;
    edge.bend = edge.from.order <= edge.to.order ? bend : -bend;
    edge.place = place;
  });
}

function captionOf({id, type, properties}) {
  const usual = ["name", "title", "label", "caption", "key", "code", "url", "email"];
  const found = usual.map(name => properties.find(([own]) => own.toLowerCase() === name)).find(Boolean);
  const [, text] = found ?? ["", keyOf({type, properties}) || (properties[0]?.[1] ?? "")];
  return text.trim() || `${type} #${id}`;
}

// The values of a unique index, if its properties are there.
function keyOf({type, properties}) {
  const given = new Map(properties);
  const names = (facts.keys[type] ?? []).find(some => some.every(name => given.has(name)));
  return names ? names.map(name => given.get(name)).join(" ") : "";
}

const visible = node => node.shown && !off.has(node.type);
const across = (edge, node) => edge.from === node ? edge.to : edge.from;
const neighbours = node => [...new Set(node.edges.map(edge => across(edge, node)))].filter(one => one !== node);
const hidden = node => neighbours(node).filter(one => !one.shown);

function drawNode(node) {
  const more = made("g", {class: "more", transform: `translate(${RADIUS - 2} ${2 - RADIUS})`},
    made("circle", {r: 9.5}), made("text", {y: 3}));
  const caption = made("text", {class: "caption", y: RADIUS + 2}, cut(node.caption, 22));
  node.element = made("g", {
    class: `node ${colour(node.type)}${node.start ? " start" : ""}`, "data-id": node.id, role: "button", tabindex: -1,
    onfocus: () => { roam(node); near(node); }, onblur: () => near(null),
    onpointerenter: event => { near(node); tip(event, node); }, onpointerleave: () => { near(null); tip(null); },
  }, made("circle", {class: "ring", r: RADIUS + 4}), made("circle", {class: "body", r: RADIUS}),
    ...(node.start ? [made("path", {class: "star", d: STAR})] : []), made("circle", {class: "pin", r: 3.5}),
    caption, more);
  node.badge = more;
  return node.element;
}

function drawEdge(edge) {
  edge.element = made("g", {
    class: `edge ${edgeColour(edge.type)}`, "data-id": edge.id,
    onpointerenter: event => { edge.element.classList.add("strong"); tip(event, edge); },
    onpointerleave: () => { edge.element.classList.remove("strong"); tip(null); },
  }, made("path", {class: "wide"}), made("path", {class: "thin"}), made("text", {}, edge.type));
  return edge.element;
}

// A new node comes where the one is that brought it.
function settle(fresh, around) {
  fresh.forEach((node, place) => {
    const turn = place * 2.39996;
    const far = around ? 40 + 4 * place : 26 * Math.sqrt(node.order + 0.5);
    node.x = (around?.x ?? 0) + far * Math.cos(around ? turn : node.order * 2.39996);
    node.y = (around?.y ?? 0) + far * Math.sin(around ? turn : node.order * 2.39996);
    node.vx = node.vy = 0;
  });
}

function refresh(heat) {
  const now = nodes.filter(visible);
  links = edges.filter(edge => visible(edge.from) && visible(edge.to) && !edgesOff.has(edge.type));
  // What comes last is drawn over the others.
  const rank = node => node.start ? Infinity : node.edges.length;
  const ranked = [...now].sort((one, two) => rank(one) - rank(two) || two.order - one.order);
  at("nodes").replaceChildren(...ranked.map(node => node.element ?? drawNode(node)));
  at("edges").replaceChildren(...links.map(edge => edge.element ?? drawEdge(edge)));
  at("world").classList.toggle("named", links.length <= 16);
  at("world").classList.toggle("dense", links.length > DENSE);
  for (const node of now) label(node);
  layout.set(now, links, heat);
  if (!now.some(node => node.element.tabIndex === 0) && now.length) roam(now[0]);
  tell(now.length, links.length);
  run();
}

function label(node) {
  const more = hidden(node).length;
  node.badge.toggleAttribute("hidden", !more);
  node.badge.style.display = more ? "" : "none";
  node.badge.lastChild.textContent = more > 99 ? "99+" : `+${more}`;
  node.element.querySelector(".pin").style.display = node.held ? "" : "none";
  const told = more ? `, ${many(more, "neighbour")} not shown` : "";
  node.element.setAttribute("aria-label", `${node.type} ${node.caption}${told}`);
  node.element.setAttribute("aria-pressed", node === selected);
  node.element.classList.toggle("selected", node === selected);
}

function tell(nodeCount, edgeCount) {
  const waiting = nodes.filter(node => !node.shown).length;
  at("told").textContent = `${many(nodeCount, "node")} and ${many(edgeCount, "edge")} are shown`
    + (waiting ? `; expanding nodes brings ${many(waiting, "more", "more")}.` : ".");
}

function run() {
  if (calm) while (layout.tick());
  if (running) return;
  running = true;
  const step = () => {
    // Drawing many edges takes longer than moving them.
    let going = true;
    for (let left = links.length > DENSE ? 8 : 1; left && going; left -= 1) going = layout.tick();
    paint();
    running = going || holding !== null;
    if (!running && links.length > DENSE) paint();
    frames += 1;
    if (running) requestAnimationFrame(step);
    if (!running || frames % 20 === 0) declutter();
  };
  step();
}

// Captions have about one size on the screen: from afar there are fewer of them, closer in there are more.
const grown = () => view.scale < 0.9 ? Math.min(6, 0.9 / view.scale) : Math.min(1, 1.15 / view.scale);
// Nodes and lines stop growing where they would only hide what the zoom is to reveal; a start is seen from afar.
const fine = node => node?.start && starts.length <= ALWAYS
  ? Math.max(Math.min(1, 1.5 / view.scale), Math.min(6, 0.75 / view.scale)) : Math.min(1, 1.5 / view.scale);

function paint() {
  const world = at("world");
  world.style.setProperty("--grown", grown());
  world.style.setProperty("--fine", fine());
  world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  world.style.setProperty("--size", grown() / fine());
  for (const node of layout.nodes) {
    const size = fine(node);
    node.element.setAttribute("transform", `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)}) scale(${size})`);
    if (node.start) node.element.style.setProperty("--size", grown() / size);
  }
  for (const edge of links) paintEdge(edge);
}

// Captions that would lie on nodes or on each other are left out, those of well connected nodes last. The start, what is
// selected, and the best connected nodes have theirs even over nodes, and the start also over other captions.
function declutter() {
  const size = grown();
  const cell = 90 * size;
  const boxes = new Map();
  const cells = box => {
    const names = [];
    for (let x = Math.floor(box.left / cell); x <= Math.floor(box.right / cell); x += 1) {
      for (let y = Math.floor(box.top / cell); y <= Math.floor(box.bottom / cell); y += 1) names.push(`${x} ${y}`);
    }
    return names;
  };
  const take = box => {
    for (const name of cells(box)) {
      if (!boxes.has(name)) boxes.set(name, []);
      boxes.get(name).push(box);
    }
  };
  const overlaps = (one, two) =>
    one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom;
  const blocked = (own, always) => cells(own).some(name =>
    boxes.get(name)?.some(box => !(always && box.body) && box.node !== own.node && overlaps(box, own)));
  for (const node of layout.nodes) {
    const reach = (RADIUS - 2) * fine(node);
    const [left, right, top, bottom] = [node.x - reach, node.x + reach, node.y - reach, node.y + reach];
    take({left, right, top, bottom, node, body: true});
  }
  const first = node => (node === selected ? 2e6 : 0) + (node.start ? 1e6 : 0) + node.degree;
  [...layout.nodes].sort((one, two) => first(two) - first(one) || one.order - two.order).forEach((node, place) => {
    const wide = 3.3 * size * Math.min(22, [...node.caption].length);
    const top = node.y + (RADIUS + 2) * fine(node);
    const own = {left: node.x - wide, right: node.x + wide, top, bottom: top + 14 * size, node, body: false};
    const forced = node === selected || (node.start && starts.length <= ALWAYS);
    const clear = forced || !blocked(own, place < ALWAYS);
    node.element.classList.toggle("mute", !clear);
    if (clear) take(own);
  });
}

// While many edges move, only their lines are drawn, not where they can be hovered.
function paintEdge({from, to, bend, place, element}) {
  const [wide, thin, text] = element.children;
  let line;
  let x;
  let y;
  if (from === to) {
    const size = 30 + 12 * place;
    line = `M${from.x - 9} ${from.y - 10} C${from.x - size} ${from.y - 2 * size} ${from.x + size} `
      + `${from.y - 2 * size} ${from.x + 9} ${from.y - 11}`;
    [x, y] = [from.x, from.y - 1.55 * size];
  } else {
    const [dx, dy, distance] = Layout.between(from, to);
    const [across, along] = [-dy / distance, dx / distance];
    const [mx, my] = [(from.x + to.x) / 2 + across * bend, (from.y + to.y) / 2 + along * bend];
    const toward = (node, gap) => {
      gap *= fine(node);
      const length = Math.hypot(mx - node.x, my - node.y) || 1;
      return `${node.x + (mx - node.x) / length * gap} ${node.y + (my - node.y) / length * gap}`;
    };
    line = `M${toward(from, RADIUS + 1)} Q${mx} ${my} ${toward(to, RADIUS + 3)}`;
    [x, y] = [(from.x + to.x) / 2 + across * bend / 2, (from.y + to.y) / 2 + along * bend / 2 + 3];
  }
  thin.setAttribute("d", line);
  if (running && links.length > DENSE) return;
  wide.setAttribute("d", line);
  text.setAttribute("x", x);
  text.setAttribute("y", y);
}

// What is near a node stands out, the rest steps back.
function near(node) {
  const main = node ?? selected;
  // Dimming thousands of nodes and edges takes a while, too long for each that the pointer passes.
  const dims = main && visible(main) && (main === selected || links.length <= DENSE);
  at("world").classList.toggle("quiet", Boolean(dims));
  const close = new Set(main ? [main, ...neighbours(main)] : []);
  for (const one of layout.nodes) one.element.classList.toggle("near", close.has(one));
  for (const edge of edges) edge.element?.classList.toggle("strong", Boolean(main && main.edges.includes(edge)));
}

function listed(properties, most = Infinity) {
  const rows = properties.slice(0, most).flatMap(([name, value]) =>
    [made("dt", {dir: "auto"}, name), made("dd", {dir: "auto"}, most === Infinity ? value : cut(value, 160))]);
  return made("dl", {}, ...rows);
}

function named(thing) {
  if (!thing.from) return [made("b", {dir: "auto"}, cut(thing.caption, 80)), made("p", {class: "type"}, thing.type)];
  const ends = `${cut(thing.from.caption, 40)} → ${cut(thing.to.caption, 40)}`;
  return [made("b", {dir: "auto"}, thing.type), made("p", {class: "type"}, ends)];
}

function tip(event, thing) {
  const box = at("tip");
  box.hidden = !thing || thing === selected || holding !== null;
  if (box.hidden) return;
  const rest = thing.properties.length - 8;
  const more = rest > 0 ? [made("p", {class: "about"}, `… ${rest} more`)] : [];
  box.replaceChildren(...named(thing), listed(thing.properties, 8), ...more);
  const main = at("picture").getBoundingClientRect();
  const [x, y] = [event.clientX - main.x, event.clientY - main.y];
  box.style.left = `${Math.max(8, Math.min(x + 16, main.width - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(8, y + 18 + box.offsetHeight > main.height ? y - box.offsetHeight - 12 : y + 18)}px`;
}

function select(node) {
  const before = selected;
  selected = node;
  tip(null);
  for (const one of [before, node]) if (one?.element) label(one);
  near(null);
  const box = at("details");
  box.hidden = !node;
  if (!node) return;
  const more = hidden(node);
  const acts = made("div", {class: "acts"});
  if (more.length) {
    acts.append(made("button", {type: "button", class: "main", onclick: () => expand(node)},
      `Show ${many(more.length, "more neighbour")}`));
  }
  const brought = node.brought.filter(one => one.shown && one !== node);
  if (brought.length) {
    acts.append(made("button", {type: "button", onclick: () => collapse(node)},
      `Hide ${many(brought.length, "neighbour")} again`));
  }
  if (node.held) acts.append(made("button", {type: "button", onclick: () => release(node)}, "Let it move"));
  acts.append(made("button", {type: "button", onclick: () => hide(node)}, "Hide"));
  const beyond = node.beyond ? [made("p", {class: "about"},
    `${many(node.beyond, "more edge leads", "more edges lead")} to nodes that are not in this file.`)] : [];
  box.replaceChildren(
    made("header", {}, made("h2", {dir: "auto"}, cut(node.caption, 120)),
      made("button", {type: "button", class: "close", "aria-label": "Close", onclick: () => select(null)}, "×")),
    made("p", {class: `type ${colour(node.type)}`}, made("i", {class: "dot"}), `${node.type} #${node.id}`),
    listed(node.properties), acts, around(node), ...beyond);
  if (visible(node)) into(node);
}

function around(node) {
  const most = 60;
  const items = node.edges.slice(0, most).map(edge => {
    const other = across(edge, node);
    const way = edge.from === node ? "→" : "←";
    return made("li", {}, made("button", {type: "button", onclick: () => go(other)},
      made("i", {class: `dot ${colour(other.type)}`}), made("span", {dir: "auto"}, cut(other.caption, 40)),
      made("small", {}, `${way} ${cut(edge.type, 24)}`)));
  });
  if (node.edges.length > most) items.push(made("li", {class: "about"}, `… ${node.edges.length - most} more`));
  return made("ul", {id: "around", "aria-label": "Its edges"}, ...items);
}

function expand(node) {
  const fresh = hidden(node);
  for (const one of fresh) one.shown = true;
  node.brought = [...node.brought.filter(one => one.shown), ...fresh];
  settle(fresh, node);
  refresh(fresh.length ? 0.5 : 0);
  select(node);
}

// Hides again what a node has brought, and what that has brought.
function collapse(node) {
  for (const one of node.brought) if (one !== node) one.shown = false;
  for (const one of node.brought.splice(0)) if (one.brought.length) collapse(one);
  refresh(0.2);
  select(node);
}

function hide(node) {
  node.shown = false;
  select(null);
  refresh(0.2);
}

function release(node) {
  node.held = false;
  refresh(0.3);
  select(node);
}

// Brings a node into sight, wherever it is and whether or not it was shown.
function go(node) {
  off.delete(node.type);
  legend();
  if (!node.shown) {
    node.shown = true;
    settle([node], neighbours(node).find(visible));
  }
  refresh(0.1);
  select(node);
  roam(node);
  const {width, height} = room();
  view.scale = Math.max(view.scale, 0.8);
  view.x = width / 2 - node.x * view.scale;
  view.y = height / 2 - node.y * view.scale;
  paint();
  declutter();
}

// One node at a time is where Tab leads.
function roam(node) {
  for (const one of nodes) if (one.element?.tabIndex === 0) one.element.setAttribute("tabindex", -1);
  node.element.setAttribute("tabindex", 0);
}

function legend() {
  fillLegend("legend", types, off, counts, "node", type => [colour(type), "dot"]);
  fillLegend("edge-legend", edgeTypes, edgesOff, edgeCounts, "edge", type => [edgeColour(type), "line"]);
  at("edge-legend-title").hidden = !edgeTypes.length;
  const marked = nodes.filter(node => node.start);
  at("start-note").hidden = !marked.length;
  at("start-note").textContent = marked.length > 1 ? `★ marks the ${marked.length} starts` : "★ marks the start";
}

function fillLegend(id, names, hiddenOnes, numbers, noun, style) {
  at(id).replaceChildren(...names.map(type => made("li", {}, made("button", {
    type: "button", class: style(type)[0], "aria-pressed": !hiddenOnes.has(type),
    onclick: event => {
      if (!hiddenOnes.delete(type)) hiddenOnes.add(type);
      event.currentTarget.setAttribute("aria-pressed", !hiddenOnes.has(type));
      if (selected && !visible(selected)) select(null);
      refresh(0.3);
    },
  }, made("i", {class: style(type)[1]}), made("span", {dir: "auto"}, type),
    made("small", {}, many(numbers.get(type), noun))))));
}

function search() {
  const wanted = at("search").value.trim().toLowerCase();
  // A name before the sign means that property alone.
  const [, name, part] = /^([^=]*?)\s*=\s*(.+)$/.exec(wanted) ?? [null, null, wanted];
  const has = node => name === null
    ? `#${node.id}` === wanted || node.type.toLowerCase().includes(wanted)
      || node.key.toLowerCase().includes(wanted)
      || node.properties.some(([, value]) => value.toLowerCase().includes(wanted))
    : node.properties.some(([own, value]) => own.toLowerCase() === name && value.toLowerCase().includes(part));
  const whole = node => node.properties.some(([, value]) => value.toLowerCase() === wanted);
  const found = wanted ? nodes.filter(node => has(node) || whole(node)) : [];
  // Keys come first, then whole captions, then captions and keys that begin so.
  const rank = node => {
    const [key, caption] = [node.key.toLowerCase(), node.caption.toLowerCase()];
    return key === part ? 0 : caption === part ? 1 : caption.startsWith(part) || key.startsWith(part) ? 2 : 3;
  };
  found.sort((one, two) => rank(one) - rank(two) || one.order - two.order);
  const items = found.slice(0, 20).map(node => made("li", {}, made("button", {type: "button", onclick: () => go(node)},
    made("i", {class: `dot ${colour(node.type)}`}), made("span", {dir: "auto"}, cut(node.caption, 60)),
    ...(node.key && node.key !== node.caption ? [made("em", {dir: "auto"}, cut(node.key, 30))] : []),
    made("small", {}, node.shown ? node.type : "not shown"))));
  if (found.length > 20) items.push(made("li", {}, made("p", {}, `… ${found.length - 20} more`)));
  if (wanted && !found.length) items.push(made("li", {}, made("p", {}, "No node in this file has that.")));
  at("hits").replaceChildren(...items);
  return found;
}

function zoom(factor, x, y) {
  const {width, height} = at("picture").getBoundingClientRect();
  const [px, py] = [x ?? width / 2, y ?? height / 2];
  const scale = Math.max(0.08, Math.min(5, view.scale * factor));
  view.x = px - (px - view.x) * scale / view.scale;
  view.y = py - (py - view.y) * scale / view.scale;
  view.scale = scale;
  paint();
  declutter();
}

// The room that nothing lies over.
function room() {
  const {width, height} = at("picture").getBoundingClientRect();
  const over = at("details").hidden || width < 700 ? 0 : at("details").offsetWidth + 16;
  return {width: width - over, height};
}

function fit() {
  const {width, height} = room();
  if (!layout.nodes.length) return;
  const [xs, ys] = [layout.nodes.map(node => node.x), layout.nodes.map(node => node.y)];
  const [left, right] = [Math.min(...xs) - 75, Math.max(...xs) + 75];
  const [top, bottom] = [Math.min(...ys) - 50, Math.max(...ys) + 55];
  view.scale = Math.max(0.08, Math.min(1.25, width / (right - left), height / (bottom - top)));
  view.x = width / 2 - (left + right) / 2 * view.scale;
  view.y = height / 2 - (top + bottom) / 2 * view.scale;
  paint();
  declutter();
}

function begin() {
  off.clear();
  edgesOff.clear();
  for (const node of nodes) {
    node.shown = node.distance <= facts.depth;
    node.held = false;
    node.brought = [];
  }
  select(null);
  settle(nodes, null);
  legend();
  refresh(1);
  // The worst of the unrest is over before anything is seen, unless that would take too long.
  const end = performance.now() + 1500;
  while (layout.heat > 0.05 && performance.now() < end) layout.tick();
  fit();
}
