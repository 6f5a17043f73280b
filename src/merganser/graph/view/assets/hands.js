// What the pointers hold: a node, the background, or, with two of them, the zoom.
let holding = null;
const pointers = new Map();
const picture = at("picture");
const nodeOf = target => byId.get(target.closest?.(".node")?.dataset.id) ?? null;

picture.addEventListener("pointerdown", event => {
  if (event.button !== 0) return;
  picture.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, event);
  holding = {node: pointers.size > 1 ? null : nodeOf(event.target), from: event, moved: pointers.size > 1};
  tip(null);
});

picture.addEventListener("pointermove", event => {
  const before = pointers.get(event.pointerId);
  if (!before || !holding) return;
  if (pointers.size === 2) {
    const [other] = [...pointers.values()].filter(one => one.pointerId !== event.pointerId);
    const apart = one => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
    const box = picture.getBoundingClientRect();
    const [x, y] = [(event.clientX + other.clientX) / 2 - box.x, (event.clientY + other.clientY) / 2 - box.y];
    zoom(apart(event) / apart(before), x, y);
  }
  pointers.set(event.pointerId, event);
  if (Math.hypot(event.clientX - holding.from.clientX, event.clientY - holding.from.clientY) > 4) holding.moved = true;
  if (!holding.moved) return;
  picture.classList.add("moving");
  const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
  if (holding.node) {
    holding.node.held = true;
    const box = picture.getBoundingClientRect();
    holding.node.x = (event.clientX - box.x - view.x) / view.scale;
    holding.node.y = (event.clientY - box.y - view.y) / view.scale;
    layout.warm(0.25);
    run();
  } else {
    view.x += dx;
    view.y += dy;
    paint();
  }
});

function letGo(event) {
  if (!pointers.delete(event.pointerId) || !holding) return;
  const {node, moved} = holding;
  if (pointers.size) return;
  holding = null;
  picture.classList.remove("moving");
  if (node && moved) {
    label(node);
    if (node === selected) select(node);
  } else if (node && event.type === "pointerup") {
    roam(node);
    node.element.focus({preventScroll: true});
    if (hidden(node).length) expand(node);
    else select(node);
  } else if (!moved) {
    select(null);
  }
}
picture.addEventListener("pointerup", letGo);
picture.addEventListener("pointercancel", letGo);

picture.addEventListener("wheel", event => {
  event.preventDefault();
  const box = picture.getBoundingClientRect();
  const lines = event.deltaMode === 1 ? 16 : 1;
  const turned = Math.max(-120, Math.min(120, event.deltaY * lines));
  zoom(Math.exp(-turned / 350), event.clientX - box.x, event.clientY - box.y);
}, {passive: false});

const ways = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]};

// The nearest node that lies more or less in a direction.
function toward(node, [dx, dy]) {
  let best = null;
  for (const other of layout.nodes) {
    const [x, y] = [other.x - node.x, other.y - node.y];
    const [along, aside] = [x * dx + y * dy, Math.abs(x * dy - y * dx)];
    if (other === node || along <= 0 || aside > along * 2) continue;
    const far = along + 2 * aside;
    if (!best || far < best.far) best = {far, other};
  }
  return best?.other ?? null;
}

picture.addEventListener("keydown", event => {
  const node = nodeOf(event.target);
  if (!node) return;
  if (event.key in ways) {
    const next = toward(node, ways[event.key]);
    if (next) {
      roam(next);
      next.element.focus();
      into(next);
    }
  } else if (event.key === "Enter" || event.key === " ") {
    if (hidden(node).length) expand(node);
    else select(node);
    node.element.focus();
  } else {
    return;
  }
  event.preventDefault();
});

function into(node) {
  const {width, height} = room();
  const [x, y] = [view.x + node.x * view.scale, view.y + node.y * view.scale];
  view.x += Math.max(0, 60 - x) - Math.max(0, x - width + 60);
  view.y += Math.max(0, 60 - y) - Math.max(0, y - height + 60);
  paint();
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    at("search").value = "";
    search();
    select(null);
  } else if (event.target.matches("input")) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    at("search").focus();
  } else if (event.key === "+" || event.key === "=") {
    zoom(1.25);
  } else if (event.key === "-") {
    zoom(0.8);
  } else if (event.key === "0") {
    fit();
  }
});

at("search").addEventListener("input", search);
at("search").addEventListener("keydown", event => {
  const [first] = event.key === "Enter" ? search() : [];
  if (first) go(first);
});
at("closer").addEventListener("click", () => zoom(1.25));
at("further").addEventListener("click", () => zoom(0.8));
at("fit").addEventListener("click", fit);
at("again").addEventListener("click", begin);
addEventListener("resize", paint);

at("title").textContent = facts.title;
at("note").textContent = facts.note;
at("note").hidden = !facts.note;
const leftOut = [
  ...(facts.nodesLeftOut ? [many(facts.nodesLeftOut, "node next to these", "nodes next to these")] : []),
  ...(facts.edgesLeftOut ? [many(facts.edgesLeftOut, "edge between them", "edges between them")] : []),
];
at("left-out").textContent = `Not in this file: ${leftOut.join(" and ")}.`;
at("left-out").hidden = !leftOut.length;
begin();
